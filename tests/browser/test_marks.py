"""Marks in a real browser: made longer and shorter, said how severe, noted, one over the other."""

import pytest
from playwright.sync_api import Page, expect

from annotation.models import Category, Project, SpanFlag, User
from annotation.services.projects.project_questions import ask_split_again
from tests import factories
from tests.browser.conftest import Axe, Open

LABEL = "/projects/tea/label/"
TEXT = "Boil the **fresh water** 👩‍🏫 now, and wait a while."


@pytest.fixture
def pair(project: Project):
    """Two answers with the same text, so that it does not matter which is A."""
    return factories.make_comparison(project, [TEXT, TEXT + " Then pour."])


@pytest.fixture
def severe(pair, project: Project) -> Category:
    """Untruthful things have three steps of severity."""
    project.categories.filter(key="untruthful").update(severity_steps=3)
    project.save()
    return project.categories.get(key="untruthful")


def mark(page: Page, words: int, key: str = "u", skip: int = 0) -> None:
    """Mark so many words of answer A with the keyboard, after skipping some."""
    answer = page.locator("[data-answer]").first
    answer.focus()
    for _ in range(skip + 1):
        page.keyboard.press("ArrowRight")
    for _ in range(words - 1):
        page.keyboard.press("Shift+ArrowRight")
    before = page.locator(".flag[tabindex]").count()
    page.keyboard.press(key)
    expect(page.locator(".flag[tabindex]")).to_have_count(before + 1)


def quotes(page: Page) -> list[str]:
    return page.locator(".flags q").all_inner_texts()


def hold(page: Page, index: int = 0) -> None:
    """Put the focus on a mark, and wait for what changes it."""
    page.locator(".flag[tabindex]").nth(index).focus()
    expect(page.locator("[data-edits-mark]")).to_be_visible()


