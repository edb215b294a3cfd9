"""What the accessibility statement of the guide promises beyond axe and the keyboard."""

from typing import Literal

import pytest
from playwright.sync_api import Locator, Page, expect
from pytest_django.live_server_helper import LiveServer

from annotation.models import User
from tests.browser.conftest import Open
from tests.browser.labelling_scene import LABEL, drag_over

PAGES_OF_A_MANAGER = (
    "/projects/tea/",
    "/projects/tea/data/comparisons/",
    "/projects/tea/statistics/",
    "/projects/tea/settings/questions/",
    "/projects/tea/rounds/",
    "/guide/",
)

SPACED = """
* { line-height: 1.5 !important; letter-spacing: 0.12em !important; word-spacing: 0.16em !important; }
p { margin-bottom: 2em !important; }
"""
"""Text as WCAG 2.2, 1.4.12, says that people may space it."""


def look(element: Locator) -> tuple[str, ...]:
    """Colours and borders that are drawn where the system forces its own."""
    names = ["color", "backgroundColor", "borderBottomWidth", "borderBottomStyle"]
    return tuple(element.evaluate("(e, names) => names.map((name) => getComputedStyle(e)[name])", names))


def overflow(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_under_forced_colours_one_sees_what_is_chosen_marked_and_current(
    scheme: Literal["light", "dark"], items, alice: User, carol: User, open_as: Open
):
    page = open_as(alice, LABEL, forced_colors="active", color_scheme=scheme)
    page.keyboard.press("p")
    drag_over(page, "Boil the water")
    page.keyboard.press("i")
    page.keyboard.press("2")
    chosen = page.locator(".option input:checked + .option__face")
    others = page.locator(".option--step input:not(:checked) + .option__face")
    expect(chosen).to_have_count(1)
    assert look(chosen)[:2] not in {look(other)[:2] for other in others.all()}
    flag = page.locator(".flag")
    assert look(flag)[2:] == ("2px", "solid")
    page = open_as(carol, "/projects/tea/data/comparisons/", forced_colors="active", color_scheme=scheme)
    for kind in (".sidebar__link", ".tabs__tab"):
        current, other = page.locator(f"{kind}[aria-current]"), page.locator(f"{kind}:not([aria-current])")
        assert look(current)[1] != look(other.first)[1]


def test_at_four_times_the_size_no_page_scrolls_in_two_directions(
    items, carol: User, open_as: Open, live_server: LiveServer
):
    # 1280 pixels at 400 %: WCAG 2.2, 1.4.10.
    wide = {}
    page = open_as(carol, "/", viewport={"width": 320, "height": 256}, device_scale_factor=4)
    for path in PAGES_OF_A_MANAGER:
        page.goto(live_server.url + path)
        wide[path] = overflow(page)
    assert wide == dict.fromkeys(PAGES_OF_A_MANAGER, 0)


def test_text_may_be_spaced(items, carol: User, open_as: Open, live_server: LiveServer):
    page = open_as(carol, "/")
    wide = {}
    for path in PAGES_OF_A_MANAGER:
        page.goto(live_server.url + path)
        page.evaluate("document.adoptedStyleSheets = [new CSSStyleSheet()]")
        page.evaluate("(css) => document.adoptedStyleSheets[0].replaceSync(css)", SPACED)
        wide[path] = (overflow(page), clipped(page))
    assert wide == dict.fromkeys(PAGES_OF_A_MANAGER, (0, []))


def clipped(page: Page) -> list[str]:
    """Buttons and labels whose text is cut off."""
    found: list[str] = page.evaluate(
        """() => [...document.querySelectorAll("button, label, .button")]
          .filter((e) => getComputedStyle(e).overflow === "hidden" && e.scrollWidth > e.clientWidth + 1)
          .filter((e) => e.getBoundingClientRect().width > 2)
          .map((e) => e.textContent.trim())"""
    )
    return found
