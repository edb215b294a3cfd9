"""The labelling pages by request and response; a browser drives them in tests/browser."""

import json
import re
import time
import uuid
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from annotation.choices import AssignmentState, Verdict
from annotation.models import Assignment, Comparison, Completion, Judgment, Project, QuestionAnswer, User
from annotation.services.assignments.display_order import tokens_of
from annotation.services.assignments.next import assign_next
from annotation.services.texts import create_comparison
from annotation.text.identity import text_hash
from tests import factories
from tests.annotation.questions.asking import ask

HTMX = {"HX-Request": "true"}


@pytest.fixture
def pair(project: Project) -> Comparison:
    """Two answers, one of them with an emoji and Markdown."""
    return factories.make_comparison(project, ["Two *minutes* 🍵.", "Ten hours."])


def held(project: Project, user: User) -> Assignment:
    assignment = assign_next(project=project, annotator=user)
    assert assignment is not None
    return assignment


def address(name: str, assignment: Assignment) -> str:
    return reverse(name, args=[assignment.comparison.project.slug, assignment.pk])


def send(client: Client, assignment: Assignment, *, htmx: bool = True, **fields: Any) -> Any:
    data = {"idempotency_key": str(uuid.uuid4()), "guideline": "1", "active_seconds": "7", **fields}
    return client.post(address("submit", assignment), data, headers=HTMX if htmx else {})


def token_of(assignment: Assignment, text: str) -> str:
    completion = assignment.comparison.completions.get(text=text)
    return next(token for token, pk in tokens_of(assignment).items() if pk == completion.pk)


def test_one_address_serves_the_page_and_its_fragment(pair, project, browser):
    url = reverse("label", args=[project.slug])
    page, fragment = browser.get(url), browser.get(url, headers=HTMX)
    assert page.content.lstrip().startswith(b"<!doctype html>")
    assert b"<html" not in fragment.content
    assert b'id="screen"' in page.content
    assert b'id="screen"' in fragment.content


def test_the_page_tells_nobody_who_wrote_what(project, alice, browser):
    prompt = factories.make_prompt(project, "Who are you?")
    completions = [
        Completion.objects.create(
            # Ids that cannot stand on the page for anything else.
            pk=7_654_321_000 + number,
            prompt=prompt,
            source=factories.make_source(f"secret-checkpoint-{number}"),
            text=text,
            text_hash=text_hash(text),
            seed=7_654_321_000 + number,
        )
        for number, text in enumerate(["first text", "second text"])
    ]
    create_comparison(prompt=prompt, completions=completions, round_number=1)
    assignment = held(project, alice)
    answers = [
        browser.get(reverse("label", args=[project.slug])),
        send(browser, assignment, comment="refused, as nothing is chosen"),
    ]
    send(browser, assignment, choice="equal")
    answers.append(browser.get(address("revise", assignment)))
    for answer in answers:
        everything = answer.content.decode() + str(answer.headers)
        assert "first text" in everything
        assert "secret" not in everything
        assert "7654321" not in everything


def test_a_pair_is_stored_under_completions_and_not_under_places(pair, project, alice, browser):
    assignment = held(project, alice)
    better = token_of(assignment, "Two *minutes* 🍵.")
    answer = send(browser, assignment, choice=f"win:{better}:3", comment="a\r\nb")
    assert answer.status_code == 200
    judgment = Judgment.objects.get()
    assert (judgment.verdict, judgment.strength, judgment.comment) == (Verdict.RANKED, 3, "a\nb")
    assert {row.completion.text: row.rank for row in judgment.ranks.all()} == {
        "Two *minutes* 🍵.": 1,
        "Ten hours.": 2,
    }
    assert (judgment.active_seconds, judgment.guideline) == (7, project.guidelines.get())


def test_the_next_comparison_comes_in_the_same_answer(pair, project, alice, browser):
    factories.make_comparison(project, ["the next A", "the next B"])
    answer = send(browser, held(project, alice), choice="both_bad")
    assert b"the next A" in answer.content
    assert answer["HX-Replace-Url"] == reverse("label", args=[project.slug])


