"""The final pass by keyboard: suggestions walked, accepted, changed and rejected; drawn without a new DOM."""

import uuid
from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from annotation.choices import SuggestionKind
from annotation.models import Assignment, Comparison, HelpReveal, Judgment, Project, User
from annotation.services.judgments.submission import submit_judgment
from annotation.services.suggestions import SuggestionInput
from tests import factories
from tests.annotation.suggestions.help_scene import (
    compare,
    finish,
    prefers,
    ranking,
    span,
    suggest,
    switch_on,
)
from tests.browser.conftest import Axe, Open, until
from training.services.checkpoints import register_starter
from training.services.suggestions import set_suggestions

LABEL = "/projects/tea/label/"
# Emoji of several code points, right to left, combining marks, Markdown around what is quoted.
TEXT = "Use 👩‍🏫 **cafe\u0301** water. שלום עולם, boil it never! 🏳️‍🌈 Then x\u0308y̆ pour."
QUOTES = ("👩‍🏫 **cafe\u0301** water", "שלום עולם", "x\u0308y̆ pour")
SEEN = ("👩‍🏫 cafe\u0301 water", "שלום עולם", "x\u0308y̆ pour")

_RANGES = """name => [...CSS.highlights.get(name) ?? []].map(range => range.toString())"""
_MARKUP = """() => [...document.querySelectorAll("[data-answer]")].map(one => one.innerHTML).join()"""


@pytest.fixture
def comparison(project: Project, carol: User) -> Comparison:
    """A pair with three spans, a critique, missing information and a preference suggested."""
    project.ask_critique = True
    project.save()
    switch_on(project, carol)
    made = compare(project, [TEXT, "Another one."])
    missing = span(made, QUOTES[0])
    suggest(
        made,
        *(span(made, quote, confidence=0.8) for quote in QUOTES),
        SuggestionInput(
            kind=SuggestionKind.CRITIQUE, completion_id=missing.completion_id, text="It is short."
        ),
        SuggestionInput(
            kind=SuggestionKind.MISSING,
            completion_id=missing.completion_id,
            category_id=project.categories.get(key="missing").pk,
            text="How long it steeps",
        ),
        prefers(made, (2, 1), text="The other is shorter."),
    )
    return made


def first_pass(page: Page) -> None:
    """Submit that both are equal, and wait for the suggestions and what draws them."""
    expect(page.locator("form#judgment")).to_be_visible()
    page.keyboard.press("=")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#help")).to_be_visible()
    expect(page.locator("[data-suggestion]").first).to_be_focused()


def test_suggestions_are_walked_and_decided_by_keyboard_alone(
    comparison: Comparison, alice: User, open_as: Open, barriers: Axe
):
    page = open_as(alice, LABEL)
    first_pass(page)
    markup = page.evaluate(_MARKUP)
    # Drawn by the browser on the very text, and the page's elements are as they were.
    assert page.evaluate(_RANGES, "suggestion") == list(SEEN)
    assert page.evaluate(_RANGES, "suggestion-focused") == [SEEN[0]]
    page.keyboard.press("ArrowDown")
    assert page.evaluate(_RANGES, "suggestion-focused") == [SEEN[1]]
    assert page.evaluate(_MARKUP) == markup
    assert barriers(page) == []
    page.set_viewport_size({"width": 1400, "height": 900})
    page.keyboard.press("ArrowUp")
    # Accept the first span, reject the second, accept the third and make it shorter.
    page.keyboard.press("y")
    expect(page.locator("#announcer")).to_contain_text("Accepted. Decide on the suggestions: 5 are left.")
    assert page.locator(".flags q").all_inner_texts() == [QUOTES[0]]
    assert page.evaluate(_RANGES, "suggestion") == list(SEEN[1:])
    page.keyboard.press("n")
    page.keyboard.press("o")
    expect(page.locator(".flag:focus")).to_contain_text("x")
    expect(page.locator("[data-edits-mark]")).to_be_visible()
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".flags q").last).to_have_text("x\u0308y̆")
    # The key leads back to the next one without a decision, from wherever one is.
    page.keyboard.press(".")
    page.keyboard.press("y")
    expect(page.locator(".candidate", has_text="cafe").locator(".critique textarea")).to_have_value(
        "It is short."
    )
    page.keyboard.press("n")
    # With one left it cannot be submitted, and the page says so.
    page.keyboard.press("Control+Enter")
    expect(page.locator("#submit-status")).to_contain_text("1 is left")
    page.keyboard.press("y")
    expect(page.locator('input[name="choice"]:checked')).to_have_value(
        page.evaluate("JSON.parse(document.querySelector('#screen-data').textContent).suggestions[5].choice")
    )
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()
    final = Judgment.objects.current().get()
    assert [flag.quote for flag in final.span_flags.order_by("start")] == [QUOTES[0], "x\u0308y̆"]
    assert final.verdict == "ranked"
    assert [critique.text for critique in final.critiques.all()] == ["It is short."]
    assert final.missing_info.count() == 0
    reveal = HelpReveal.objects.get()
    assert [decision.decision for decision in reveal.decisions.order_by("suggestion")] == [
        *("accepted", "rejected", "changed", "accepted", "rejected", "accepted")
    ]
    assert all(decision.seconds is not None and decision.seconds >= 0 for decision in reveal.decisions.all())
    first = reveal.first_judgment
    assert (first.verdict, first.span_flags.count()) == ("equal", 0)


