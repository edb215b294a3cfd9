"""Spans marked in a real browser, with the mouse and with the keyboard alone."""

import re

from playwright.sync_api import expect

from annotation.models import SpanFlag, User
from tests.browser.conftest import Open
from tests.browser.content import ANSWERS
from tests.browser.labelling_scene import LABEL, drag_over, only_ranking, shown_order


def test_spans_are_marked_with_the_mouse_and_stored_in_code_points(items, alice: User, open_as: Open):
    only_ranking(items)
    page = open_as(alice, LABEL)
    drag_over(page, "cooled a little 🍵")
    page.keyboard.press("u")
    expect(page.locator(".flag").first).to_have_text("cooled a little 🍵")
    drag_over(page, "minutes(celsius: float)")
    page.get_by_role("button", name="Irrelevant").click()
    drag_over(page, "about   the tea")
    page.keyboard.press("i")
    page.keyboard.press("-")
    with page.expect_response("**/submit/"):
        page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()
    stored = {(f.completion.text, f.category.key): f for f in SpanFlag.objects.all()}
    for answer, category, quote in (
        (ANSWERS[0], "untruthful", "cooled a little 🍵"),
        (ANSWERS[2], "irrelevant", "minutes(celsius: float)"),
        (ANSWERS[3], "irrelevant", "about   the tea"),
    ):
        flag = stored[answer, category]
        assert (flag.start, flag.end, flag.quote) == (
            answer.index(quote),
            answer.index(quote) + len(quote),
            quote,
        )


def test_spans_are_marked_changed_and_removed_with_the_keyboard_alone(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    letter = next(letter for letter, text in shown_order().items() if text == ANSWERS[0])
    answer = page.locator(f'[data-letter="{letter}"] [data-answer]')
    answer.focus()
    # Steep | it | for | about | two: five steps, then two words more across the end of the bold text.
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("u")
    flags = page.locator(".flag[tabindex]")
    expect(flags).to_have_count(1)
    page.keyboard.press("Tab")
    expect(flags.first).to_be_focused()
    page.keyboard.press("i")
    expect(flags.first).to_be_focused()
    expect(flags.first).to_have_attribute("data-category", "irrelevant")
    # A second one over part of the first; both stay, and the first is then removed.
    answer.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("u")
    expect(flags).to_have_count(2)
    flags.first.focus()
    page.keyboard.press("Delete")
    expect(flags).to_have_count(1)
    page.keyboard.press("=")
    with page.expect_response("**/submit/"):
        page.keyboard.press("Enter")
    expect(page.get_by_text("2 of 2")).to_be_visible()
    flag = SpanFlag.objects.get()
    assert flag.category.key == "untruthful"
    assert flag.quote == ANSWERS[0][flag.start : flag.end]
    assert (flag.quote, flag.start) == ("water", ANSWERS[0].index("water"))


def test_a_quote_across_markup_is_the_source_between(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    letter = next(letter for letter, text in shown_order().items() if text == ANSWERS[0])
    page.locator(f'[data-letter="{letter}"] [data-answer]').focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    for _ in range(2):
        page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("u")
    page.keyboard.press("=")
    with page.expect_response("**/submit/"):
        page.keyboard.press("Enter")
    expect(page.get_by_text("2 of 2")).to_be_visible()
    flag = SpanFlag.objects.get()
    # Steep it for **about two minutes** in water: "two" begins at 21, "in" ends at 37.
    assert (flag.start, flag.end, flag.quote) == (21, 37, "two minutes** in")


def test_a_key_marks_what_is_selected_now_not_what_was_a_moment_ago(items, alice: User, open_as: Open):
    only_ranking(items)
    page = open_as(alice, LABEL)
    # The page has taken note of "Boil"; then the selection grows and the key follows in the same instant.
    select = """async ([first, last]) => {
      const answers = document.querySelector("#screen .candidates");
      const walker = document.createTreeWalker(answers, NodeFilter.SHOW_TEXT);
      const isIt = (text) => text.data.includes(first) && text.parentElement.closest("[data-answer]");
      while (walker.nextNode() && !isIt(walker.currentNode));
      const node = walker.currentNode;
      const from = node.data.indexOf(first);
      getSelection().setBaseAndExtent(node, from, node, from + first.length);
      await new Promise((done) => setTimeout(done, 300));
      getSelection().setBaseAndExtent(node, from, node, node.data.indexOf(last) + last.length);
      const key = { key: "u", bubbles: true, cancelable: true };
      document.body.dispatchEvent(new KeyboardEvent("keydown", key));
    }"""
    page.evaluate(select, ["Boil", "water"])
    expect(page.locator(".flag").first).to_have_text(re.compile("^Boil.*water$"))