def test_without_htmx_a_submit_leads_back_to_the_label_page(pair, project, alice, browser):
    answer = send(browser, held(project, alice), htmx=False, choice="equal")
    assert (answer.status_code, answer["Location"]) == (302, reverse("label", args=[project.slug]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "Choose the better response, or a no-preference option."),
        ({"choice": "win:forged:3"}, "no longer fits"),
        ({"choice": "win:{token}"}, "Choose how much better it is"),
        ({"choice": "win:{token}:5"}, "Choose how much better it is"),
        ({"choice": "superb"}, "no longer fits"),
        ({"choice": "equal", "span_flags": "{nonsense"}, "Enter a valid JSON"),
        ({"choice": "equal", "span_flags": '[{"candidate": "forged"}]'}, "no longer fits"),
        ({"choice": "equal", "span_flags": "[7]"}, "no longer fits"),
        ({"choice": "equal", "idempotency_key": "7"}, "Enter a valid UUID"),
        ({"choice": "equal", "active_seconds": "-4"}, "Active time"),
        ({"choice": "equal", "active_seconds": "3000000000"}, "Active time"),
    ],
)
def test_a_refused_submit_comes_back_with_what_was_entered(
    fields: dict[str, str], message: str, pair, project, alice, browser
):
    assignment = held(project, alice)
    token = token_of(assignment, "Ten hours.")
    sent: dict[str, Any] = {name: value.replace("{token}", token) for name, value in fields.items()}
    answer = send(browser, assignment, comment="keep this", **sent)
    assert answer.status_code == 422
    assert message in answer.content.decode()
    assert "keep this" in answer.content.decode()
    assert not Judgment.objects.exists()


def test_a_mark_on_another_text_is_refused_and_stays_on_the_page(pair, project, alice, browser):
    assignment = held(project, alice)
    span = {
        "candidate": token_of(assignment, "Ten hours."),
        "category": "untruthful",
        "start": 0,
        "end": 3,
        "quote": "Two",
        "text_hash": assignment.comparison.completions.get(text="Ten hours.").text_hash,
    }
    answer = send(browser, assignment, choice="equal", span_flags=json.dumps([span]))
    assert answer.status_code == 422
    assert "does not stand on its quote" in answer.content.decode()
    assert "&quot;end&quot;: 3" in answer.content.decode()


def test_a_ranking_takes_ties_and_names_who_is_left_out(project, alice, browser):
    factories.make_comparison(project, ["one", "two", "three"])
    assignment = held(project, alice)
    ranks: dict[str, Any] = {
        f"rank-{token_of(assignment, text)}": rank for text, rank in (("one", "1"), ("two", "3"))
    }
    answer = send(browser, assignment, **ranks)
    left_out = "ABC"[list(tokens_of(assignment)).index(token_of(assignment, "three"))]
    assert f"Rank {left_out} too." in answer.content.decode()
    ranks[f"rank-{token_of(assignment, 'three')}"] = "3"
    send(browser, assignment, **ranks)
    ranked = {row.completion.text: row.rank for row in Judgment.objects.get().ranks.all()}
    assert ranked == {"one": 1, "two": 2, "three": 2}


def test_ranks_and_no_winner_contradict_each_other(project, alice, browser):
    factories.make_comparison(project, ["one", "two", "three"])
    assignment = held(project, alice)
    ranks: dict[str, Any] = {f"rank-{token}": "1" for token in tokens_of(assignment)}
    answer = send(browser, assignment, choice="both_bad", **ranks)
    assert "Remove one of the two" in answer.content.decode()
    assert not Judgment.objects.exists()


