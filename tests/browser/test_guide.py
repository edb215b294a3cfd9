"""The guide in Chromium: read, searched as one types, its pictures by theme, reached by the "?" of a page."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image, ImageStat
from playwright.sync_api import expect

from annotation.models import Project, User
from tests.architecture.test_house import ROOT
from tests.browser.conftest import Axe, Open
from tests.webapp.running import free_port

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


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_script_takes_every_picture_of_the_guide_anew_in_both_themes(tmp_path: Path):
    """From a demo project of its own, as `make screenshots` does."""
    command = [sys.executable, ".ci/screenshots.py", "--into", str(tmp_path / "pictures")]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("RONDO_", "DJANGO_"))
    }
    completed = subprocess.run(
        command,
        cwd=ROOT,
        env={**environment, "RONDO_SCREENSHOT_PORT": str(free_port())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    assert "TOO WIDE" not in completed.stdout
    pictures = {path.name: path for path in (tmp_path / "pictures").iterdir()}
    committed = {path.name: path for path in (ROOT / "static" / "guide").iterdir()}
    # Plots of benchmarks and the walks of the architecture page come from other scripts.
    plots = ("acquisition-", "hours-", "loop-", "walk-")
    assert set(pictures) == {name for name in committed if not name.startswith(plots)}
    for name, path in pictures.items():
        ours, theirs = (Image.open(picture).convert("L") for picture in (path, committed[name]))
        assert ours.size == theirs.size, name
        shades = ImageStat.Stat(ours)
        assert shades.stddev[0] > 8, name
        assert shades.mean[0] > 200 if name.endswith("-light.webp") else shades.mean[0] < 60, name
