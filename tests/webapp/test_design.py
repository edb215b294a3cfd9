"""Colours of the design: every text colour can be read on every surface, in both themes."""

import re
from pathlib import Path

import pytest

from webapp.navigation.pages import COLOURS, SPACES, SURFACES

BASE = Path(__file__).resolve().parents[2] / "static" / "css" / "base.css"
_PAIR = re.compile(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);")
READABLE = 4.5
"""WCAG 2.2, 1.4.3: contrast of text."""


def tokens() -> dict[str, tuple[str, str]]:
    return {name: (light, dark) for name, light, dark in _PAIR.findall(BASE.read_text(encoding="utf-8"))}


def luminance(colour: str) -> float:
    """Relative luminance as WCAG defines it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_that_of_the_standard():
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    # The usual example of a grey that just fails on white, and the next that holds.
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)
    assert contrast("#767676", "#ffffff") > READABLE


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("colour", COLOURS)
def test_every_colour_of_text_can_be_read_on_every_surface(colour: str, surface: str, theme: int):
    known = tokens()
    assert contrast(known[colour][theme], known[surface][theme]) >= READABLE


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("status", ["accent", "good", "warn", "bad"])
def test_every_status_can_be_read_on_its_own_soft_ground(status: str, theme: int):
    known = tokens()
    assert contrast(known[status][theme], known[f"{status}-soft"][theme]) >= READABLE


def test_every_space_is_a_multiple_of_four_pixels():
    text = BASE.read_text(encoding="utf-8")
    sizes = [16 * float(re.search(rf"--s{number}: ([\d.]+)rem;", text)[1]) for number in SPACES]
    assert sizes == [4, 8, 12, 16, 24, 32, 48, 64]


def test_the_admin_has_the_colours_of_the_pages():
    of_pages = tokens()
    of_admin = _PAIR.findall((BASE.parent / "admin.css").read_text(encoding="utf-8"))
    shared = {name: (light, dark) for name, light, dark in of_admin if name in of_pages}
    assert len(shared) == 16
    assert shared == {name: of_pages[name] for name in shared}