def test_missing_info_is_read_row_by_row_and_empty_rows_say_nothing(project, alice, browser):
    prompt = factories.make_prompt(project, "Tea?", context=[("Water", ["It is wet.", "It is hot."])])
    factories.make_comparison(project, ["one", "two"], prompt=prompt)
    assignment = held(project, alice)
    first, second = token_of(assignment, "one"), token_of(assignment, "two")
    rows_sent: dict[str, Any] = {
        "missing-candidate": [first, second, second],
        "missing-category": ["missing", "missing", "missing"],
        "missing-text": ["", "the heat", ""],
        "missing-evidence": ["", "", "0:1"],
    }
    send(browser, assignment, choice="cannot_judge", **rows_sent)
    rows = Judgment.objects.get().missing_info.all()
    assert [(row.completion.text, row.text, row.quote) for row in rows] == [
        ("two", "the heat", ""),
        ("two", "", "It is hot."),
    ]


def test_an_opened_answer_shows_what_was_said_and_its_change_supersedes_it(pair, project, alice, browser):
    assignment = held(project, alice)
    text = "Two *minutes* 🍵."
    token = token_of(assignment, text)
    span = {
        "candidate": token,
        "category": "untruthful",
        "start": 14,
        "end": 15,
        "quote": "🍵",
        "text_hash": assignment.comparison.completions.get(text=text).text_hash,
    }
    better = token_of(assignment, "Ten hours.")
    send(browser, assignment, choice=f"win:{better}:1", span_flags=json.dumps([span]))
    page = browser.get(address("revise", assignment)).content.decode()
    assert re.search(rf'value="win:{better}:1"[^>]* checked', page)
    assert "&quot;start&quot;: 14, &quot;end&quot;: 15" in page
    send(browser, assignment, choice="both_good")
    first, second = Judgment.objects.order_by("pk")
    assert (second.supersedes, first.span_flags.count(), second.span_flags.count()) == (first, 1, 0)


def test_what_was_not_submitted_cannot_be_opened_again(pair, project, alice, browser):
    answer = browser.get(address("revise", held(project, alice)))
    assert (answer.status_code, answer["Location"]) == (302, reverse("label", args=[project.slug]))


def test_an_answer_that_comes_too_late_is_refused_in_words(pair, project, alice, bob, browser, client_of):
    late = held(project, alice)
    Assignment.objects.filter(pk=late.pk).update(lease_expires_at="2020-01-01T00:00:00Z")
    send(client_of(bob), held(project, bob), choice="equal")
    answer = send(browser, late, choice="both_bad", comment="my words")
    assert answer.status_code == 422
    assert "others have annotated it since" in answer.content.decode()
    assert "my words" in answer.content.decode()
    assert browser.post(address("renew", late)).status_code == 409


def test_skipping_needs_a_reason(pair, project, alice, browser):
    assignment = held(project, alice)
    answer = browser.post(address("skip", assignment), {}, headers=HTMX)
    assert (answer.status_code, answer["HX-Retarget"]) == (422, "#skip-form")
    assert "Choose a reason." in answer.content.decode()
    browser.post(address("skip", assignment), {"reason": "broken", "details": "empty page"}, headers=HTMX)
    assignment.refresh_from_db()
    assert (assignment.state, assignment.reason) == (AssignmentState.SKIPPED, "broken: empty page")


def test_renewing_says_nothing_and_keeps_the_lease(pair, project, alice, browser):
    assignment = held(project, alice)
    Assignment.objects.filter(pk=assignment.pk).update(lease_expires_at="2020-01-01T00:00:00Z")
    assert browser.post(address("renew", assignment)).status_code == 204
    before = assignment.lease_expires_at
    assignment.refresh_from_db()
    assert assignment.lease_expires_at >= before


def test_waiting_says_what_is_happening(project, alice, browser):
    url = reverse("label", args=[project.slug])
    assert "There are no prompts yet" in browser.get(url).content.decode()
    for number in range(3):
        factories.make_prompt(project, f"Question {number}?")
    assert "0 of 3 prompts have responses" in browser.get(url).content.decode()
    fragment = browser.get(url, headers=HTMX).content.decode()
    assert f'data-waiting="{url}"' in fragment
    assert "<html" not in fragment


