"""The guide in Chromium: read, searched as one types, its pictures by theme, reached by the "?" of a page."""

import importlib.util
import re
from pathlib import Path

import pytest
from PIL import Image, ImageStat
from playwright.sync_api import expect

from annotation.models import Project, User
from tests import factories
from tests.architecture.test_house import ROOT
from tests.browser.conftest import Axe, Open

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_guide_is_reached_searched_and_read_without_a_barrier(
    project: Project, alice: User, open_as: Open, barriers: Axe
):
    page = open_as(alice, f"/projects/{project.slug}/my-work/")
    page.get_by_role("link", name="Help for this page").click()
    expect(page.get_by_role("heading", name="Label", exact=True)).to_be_visible()
    light, dark = (page.locator(f".guide__picture--{theme}").first for theme in ("light", "dark"))
    page.emulate_media(color_scheme="dark")
    expect(dark).to_be_visible()
    expect(light).to_be_hidden()
    assert barriers(page) == []
    page.emulate_media(color_scheme="light")
    expect(light).to_be_visible()
    page.set_viewport_size({"width": 1400, "height": 900})
    page.get_by_role("link", name="Guide", exact=True).click()
    assert barriers(page) == []
    page.get_by_label("Search the guide").press_sequentially("wilson")
    page.get_by_role("link", name=re.compile("Test-retest and gold")).click()
    expect(page.get_by_role("heading", name="Test-retest and gold")).to_be_in_viewport()
    assert page.url.endswith("/guide/explanation/statistics/#test-retest-and-gold")
    # Formulas, tables and code that are wider than a phone scroll by themselves.
    assert barriers(page) == []


def test_the_question_mark_at_a_setting_leads_to_its_row_by_keyboard(
    project: Project, carol: User, open_as: Open, barriers: Axe
):
    page = open_as(carol, f"/projects/{project.slug}/settings/")
    assert barriers(page) == []
    link = page.get_by_role("link", name="Help: Overlap", exact=True)
    page.get_by_label("Overlap", exact=True).press("Shift+Tab")
    expect(link).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("row", name=re.compile("^Overlap"))).to_be_in_viewport()
    assert page.url.endswith("/guide/reference/project-settings/#assignment-overlap")


def test_the_script_of_the_guides_pictures_takes_them_in_both_themes(
    carol: User, open_as: Open, tmp_path: Path
):
    """Those that need no simulated weeks: the demo itself is tested in tests/webapp/test_demo.py."""
    factories.make_comparison(factories.make_project(slug="demo", annotators=[carol], managers=[]))
    factories.make_project(slug="other", managers=[carol])
    specification = importlib.util.spec_from_file_location("screenshots", ROOT / ".ci" / "screenshots.py")
    assert specification is not None
    assert specification.loader is not None
    script = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(script)
    page = open_as(carol, "/guide/")
    address = page.url.removesuffix("/guide/")
    for name in ("labelling", "scaling"):
        script._one(page, address, name, script.SHOTS[name], tmp_path)
        sizes = {Image.open(ROOT / "static" / "guide" / f"{name}-light.webp").size}
        brightness = []
        for theme in ("light", "dark"):
            picture = Image.open(tmp_path / f"{name}-{theme}.webp")
            sizes.add(picture.size)
            brightness.append(ImageStat.Stat(picture.convert("L")).mean[0])
            assert ImageStat.Stat(picture.convert("L")).stddev[0] > 8
        assert len(sizes) == 1
        assert brightness[0] > 200 > 60 > brightness[1]