def test_both_ends_are_moved_with_the_keyboard(pair, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    mark(page, 2, skip=1)
    assert quotes(page) == ["the **fresh"]
    hold(page)
    page.keyboard.press("ArrowRight")
    assert quotes(page) == ["the **fresh water"]
    page.keyboard.press("Shift+ArrowLeft")
    assert quotes(page) == ["Boil the **fresh water"]
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert quotes(page) == ["Boil the"]
    # By a character, over a space, and never past the other end.
    page.keyboard.press("Alt+ArrowRight")
    assert quotes(page) == ["Boil the **f"]
    page.keyboard.press("Alt+Shift+ArrowRight")
    assert quotes(page) == ["oil the **f"]
    for _ in range(9):
        page.keyboard.press("Shift+ArrowRight")
    assert quotes(page) == ["f"]
    expect(page.locator(".flag[tabindex]")).to_be_focused()
    page.keyboard.press("=")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()
    flag = SpanFlag.objects.get()
    assert (flag.start, flag.end, flag.quote) == (11, 12, "f")


def test_an_emoji_of_many_parts_is_one_character(pair, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    mark(page, 1, skip=3)
    assert quotes(page) == ["water"]
    hold(page)
    page.keyboard.press("Alt+ArrowRight")
    assert quotes(page) == ["water** 👩‍🏫"]
    page.keyboard.press("Alt+ArrowRight")
    assert quotes(page) == ["water** 👩‍🏫 n"]
    page.keyboard.press("Alt+ArrowLeft")
    page.keyboard.press("Alt+ArrowLeft")
    assert quotes(page) == ["water"]


def place_of(page: Page, text: str, side: str) -> dict[str, float]:
    """Return the point on the page where the first occurrence of a text in answer A begins or ends."""
    place: dict[str, float] = page.evaluate(
        """([text, side]) => {
          const answer = document.querySelector("[data-answer]");
          const walker = document.createTreeWalker(answer, NodeFilter.SHOW_TEXT);
          while (walker.nextNode()) {
            const at = walker.currentNode.data.indexOf(text);
            if (at < 0) continue;
            const range = document.createRange();
            range.setStart(walker.currentNode, at);
            range.setEnd(walker.currentNode, at + text.length);
            const box = range.getBoundingClientRect();
            return { x: side === "start" ? box.left : box.right, y: box.top + box.height / 2 };
          }
        }""",
        [text, side],
    )
    return place


def drag_handle(page: Page, side: str, text: str) -> None:
    """Pull an end of the mark to the end (or the beginning) of a text, with the mouse."""
    box = page.locator(f'[data-handle="{side}"]').bounding_box()
    assert box is not None
    to = place_of(page, text, side)
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(to["x"], to["y"], steps=6)
    page.mouse.up()


def test_both_ends_are_pulled_with_the_mouse(pair, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    mark(page, 1, skip=1)
    hold(page)
    drag_handle(page, "end", "water")
    assert quotes(page) == ["the **fresh water"]
    drag_handle(page, "start", "fresh")
    assert quotes(page) == ["fresh water"]
    # An end never passes the other.
    drag_handle(page, "start", "while")
    assert quotes(page) == ["r"]
    page.keyboard.press("=")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()
    flag = SpanFlag.objects.get()
    assert (flag.quote, flag.start) == ("r", TEXT.index("water") + 4)


def test_how_severe_it_is_must_be_said_and_a_note_may(severe, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    mark(page, 1)
    page.keyboard.press("=")
    page.keyboard.press("Enter")
    status = page.locator("#submit-status")
    expect(status).to_have_text("Say how severe it is, 1 to 3: Untruthful in A, “Boil”.")
    mark_itself = page.locator(".flag[tabindex]")
    expect(mark_itself).to_be_focused()
    expect(page.get_by_role("group", name="Severity, 1 is the mildest")).to_be_visible()
    # On a mark the digits are its severity, not the verdict.
    page.keyboard.press("2")
    expect(page.get_by_role("button", name="Severity 2 of 3")).to_have_attribute("aria-pressed", "true")
    expect(page.locator('[data-key="="]').first).to_be_checked()
    page.keyboard.press("n")
    page.keyboard.type("not with tea")
    page.keyboard.press("Enter")
    expect(mark_itself).to_be_focused()
    expect(mark_itself).to_have_attribute("aria-label", "Untruthful, severity 2: Boil. not with tea")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()
    flag = SpanFlag.objects.get()
    assert (flag.severity, flag.note) == (2, "not with tea")


def test_severity_goes_with_a_category_that_has_no_steps(severe, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    mark(page, 1)
    hold(page)
    page.keyboard.press("3")
    expect(page.locator(".flags li")).to_contain_text("Untruthful 3")
    page.keyboard.press("i")
    expect(page.locator(".flags li")).to_contain_text("Irrelevant")
    expect(page.get_by_role("group", name="Severity, 1 is the mildest")).to_be_hidden()
    expect(page.locator(".flags li")).not_to_contain_text("3")


def test_overlapping_marks_are_each_reached_by_tab_and_by_clicks(pair, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    mark(page, 4)
    # The keyboard's selection stands on "water"; back to "fresh" and "the".
    page.locator("[data-answer]").first.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Shift+ArrowLeft")
    page.keyboard.press("i")
    assert quotes(page) == ["Boil the **fresh water", "the **fresh"]
    marks = page.locator(".flag[tabindex]")
    page.locator("[data-answer]").first.focus()
    page.keyboard.press("Tab")
    expect(marks.nth(0)).to_be_focused()
    page.keyboard.press("Tab")
    expect(marks.nth(1)).to_be_focused()
    expect(marks.nth(1)).to_have_attribute("data-category", "irrelevant")
    page.locator("[data-focus]").first.focus()
    at = place_of(page, "fresh", "start")
    page.mouse.click(at["x"] + 3, at["y"])
    expect(marks.nth(1)).to_be_focused()
    page.mouse.click(at["x"] + 3, at["y"])
    expect(marks.nth(0)).to_be_focused()


def test_two_marks_that_become_the_same_are_one(pair, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    mark(page, 1)
    mark(page, 2)
    assert quotes(page) == ["Boil", "the **fresh"]
    hold(page, 1)
    page.keyboard.press("Shift+ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert quotes(page) == ["Boil the", "Boil"]
    hold(page, 1)
    page.keyboard.press("ArrowRight")
    assert quotes(page) == ["Boil the"]


def test_a_mark_is_changed_with_the_buttons_of_a_phone(severe, alice: User, open_as: Open):
    page = open_as(alice, LABEL, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    # A long press selects; what it selects is what the buttons are about.
    page.evaluate(
        """() => {
          const leaf = document.querySelector("[data-answer] [data-start]").firstChild;
          getSelection().setBaseAndExtent(leaf, 0, leaf, 4);
        }"""
    )
    chip = page.get_by_role("button", name="Untruthful")
    expect(chip).to_be_visible()
    box = chip.bounding_box()
    assert box is not None
    assert box["height"] >= 44
    chip.tap()
    assert quotes(page) == ["Boil"]
    page.locator(".flag[tabindex]").tap()
    page.get_by_role("button", name="End one word later").tap()
    assert quotes(page) == ["Boil the"]
    page.get_by_role("button", name="Severity 1 of 3").tap()
    expect(page.locator(".flags li")).to_contain_text("Untruthful 1")
    page.get_by_label("Note on this span").fill("why")
    page.locator(".flag[tabindex]").tap()
    expect(page.locator(".flag[tabindex]")).to_have_attribute(
        "aria-label", "Untruthful, severity 1: Boil the. why"
    )
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_axe_finds_nothing_while_a_mark_is_changed(severe, alice: User, open_as: Open, both_themes: Axe):
    page = open_as(alice, LABEL)
    mark(page, 3)
    hold(page)
    assert both_themes(page) == []


@pytest.fixture
def divided(pair, project: Project, carol: User) -> Project:
    """Untruthful things are of two kinds, one of which asks for a note; and there is praise."""
    factories.make_category(
        project, "praise", shortcut="h", polarity="merit", position=7, colour="#15803d", needs_note=True
    )
    upper = project.categories.get(key="untruthful")
    for position, (key, shortcut) in enumerate((("invented", "f"), ("contradicts", "g")), start=8):
        factories.make_category(project, key, shortcut=shortcut, parent=upper, position=position)
    return project


def test_a_part_is_marked_by_its_key_and_a_merit_has_a_sign_and_needs_its_note(
    divided: Project, alice: User, open_as: Open, barriers: Axe
):
    page = open_as(alice, LABEL)
    mark(page, 1, key="f")
    mark(page, 1, key="h", skip=2)
    listed = page.locator(".flags").first
    expect(listed).to_contain_text("− Untruthful › Invented")
    expect(listed).to_contain_text("+ Praise")
    expect(page.get_by_role("group", name="A merit: Praise: ")).to_have_count(1)
    assert barriers(page) == []
    page.keyboard.press("=")
    page.keyboard.press("Enter")
    expect(page.locator("#submit-status")).to_contain_text("Write a note: Praise in A")
    hold(page, 1)
    note = page.locator("[data-note]")
    expect(note).to_have_attribute("placeholder", "Note (required)")
    page.keyboard.press("n")
    page.keyboard.type("so fresh")
    page.keyboard.press("Enter")
    # On the mark another key makes another part of it.
    hold(page, 0)
    page.keyboard.press("g")
    expect(listed).to_contain_text("− Untruthful › Contradicts")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()
    assert sorted(SpanFlag.objects.values_list("category__key", "note")) == [
        ("contradicts", ""),
        ("praise", "so fresh"),
    ]


def test_a_span_of_a_category_that_was_divided_comes_back_and_asks_for_a_part(
    pair, project: Project, alice: User, carol: User, open_as: Open
):
    page = open_as(alice, LABEL)
    mark(page, 1)
    page.keyboard.press("=")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()
    upper = project.categories.get(key="untruthful")
    factories.make_category(project, "invented", shortcut="f", parent=upper, position=8)
    ask_split_again(category=upper, asked_by=carol)
    page.goto(page.url)
    expect(page.get_by_text("Divided since you annotated this comparison: Untruthful.")).to_be_visible()
    page.keyboard.press("Control+Enter")
    expect(page.locator("#submit-status")).to_contain_text("Choose a sub-category: Untruthful in A")
    expect(page.locator(".flag[tabindex]")).to_be_focused()
    page.keyboard.press("f")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()
    assert SpanFlag.objects.filter(judgment__superseded_by__isnull=True).get().category.key == "invented"


def test_a_relation_is_made_with_the_keyboard_shown_and_removed(
    pair, project: Project, alice: User, open_as: Open, barriers: Axe
):
    project.ask_span_relations = True
    project.save()
    page = open_as(alice, LABEL)
    mark(page, 1)
    hold(page)
    # One alone has nothing to be related to.
    expect(page.locator("[data-relations]")).to_be_hidden()
    mark(page, 1, key="i", skip=2)
    hold(page, 1)
    page.get_by_role("button", name="Causes…").click()
    expect(page.locator("[data-relation-hint]")).to_contain_text("“water” causes …")
    page.keyboard.press("Escape")
    expect(page.locator("[data-relation-hint]")).to_be_empty()
    page.get_by_role("button", name="Contradicts…").click()
    page.locator(".flag[tabindex]").first.focus()
    page.keyboard.press("Enter")
    listed = page.locator(".flags").first
    expect(listed).to_contain_text("contradicts “Boil” in A")
    assert barriers(page) == []
    # By the mouse: a click on the other one.
    hold(page, 0)
    page.get_by_role("button", name="Causes…").click()
    page.locator(".flag[tabindex]").nth(1).click()
    expect(listed).to_contain_text("causes “water” in A")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Remove the relation: causes “water” in A").click()
    expect(listed).not_to_contain_text("causes")
    page.keyboard.press("=")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()
    flags = {flag.quote: flag.relations for flag in SpanFlag.objects.all()}
    assert flags["Boil"] is None
    [link] = flags["water"]
    assert (link["kind"], link["start"], link["end"]) == ("contradicts", 0, 4)
