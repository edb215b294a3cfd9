"""The guide in Chromium: read, searched as one types, its pictures by theme, reached by the "?" of a page."""

import re

import pytest
from playwright.sync_api import expect

from annotation.models import Project, User
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