def test_parts_that_a_project_does_not_ask_for_are_not_shown(pair, project, alice, browser):
    Project.objects.update(
        ask_strength=False, ask_span_flags=False, ask_missing_info=False, ask_comment=False
    )
    assignment = held(project, alice)
    page = browser.get(reverse("label", args=[project.slug])).content.decode()
    for part in ("data-strength", "marking-legend", "missing-text", 'name="comment"'):
        assert part not in page
    token = token_of(assignment, "Ten hours.")
    assert f'value="win:{token}"' in page
    send(browser, assignment, choice=f"win:{token}")
    assert Judgment.objects.get().strength is None


def test_the_labelling_screen_asks_the_database_a_bounded_number_of_times(
    project, alice, browser, django_assert_max_num_queries
):
    factories.make_comparison(project, ["one", "two", "three", "four"])
    held(project, alice)
    with django_assert_max_num_queries(26):
        browser.get(reverse("label", args=[project.slug]))


LABEL_BUDGET = {
    # Session, person, membership with project, assignment with comparison.
    "who asks": 4,
    # Begin, turn, lock, judgment, ranks, assignment, tally, draft, whether others judged, commit.
    "submit": 10,
    # What is held, first open comparison, its place, completions, display order, lease.
    "next": 6,
}
"""Statements of a label. A feature that adds one to every label of everybody says here what for."""


@pytest.mark.parametrize("more", [{}, {"answers to the project's questions": 1}], ids=["", "questions"])
def test_submit_and_next_keeps_to_its_budget_of_statements(
    project, rita, alice, browser, monkeypatch, django_assert_max_num_queries, more
):
    # What is kept for some seconds stays kept, however slow the machine.
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now)
    for key in ("topic", "faults", "ease", "age") if more else ():
        ask(project, rita, key)
    for number in range(30):
        factories.make_comparison(project, [f"first {number}", f"second {number}"])
    page = browser.get(reverse("label", args=[project.slug]), headers=HTMX).content.decode()

    def label(page: str) -> str:
        action = re.search(r'id="judgment" method="post" action="([^"]+)"', page)
        choice = re.search(r'name="choice" value="(win:[^"]+)"', page)
        key = re.search(r'name="idempotency_key" value="([^"]+)"', page)
        assert action is not None
        assert choice is not None
        assert key is not None
        fields = {"idempotency_key": key[1], "guideline": "1", "active_seconds": "1", "choice": choice[1]}
        fields |= dict(re.findall(r'name="(question\.[^"]+)" value="([^"]+)"', page))
        answer = browser.post(action[1], fields, headers=HTMX)
        assert answer.status_code == 200
        return str(answer.content.decode())

    # What a person's pace and the round's total hang on is looked up now and then, more often at first.
    for _ in range(12):
        page = label(page)
    with django_assert_max_num_queries(sum({**LABEL_BUDGET, **more}.values())):
        page = label(page)
    assert QuestionAnswer.objects.count() == (13 * 3 if more else 0)
    assert Judgment.objects.filter(annotator=alice).count() == 13
    # It goes on from the tally, whoever counted last.
    assert "13 today" in page


@pytest.mark.parametrize(
    ("show_context", "question", "is_open"),
    [
        ("auto", "Who won, according to the passage?", True),
        ("auto", "Who won?", False),
        ("open", "Who won?", True),
        ("folded", "Who won, according to the passage?", False),
    ],
)
def test_the_context_is_open_as_the_project_and_the_prompt_say(
    project: Project, browser: Client, show_context: str, question: str, is_open: bool
):
    Project.objects.update(show_context=show_context)
    prompt = factories.make_prompt(project, question, context=[("Final", ["Uruguay won.", "It rained."])])
    factories.make_comparison(project, prompt=prompt)
    page = browser.get(reverse("label", args=[project.slug])).content.decode()
    assert ('id="passages" open' in page) is is_open
