"""The stencil of the labelling screen: what it fills in is to the letter what the template says."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
from django.template.loader import render_to_string
from django.test import Client
from django.urls import reverse
from django.utils import translation

from annotation.choices import RatingScale
from annotation.forms import Entered
from annotation.models import Assignment, Criterion, Project, User
from annotation.services.assignments import assign_next, tokens_of
from annotation.services.completions import create_comparison
from annotation.services.keys import change_keys
from annotation.services.projects import publish_guideline
from annotation.views.screen import Screen
from annotation.views.show import from_stencil
from annotation.views.stencil import Gaps, Stencil
from tests import factories

ClientOf = Callable[[User], Client]
NASTY = 'Tea & <b>"milk"</b> 🫖\n```\na < b\n```\n\n$x^2$'
FLAGS = (
    *("ask_verdict", "ask_strength", "ask_span_flags", "ask_missing_info", "ask_correction"),
    *("ask_critique", "ask_comment", "ask_demonstration", "rate_side_by_side"),
)


def screen_of(assignment: Assignment, annotator: User) -> Screen:
    """The untouched screen as a view makes it, with what is in the database now."""
    project = Project.objects.get(pk=assignment.comparison.project_id)
    read = Assignment.objects.select_related("comparison__prompt").get(pk=assignment.pk)
    read.comparison.project = project
    person = User.objects.get(pk=annotator.pk)
    return Screen(project=project, assignment=read, annotator=person, entered=Entered())


def from_template(screen: Screen, csrf_token: str) -> str:
    context = {"project": screen.project, "screen": screen, "announced": None, "feedback": None}
    return render_to_string("annotation/screen.html", {**context, "csrf_token": csrf_token})


def held_by(project: Project, annotator: User) -> Assignment:
    held = assign_next(project=Project.objects.get(pk=project.pk), annotator=annotator)
    assert held is not None
    return held


def make_work(project: Project, size: int, *, with_context: bool) -> None:
    context = [("On <tea>", ["Hot & wet.", "Brown."]), ("", ["No title."])] if with_context else []
    for number in range(2):
        prompt = factories.make_prompt(project, f"{NASTY} {number}", context=context)
        texts = [f"{NASTY} {number}.{letter}" for letter in range(size)]
        factories.make_comparison(project, texts, prompt=prompt)


def settings_to_try() -> list[dict[str, bool]]:
    """Everything on, everything off, each alone off, and some at random."""
    chance = random.Random(7)
    several = [{flag: chance.random() < 0.5 for flag in FLAGS} for _ in range(3)]
    each = [{flag: flag != off for flag in FLAGS} for off in FLAGS]
    return [dict.fromkeys(FLAGS, True), dict.fromkeys(FLAGS, False), *each, *several]


@pytest.mark.parametrize(("size", "with_context"), [(1, False), (2, False), (2, True), (3, True), (5, False)])
def test_a_stencil_says_what_the_template_says_whatever_a_project_asks(
    project: Project, alice: User, bob: User, size: int, with_context: bool
):
    make_work(project, size, with_context=with_context)
    hers, his = held_by(project, alice), held_by(project, bob)
    change_keys(user=bob, keys={"equal": "q", "comment": "u"})
    for number, asked in enumerate(settings_to_try()):
        Project.objects.filter(pk=project.pk).update(**asked)
        if number == 1:
            Criterion.objects.create(project=project, key="tone", label="<Tone>", scale=RatingScale.THUMBS)
        for language, (held, person) in itertools.product(("en", "de"), ((hers, alice), (his, bob))):
            # Twice: the first time may cut the stencil from this very page, the second time fills it.
            for token in ("first-token", "second-token"):
                screen = screen_of(held, person)
                with translation.override(language):
                    assert from_stencil(screen, csrf_token=token) == from_template(screen, token)


def test_a_stencil_cut_from_one_persons_page_tells_the_next_nothing_of_it(
    project: Project, alice: User, bob: User
):
    make_work(project, 2, with_context=True)
    hers, his = screen_of(held_by(project, alice), alice), screen_of(held_by(project, bob), bob)
    first, second = (from_stencil(one, csrf_token=f"of-{one.annotator}") for one in (hers, his))
    assert second == from_template(his, "of-bob")
    for told in (*tokens_of(hers.assignment), hers.idempotency_key, "of-alice", f"/{hers.assignment.pk}/"):
        assert told in first
        assert told not in second


def test_what_a_page_counts_and_offers_is_its_own(project: Project, alice: User):
    """Before the first answer there is no pace and nothing to change; after it there is."""
    make_work(project, 2, with_context=False)
    for _ in range(2):
        screen = screen_of(held_by(project, alice), alice)
        assert from_stencil(screen, csrf_token="t") == from_template(screen, "t")
        factories.make_judgment(screen.assignment.comparison, alice, active_seconds=75)
    assert screen.pace.today == 1
    with translation.override("en"):
        assert "1 today" in from_stencil(screen, csrf_token="t")


def test_new_rules_and_a_renamed_project_are_on_the_next_page(
    project: Project, alice: User, client_of: ClientOf
):
    make_work(project, 2, with_context=False)
    browser = client_of(alice)
    browser.get(reverse("label", args=[project.slug]))

    def page() -> str:
        return browser.get(reverse("label", args=[project.slug])).content.decode()

    assert "Prefer the answer that is right" in page()
    publish_guideline(project=Project.objects.get(pk=project.pk), text="Prefer the *shorter*.", author=None)
    assert "Prefer the <em>shorter</em>." in page()
    Project.objects.filter(pk=project.pk).update(ask_comment=False)
    assert 'name="comment"' not in page()


def test_a_page_is_never_a_stencil_once_something_was_entered(project: Project, alice: User):
    make_work(project, 2, with_context=False)
    held = held_by(project, alice)
    assert screen_of(held, alice).is_untouched
    for entered in (Entered(choice="equal"), Entered(comment="Hm."), Entered(active_seconds="3")):
        touched = Screen(project=project, assignment=held, annotator=alice, entered=entered)
        assert not touched.is_untouched


def test_a_gap_is_filled_wherever_it_stands_and_escaped_once():
    gaps = Gaps()
    markup = f'<a href="/{gaps("pk")}/">{gaps("name")}</a>{gaps("pk")}'
    values: dict[str, Any] = {"pk": 7, "name": "<Ann>"}
    assert Stencil.cut(markup, gaps).filled(values.__getitem__) == '<a href="/7/">&lt;Ann&gt;</a>7'


def test_a_truncated_response_says_so_on_the_labelling_screen(project: Project, alice: User):
    for texts, truncated in ((["Two", "Ten"], [1]), (["One.", "Six."], [])):
        prompt = factories.make_prompt(project, texts[0])
        completions = factories.make_completions(prompt, texts, truncated=truncated)
        create_comparison(prompt=prompt, completions=completions, round_number=1)
    screen = screen_of(held_by(project, alice), alice)
    badges = [(one.source, "Truncated at max tokens" in one.truncated_badge) for one in screen.candidates]
    assert sorted(badges) == [("Ten", True), ("Two", False)]
    # The next screen comes from the same stencil and says nothing of it.
    markup = from_stencil(screen, csrf_token="token")
    assert markup == from_template(screen, "token")
    assert markup.count("Truncated at max tokens") == 1
