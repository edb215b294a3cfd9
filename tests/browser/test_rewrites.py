"""Rewrites by the keyboard alone: a stretch typed again in place, and a model that continues from there."""

import re

import pytest
from playwright.sync_api import Page, expect

from annotation.models import Completion, Continuation, Correction, Judgment, Project, User
from annotation.services.judgments import drafts
from annotation.services.judgments.drafts import Written
from tests import factories
from tests.browser.conftest import Axe, Open
from tests.browser.keyboard import Keyboard

LABEL = "/projects/tea/label/"
TEXT = "Boil the **fresh water** 👩‍🏫 now, and wait a while."


class StubWriter:
    """Continues every response, with the number of the request in its text."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str, int]] = []

    def can_continue(self, completions: object) -> bool:
        return True

    def continue_response(self, completion: Completion, prefix: str, *, seed: int) -> Written:
        self.asked.append((completion.pk, prefix, seed))
        text = f" Pour 🍵 after {len(self.asked)} minutes."
        return Written(text=text, seed=seed, sampling={"temperature": 1.0}, finish_reason="stop")


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> StubWriter:
    """The model of these tests."""
    stub = StubWriter()
    monkeypatch.setattr(drafts, "_registered", [stub])
    return stub


@pytest.fixture
def pair(project: Project):
    """Two responses that begin alike, in a project that asks for corrections."""
    Project.objects.filter(pk=project.pk).update(ask_correction=True)
    return factories.make_comparison(project, [TEXT, TEXT + " Then pour."])


def select(page: Page, by: Keyboard, skip: int, words: int) -> None:
    """Select words of response A after skipping some."""
    page.locator("[data-answer]").first.focus()
    by.press(*["ArrowRight"] * (skip + 1), *["Shift+ArrowRight"] * (words - 1))


def submit(page: Page, by: Keyboard) -> Judgment:
    by.press("Escape", "=")
    with page.expect_response("**/submit/"):
        by.press("Control+Enter")
    judgment: Judgment = Judgment.objects.latest("pk")
    return judgment


def test_a_stretch_is_rewritten_continued_and_rewritten_further_on(
    pair, writer: StubWriter, alice: User, open_as: Open, barriers: Axe
):
    page = open_as(alice, LABEL)
    by = Keyboard(page)
    select(page, by, skip=2, words=2)
    by.press("y")
    field = page.get_by_label("Replacement")
    expect(field).to_be_focused()
    expect(field).to_have_value("fresh water")
    by.type("cold milk")
    by.reach(page.get_by_role("button", name="Untruthful"))
    by.press("Space")
    by.button("Let the model continue Ctrl ↵")
    expect(page.locator("[data-proposed]")).to_have_text(" Pour 🍵 after 1 minutes.")
    assert not barriers(page)
    page.set_viewport_size({"width": 1400, "height": 900})
    by.press("Control+Enter")
    expect(page.locator("[data-proposed]")).to_have_text(" Pour 🍵 after 2 minutes.")
    by.press("Enter")
    rewritten = page.locator("[data-rewritten-text]").first
    expect(rewritten).to_be_focused()
    expect(rewritten).to_have_text("Boil the **cold milk Pour 🍵 after 2 minutes.")
    # Further on, in the model's text: the last word is typed again by hand.
    by.press("ArrowLeft", "ArrowLeft", "y")
    expect(field).to_have_value("minutes")
    by.type("hours")
    by.press("Enter")
    expect(rewritten).to_have_text("Boil the **cold milk Pour 🍵 after 2 hours.")
    assert not barriers(page)
    judgment = submit(page, by)
    correction = Correction.objects.get()
    assert correction.text == "Boil the **cold milk Pour 🍵 after 2 hours."
    first, second = Continuation.objects.order_by("pk")
    assert [(pk, prefix) for pk, prefix, _seed in writer.asked] == [
        (correction.completion_id, "Boil the **cold milk")
    ] * 2
    assert first.seed != second.seed
    flag = judgment.span_flags.get()
    assert (flag.quote, flag.category.key) == ("fresh water", "untruthful")
    last = len(correction.completion.text)
    assert list(correction.edits.values_list("start", "end", "replacement", "continuation", "span_flag")) == [
        (11, 22, "cold milk", None, flag.pk),
        (22, last, " Pour 🍵 after 2 ", second.pk, None),
        (last, last, "hours", None, None),
        (last, last, ".", second.pk, None),
    ]


def test_without_a_model_the_rewrite_works_and_comes_back_with_the_draft(
    pair, monkeypatch: pytest.MonkeyPatch, alice: User, open_as: Open
):
    monkeypatch.setattr(drafts, "_registered", [])
    page = open_as(alice, LABEL)
    by = Keyboard(page)
    select(page, by, skip=0, words=1)
    by.press("y")
    expect(page.locator("[data-rewrite-note]")).to_have_text(
        "No model is served that could continue. Write the rest yourself."
    )
    expect(page.get_by_role("button", name="Let the model continue")).to_be_hidden()
    by.type("Cool")
    with page.expect_response("**/draft/"):
        by.press("Enter")
    expect(page.locator("[data-saved]")).to_contain_text("saved")
    begins = "Cool the **fresh water**"
    expect(page.locator("[data-rewritten-text]").first).to_contain_text(begins)
    # In another browser, which restores no fields by itself.
    page = open_as(alice, LABEL)
    by = Keyboard(page)
    expect(page.locator("[data-rewritten-text]").first).to_contain_text(begins)
    # What is typed into the edit field afterwards is one more edit; what was rewritten keeps its place.
    page.locator(".correction textarea").first.press("Control+End")
    by.type(" Done.")
    # Either response may be A, and one of them goes on after "while.".
    expect(page.locator("[data-rewritten-text]").first).to_have_text(re.compile(r"(while|pour)\. Done\.\s*$"))
    submit(page, by)
    edits = Correction.objects.get().edits.values_list("start", "end", "quote", "replacement")
    assert next(iter(edits)) == (0, 4, "Boil", "Cool")
    assert Correction.objects.get().text.endswith(" Done.")
