"""The labelling screen and its neighbours: light to load, accessible in both themes, narrow enough."""

import gzip

import pytest
from playwright.sync_api import Request, expect

from annotation.models import Project, User
from annotation.services.texts import create_comparison
from tests import factories
from tests.browser.conftest import Axe, Open
from tests.browser.labelling_scene import LABEL, drag_over, only_ranking


def test_the_screen_is_light_and_asks_for_little(items, alice: User, open_as: Open):
    only_ranking(items)
    page = open_as(alice, "/projects/tea/guidelines/")
    page.wait_for_load_state("networkidle")
    bodies: dict[str, bytes] = {}

    def keep(request: Request) -> None:
        response = request.response()
        assert response is not None
        bodies[request.url] = response.body()

    page.on("requestfinished", keep)
    page.goto(page.url.replace("guidelines/", "label/"), wait_until="networkidle")
    # The typeface, the frame and the copy buttons are three of them.
    assert len(bodies) <= 12
    # WhiteNoise sends static files as collectstatic has compressed them; pages go as they are.
    sent = [gzip.compress(body) if "/static/" in url else body for url, body in bodies.items()]
    assert sum(map(len, sent)) < 100_000


def test_axe_finds_nothing_on_the_screen(
    items, project: Project, alice: User, open_as: Open, both_themes: Axe
):
    page = open_as(alice, LABEL)
    page.keyboard.press("p")
    drag_over(page, "Boil the water")
    page.keyboard.press("i")
    page.keyboard.press("m")
    page.keyboard.type("something")
    page.keyboard.press("Escape")
    page.keyboard.press("2")
    assert both_themes(page) == []
    page.keyboard.press("?")
    assert both_themes(page) == []
    page.keyboard.press("Escape")
    with page.expect_response("**/submit/"):
        page.keyboard.press("Enter")
    expect(page.locator(".candidate")).to_have_count(4)
    page.keyboard.type("ab=c")
    assert both_themes(page) == []
    page.keyboard.press("d")
    with page.expect_response("**/submit/"):
        page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()
    assert both_themes(page) == []


@pytest.mark.parametrize("width", [360, 768])
def test_the_screen_does_not_scroll_sideways(width: int, items, alice: User, open_as: Open):
    page = open_as(alice, LABEL, viewport={"width": width, "height": 740})
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(overflow) <= 0
    page.keyboard.press("p")
    page.keyboard.press("m")
    assert page.evaluate(overflow) <= 0
    page.keyboard.press("Escape")
    page.keyboard.press("0")
    with page.expect_response("**/submit/"):
        page.keyboard.press("Enter")
    expect(page.locator(".candidate")).to_have_count(4)
    assert page.evaluate(overflow) <= 0


def test_the_theme_that_was_chosen_stays_with_the_browser(alice: User, open_as: Open):
    page = open_as(alice, "/", color_scheme="light")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.get_by_label("Account of alice").click()
    page.get_by_role("button", name="Dark").click()
    dark = page.evaluate(background)
    assert dark != light
    page.reload()
    assert page.evaluate(background) == dark


def test_code_is_copied_by_its_button_and_the_text_of_the_response_stays(
    items, alice: User, open_as: Open, axe: Axe
):
    only_ranking(items)
    page = open_as(alice, LABEL, permissions=["clipboard-read", "clipboard-write"])
    card = page.locator(".candidate", has=page.locator("pre"))
    button = card.get_by_role("button", name="Copy the code")
    button.press("Enter")
    expect(card.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()").startswith("def minutes(celsius: float)")
    assert "Copy" not in card.locator("[data-answer]").text_content()
    assert axe(page) == []


@pytest.mark.parametrize("width", [1400, 768])
def test_a_badge_does_not_shift_the_text_of_one_card(
    project: Project, alice: User, open_as: Open, width: int
):
    prompt = factories.make_prompt(project, "Which tea?")
    completions = factories.make_completions(prompt, ["A.", "B.", "C.", "D."], truncated={1})
    create_comparison(prompt=prompt, completions=completions, round_number=1)
    page = open_as(alice, LABEL, viewport={"width": width, "height": 900})
    expect(page.locator(".candidate__head .badge")).to_be_visible()
    heights = {box.bounding_box()["height"] for box in page.locator(".candidate__head").all()}
    assert len(heights) == 1


def test_a_paragraph_from_right_to_left_runs_from_right_to_left(project: Project, alice: User, open_as: Open):
    factories.make_comparison(project, ["שלום עולם", "Hello, world"])
    page = open_as(alice, LABEL)
    for text, direction in (("שלום", "rtl"), ("Hello", "ltr")):
        paragraph = page.locator(".answer-text p", has_text=text)
        assert paragraph.evaluate("element => getComputedStyle(element).direction") == direction
