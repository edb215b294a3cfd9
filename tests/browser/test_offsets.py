"""In real Chromium: what is selected on the page is what Python cuts out of the stored text."""

import json
import random
from typing import Any

import pytest
from playwright.sync_api import Page as BrowserPage
from playwright.sync_api import expect

from annotation.models import Assignment, Completion, Project, User
from annotation.services.assignments.display_order import tokens_of
from annotation.text.identity import text_hash
from annotation.text.rendering import render_answer
from tests import factories
from tests.annotation.labelling.texts import markdown_text, plain_text
from tests.annotation.text.browser_model import Page, span_of, units
from tests.browser.conftest import Axe, Open

LABEL = "/projects/tea/label/"

# Selects by UTF-16 indices into an answer's textContent, marks with the marker's own button, and tells
# which mark came. What exists already cuts the text into more nodes, as it does for people.
_MARK = """([token, from, to]) => {
  const answer = document.querySelector(`[data-answer="${token}"]`);
  const walker = document.createTreeWalker(answer, NodeFilter.SHOW_TEXT);
  const ends = [from, to].map(() => null);
  let before = 0;
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (!ends[0] && from < before + node.length) ends[0] = [node, from - before];
    if (!ends[1] && to <= before + node.length) ends[1] = [node, to - before];
    before += node.length;
  }
  const field = document.querySelector('input[name="span_flags"]');
  const known = new Set(JSON.parse(field.value || "[]").map((flag) => JSON.stringify(flag)));
  document.activeElement?.blur();
  getSelection().setBaseAndExtent(...ends[0], ...ends[1]);
  document.querySelector(".marker [data-marks]").click();
  getSelection().removeAllRanges();
  return JSON.parse(field.value || "[]").filter((flag) => !known.has(JSON.stringify(flag)));
}"""
_FORGET = """() => {
  for (let button; (button = document.querySelector("[data-removes-flag]")); ) button.click();
}"""


def put_on_screen(project: Project, texts: list[str], user: User, open_as: Open) -> tuple[BrowserPage, Any]:
    """A ranking of these answers on someone's screen, and the stored text behind each token."""
    factories.make_comparison(project, texts)
    page = open_as(user, LABEL)
    expect(page.locator("[data-answer]")).to_have_count(len(texts))
    stored = {
        token: Completion.objects.get(pk=pk).text for token, pk in tokens_of(Assignment.objects.get()).items()
    }
    assert sorted(stored.values()) == sorted(texts)
    return page, stored


def texts_of(draw: random.Random) -> list[str]:
    """Nine answers, each different and none empty to the eye."""
    texts: set[str] = set()
    while len(texts) < 9:
        text = plain_text(draw) if draw.random() < 0.3 else markdown_text(draw)
        if Page(render_answer(text)).text.strip():
            texts.add(text)
    return sorted(texts)


@pytest.mark.parametrize("seed", range(4))
def test_the_browsers_span_is_the_models_and_stands_in_the_stored_text(
    project: Project, alice: User, open_as: Open, seed: int
):
    draw = random.Random(seed)
    page, stored = put_on_screen(project, texts_of(draw), alice, open_as)
    marked = 0
    for token, source in stored.items():
        model = Page(render_answer(source))
        assert page.locator(f'[data-answer="{token}"]').evaluate("e => e.textContent") == model.text
        size = units(model.text)
        previous: set[tuple[int, int]] = set()
        for number in range(16):
            start = draw.randrange(size)
            end = draw.randint(start + 1, size)
            expected = span_of(model, source, (start, end))
            flags = page.evaluate(_MARK, [token, start, end])
            if expected is None or expected in previous:
                assert flags == [], (source, start, end)
            else:
                (flag,) = flags
                assert (flag["start"], flag["end"]) == expected, (source, start, end)
                assert flag["quote"] == source[flag["start"] : flag["end"]]
                assert flag["text_hash"] == text_hash(source)
                previous.add(expected)
                marked += 1
            if number % 4 == 3:
                page.evaluate(_FORGET)
                previous.clear()
    assert marked > 60


FORMULAS = "Let $x_1 + \\frac{a}{b}$ be **so**, then\n\n$$\n\\sqrt{x_1} = 2\n$$\n\nand 😀 $y$."


def test_a_formula_is_marked_whole_by_mouse_and_by_keyboard(project: Project, alice: User, open_as: Open):
    page, _ = put_on_screen(project, [FORMULAS], alice, open_as)
    field = page.locator('input[name="span_flags"]')

    def quotes() -> list[str]:
        return [flag["quote"] for flag in json.loads(field.input_value())]

    fraction = page.locator("[data-answer] mfrac")
    box = fraction.bounding_box()
    page.mouse.move(box["x"] + 1, box["y"] + box["height"] * 0.25)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] + 1, box["y"] + box["height"] * 0.75, steps=4)
    page.mouse.up()
    page.keyboard.press("i")
    assert quotes() == ["$x_1 + \\frac{a}{b}$"]
    expect(page.locator(".formula > .flag > math")).to_have_count(1)

    answer = page.locator("[data-answer]")
    answer.focus()
    page.keyboard.press("ArrowRight")  # Let
    page.keyboard.press("ArrowRight")  # the formula, as one step
    page.keyboard.press("u")
    assert quotes() == ["$x_1 + \\frac{a}{b}$"] * 2
    page.locator("[data-removes-flag]").first.click()
    page.locator("[data-removes-flag]").first.click()
    assert quotes() == []
    expect(page.locator(".formula > math")).to_have_count(3)


def test_formulas_are_read_out_in_both_themes_and_scroll_inside_at_360_pixels(
    project: Project, alice: User, open_as: Open, axe: Axe
):
    wide = "$$" + " + ".join(f"\\frac{{x_{{{n}}}}}{{y_{{{n}}}}}" for n in range(24)) + "$$"
    factories.make_comparison(project, [FORMULAS, f"So:\n\n{wide}"])
    for scheme in ("light", "dark"):
        page = open_as(alice, LABEL, color_scheme=scheme, viewport={"width": 360, "height": 780})
        expect(page.locator("math")).to_have_count(4)
        assert axe(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.locator(".formula--wide").evaluate("e => e.scrollWidth > e.clientWidth")
        page.locator(".formula--wide").focus()
        assert page.evaluate("document.activeElement.matches('.formula--wide')")
        tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
        roles = [node["role"]["value"] for node in tree if not node["ignored"]]
        assert roles.count("MathMLMath") == 4
        assert "MathMLFraction" in roles
