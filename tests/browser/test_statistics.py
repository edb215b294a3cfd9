"""The manager's statistics in a real browser: reached, read, narrowed, and followed with the keyboard."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from annotation.models import Comparison, Project, User
from tests import factories
from tests.annotation.statistics_scene import busy_project

pytestmark = pytest.mark.django_db(transaction=True)
Open = Callable[..., Page]
Axe = Callable[[Page], list[str]]

WIDTHS = [1400, 768, 360]


@pytest.fixture
def busy(project: Project, alice: User, bob: User) -> Project:
    busy_project(project, [alice, bob, factories.make_user("dora", first_name="Dora", last_name="Lange")])
    return project


def addresses(project: Project) -> list[str]:
    judged = Comparison.objects.filter(project=project, judgments__span_flags__isnull=False).first()
    home = f"/projects/{project.slug}"
    return [
        f"{home}/statistics/",
        f"{home}/statistics/items/?show=disagree",
        f"{home}/items/{judged.pk}/",
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing_and_no_page_is_wider_than_its_window(
    scheme: str, width: int, busy: Project, carol: User, open_as: Open, axe: Axe
):
    page = open_as(carol, "/", viewport={"width": width, "height": 900}, color_scheme=scheme)
    for address in addresses(busy):
        page.goto(page.evaluate("location.origin") + address)
        page.eval_on_selector_all("main details", "all => all.forEach(one => one.open = true)")
        assert axe(page) == []
        wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wider <= 0, address


def test_a_manager_goes_from_a_number_to_a_comparison_with_the_keyboard(
    busy: Project, carol: User, open_as: Open
):
    page = open_as(carol, f"/projects/{busy.slug}/")
    page.get_by_role("link", name="Statistics").focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/statistics/$"))
    row = page.get_by_role("row", name="Percent agreement on pairs")
    row.get_by_role("link").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Comparisons")
    expect(page.locator("#id_show")).to_have_value("disagree")
    page.locator("table a").first.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Judgments")).to_be_visible()


def test_the_selectors_work_without_javascript(busy: Project, carol: User, open_as: Open):
    page = open_as(carol, f"/projects/{busy.slug}/statistics/", java_script_enabled=False)
    page.get_by_label("Round", exact=True).select_option("2")
    page.get_by_role("button", name="Show").click()
    assert "round=2" in page.url
    expect(page.locator("#id_round")).to_have_value("2")
    expect(page.get_by_role("region", name="Agreement by round").get_by_role("row")).to_have_count(2)


def test_a_wide_table_can_be_reached_and_scrolled_with_the_keyboard(
    busy: Project, carol: User, open_as: Open
):
    page = open_as(carol, f"/projects/{busy.slug}/statistics/", viewport={"width": 360, "height": 800})
    table = page.get_by_role("region", name="Annotators", exact=True)
    table.focus()
    assert table.evaluate("one => one.scrollWidth > one.clientWidth")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("one => one.scrollLeft > 0", arg=table.element_handle())
