"""The page of components, and the density that a person chooses."""

import pytest
from playwright.sync_api import expect

from annotation.models import Project, User
from tests import factories
from tests.browser.conftest import Axe, Open

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_page_of_components_has_no_barrier(project: Project, alice: User, open_as: Open, barriers: Axe):
    page = open_as(alice, "/guide/design/")
    expect(page.get_by_role("heading", name="Components", exact=True)).to_be_visible()
    assert barriers(page) == []


def test_a_compact_page_has_lower_rows_and_stays_compact(project: Project, carol: User, open_as: Open):
    factories.make_comparison(project)
    page = open_as(carol, f"/projects/{project.slug}/data/comparisons/")
    row = page.locator("table.data tbody tr").first
    before = row.bounding_box()["height"]
    page.get_by_label("Account of carol").click()
    page.get_by_role("button", name="Compact").click()
    compact = row.bounding_box()["height"]
    # 4 px instead of 8, above and below.
    assert before - compact == pytest.approx(8)
    page.reload()
    assert row.bounding_box()["height"] == pytest.approx(compact)
    page.get_by_label("Account of carol").click()
    expect(page.get_by_role("button", name="Compact")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="Comfortable").click()
    assert row.bounding_box()["height"] == pytest.approx(before)