def test_a_browser_without_highlights_draws_boxes_above_the_same_text(
    comparison: Comparison, alice: User, open_as: Open
):
    page = open_as(alice, "/projects/tea/")
    page.add_init_script("delete globalThis.Highlight")
    page.goto(page.url + "label/")
    first_pass(page)
    markup = page.evaluate(_MARKUP)
    boxes = page.locator(".help-boxes .suggestion")
    until(page, "() => document.querySelectorAll('.help-boxes .suggestion').length >= 3")
    box, around = boxes.first.bounding_box(), page.locator("[data-answer]", has_text="cafe").bounding_box()
    assert box is not None
    assert around is not None
    assert around["x"] <= box["x"] < around["x"] + around["width"]
    assert around["y"] <= box["y"] < around["y"] + around["height"]
    page.keyboard.press("n")
    page.keyboard.press("n")
    page.keyboard.press("n")
    expect(boxes).to_have_count(0)
    assert page.evaluate(_MARKUP) == markup


def test_a_page_that_is_opened_again_has_the_decisions_and_what_they_took_over(
    comparison: Comparison, alice: User, open_as: Open
):
    page = open_as(alice, LABEL)
    first_pass(page)
    page.keyboard.press("y")
    page.keyboard.press("n")
    expect(page.locator("[data-saved]")).to_contain_text("saved")
    again = open_as(alice, LABEL)
    expect(again.locator("[data-help-left]")).to_have_text("4")
    assert again.locator(".flags q").all_inner_texts() == [QUOTES[0]]
    # Taken back, the span goes again.
    again.locator("[data-suggestion]").first.focus()
    again.keyboard.press("n")
    expect(again.locator(".flags q")).to_have_count(0)


def test_managers_see_the_effect_of_help_in_every_look(
    project: Project, alice: User, bob: User, carol: User, open_as: Open, barriers: Axe
):
    set_suggestions(
        project=project,
        by=carol,
        is_active=True,
        checkpoint=register_starter(name="starter"),
        control_share=0.5,
    )
    # Arms are drawn: of fourteen items five in each were not certain.
    for _ in range(30):
        # What was wrong on purpose is believed: help lowers the accuracy.
        gold = factories.make_gold_item(project, (1, 2))
        [wrong] = suggest(gold, prefers(gold, (2, 1), original={"ranks": {}}))
        for person in (alice, bob):
            judgment = judge_gold(gold, person)
            reveal = judgment.help_after
            if reveal.arm == "helped":
                finish(reveal, person, ranking(gold, (2, 1), active_seconds=9), {wrong.pk: "accepted"})
    page = open_as(carol, "/projects/tea/suggestions/")
    expect(page.get_by_role("alert").last).to_contain_text("Help lowers accuracy: Gold accuracy")
    row = page.locator("tr", has_text="Planted errors rejected")
    expect(row).to_contain_text("0.0")
    assert barriers(page) == []


def judge_gold(gold: Comparison, person: User) -> Judgment:
    """A right first pass of a gold item, as the person is given it."""
    order = list(gold.candidates.order_by("index").values_list("completion_id", flat=True))
    assignment = Assignment.objects.create(
        comparison=gold,
        annotator=person,
        display_order=order,
        leased_at=timezone.now(),
        lease_expires_at=timezone.now() + timedelta(hours=1),
    )
    return submit_judgment(
        assignment=assignment,
        annotator=person,
        answer=ranking(gold, (1, 2), active_seconds=20),
        idempotency_key=uuid.uuid4(),
    )
