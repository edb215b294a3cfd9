"""The manager's statistics in a real browser: reached, read, narrowed, and followed with the keyboard."""

import re
from threading import Thread
from typing import Any

import pytest
from django.db import connections
from django.utils import timezone
from playwright.sync_api import expect

from annotation.choices import Role
from annotation.models import Comparison, Membership, Project, User
from annotation.statistics import page as statistics_page
from annotation.statistics.page import MOST_IN_MAP
from annotation.tasks import compute_report
from tests import factories
from tests.annotation.statistics.statistics_scene import busy_project
from tests.browser.conftest import Axe, Open, until, until_loaded
from training.choices import RoundState
from training.models import Checkpoint, Round
from training.services.checkpoints import register_starter

pytestmark = pytest.mark.django_db(transaction=True)


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
        f"{home}/items/{judged.pk}/?view=side",
        f"{home}/annotators/",
        f"{home}/pay/",
        f"{home}/annotators/{judged.judgments.first().annotator_id}/",
    ]


def test_axe_finds_nothing_and_no_page_is_wider_than_its_window(
    busy: Project, carol: User, open_as: Open, barriers: Axe
):
    page = open_as(carol, "/")
    for address in addresses(busy):
        page.goto(page.evaluate("location.origin") + address)
        page.eval_on_selector_all("main details", "all => all.forEach(one => one.open = true)")
        assert barriers(page) == [], address


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
    expect(page.get_by_role("heading", name="Annotations")).to_be_visible()


def test_a_wide_table_can_be_reached_and_scrolled_with_the_keyboard(
    busy: Project, carol: User, open_as: Open
):
    page = open_as(carol, f"/projects/{busy.slug}/statistics/", viewport={"width": 360, "height": 800})
    table = page.get_by_role("region", name="Annotators", exact=True)
    table.focus()
    assert table.evaluate("one => one.scrollWidth > one.clientWidth")
    page.keyboard.press("ArrowRight")
    until(page, "one => one.scrollLeft > 0", table.element_handle())


def test_the_letters_of_one_annotator_are_chosen_with_the_keyboard_and_without_javascript(
    busy: Project, alice: User, carol: User, open_as: Open
):
    comparison = Comparison.objects.filter(judgments__annotator=alice, size=2, purpose="work").first()
    address = f"/projects/{busy.slug}/items/{comparison.pk}/"
    page = open_as(carol, address)
    entry = page.get_by_role("link", name="alice", exact=True)
    entry.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".switch [aria-current]")).to_have_text("alice")
    expect(page).to_have_url(re.compile(f"view=a{alice.pk}$"))
    # The part of the page was replaced; the focus stays on the entry.
    expect(page.locator(f"#view-a{alice.pk}")).to_be_focused()
    expect(page.locator("#responses .letter")).to_have_text(["A", "B"])
    plain = open_as(carol, address, java_script_enabled=False)
    plain.get_by_role("link", name="alice", exact=True).click()
    expect(plain.locator("#responses .letter")).to_have_text(["A", "B"])


def test_a_manager_goes_from_the_heat_map_to_a_person_and_their_annotation_with_the_keyboard(
    busy: Project, alice: User, carol: User, open_as: Open
):
    page = open_as(carol, f"/projects/{busy.slug}/annotators/")
    heat = page.get_by_role("region", name="Agreement two by two")
    heat.get_by_role("row", name="alice").get_by_role("link", name="alice").focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"/annotators/{alice.pk}/$"))
    page.get_by_role("region", name="Annotations", exact=True).get_by_role("link").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".switch [aria-current]")).to_have_text("alice")


def test_tables_of_rounds_and_annotators_fit_into_a_page_of_1400_px(
    project: Project, carol: User, open_as: Open, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(statistics_page, "FEWEST_SHARED", 1)
    project.overlap = MOST_IN_MAP
    project.save()
    people = [factories.make_user(f"annotator-of-team-{number:02}") for number in range(MOST_IN_MAP)]
    for person in people:
        Membership.objects.create(project=project, user=person, role=Role.ANNOTATOR)
    comparison = factories.make_comparison(project)
    for number, person in enumerate(people):
        factories.make_judgment(comparison, person, (1, 2) if number % 3 else (2, 1))
    policy = register_starter()
    Checkpoint.objects.filter(pk=policy.pk).update(name="tea-for-customers-round-12-policy")
    started = timezone.now()
    for number in range(1, 4):
        Round.objects.create(
            project=project,
            number=number,
            policy=policy,
            state=RoundState.NOT_ENOUGH_EVIDENCE,
            started_at=started,
            finished_at=started,
        )
    page = open_as(carol, "/projects/tea/annotators/")
    expect(page.locator(".heat tbody tr")).to_have_count(MOST_IN_MAP)
    for path in ("/projects/tea/annotators/", "/projects/tea/rounds/", "/projects/tea/"):
        page.goto("/".join(page.url.split("/")[:3]) + path)
        until_loaded(page)
        wider = page.evaluate(
            """() => [document.documentElement, ...document.querySelectorAll(".table-scroll, .scroll-x")]
            .filter((element) => element.scrollWidth > element.clientWidth)
            .map((element) => `${element.className}: ${element.scrollWidth - element.clientWidth} px`)"""
        )
        assert wider == [], path


def test_own_work_leads_to_the_labelling_screen_with_the_keyboard(
    busy: Project, alice: User, open_as: Open, barriers: Axe
):
    busy.gold_feedback = True
    busy.save()
    page = open_as(alice, f"/projects/{busy.slug}/my-work/")
    assert barriers(page) == []
    page.get_by_role("link", name="Change the annotation of").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("form#judgment")).to_be_visible()


def compute_elsewhere(task: str, *arguments: Any) -> bool:
    """A worker: another thread."""

    def compute() -> None:
        compute_report(*arguments)
        connections.close_all()

    Thread(target=compute).start()
    return True


@pytest.mark.parametrize("path", ["statistics", "annotators"])
def test_the_figures_of_a_large_project_come_after_the_page(
    path: str, busy: Project, carol: User, open_as: Open, axe: Axe, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("annotation.statistics.cached.LARGE", 2)
    monkeypatch.setattr("annotation.services.quality.send", compute_elsewhere)
    page = open_as(carol, f"/projects/{busy.slug}/{path}/")
    # The page that waits has put the figures in its place, and the address is the same.
    expect(page.get_by_role("region", name="Annotators", exact=True)).to_be_visible()
    expect(page.get_by_text("Computing figures")).to_have_count(0)
    expect(page).to_have_url(re.compile(f"/{path}/$"))
    assert axe(page) == []


def test_all_rows_of_a_page_are_selected_at_once_and_the_actions_come_in_sight(
    project: Project, carol: User, open_as: Open, barriers: Axe
):
    for number in range(40):
        factories.make_comparison(project, question=f"How hot is tea {number}?")
    page = open_as(carol, "/projects/tea/data/comparisons/")
    expect(page.get_by_role("button", name="Re-queue")).not_to_be_in_viewport()
    expect(page.locator("#filter-state")).to_be_hidden()
    page.get_by_label("Select all rows of this page").check()
    expect(page.get_by_role("button", name="Re-queue")).to_be_in_viewport()
    rows = page.locator('input[name="chosen"]')
    assert all(row.is_checked() for row in rows.all())
    rows.first.uncheck()
    expect(page.get_by_label("Select all rows of this page")).not_to_be_checked()
    page.locator("#filters > summary").click()
    page.locator("#filter-state").select_option(index=1)
    until_loaded(page)
    assert barriers(page) == []


@pytest.mark.parametrize("table", ["prompts", "comparisons", "annotations", "responses"])
def test_filters_swaps_and_bulk_actions_of_the_data_browser_write_no_error_to_the_console(
    busy: Project, carol: User, open_as: Open, table: str
):
    # The page's fixture fails on any error there; a violation of the policy is one.
    page = open_as(carol, f"/projects/{busy.slug}/data/{table}/")
    rows = page.locator("#rows tbody tr")
    expect(rows.first).to_be_visible()
    page.locator("#filters > summary").click()
    for field in page.locator("#filters select:not(#conditions select)").all():
        if field.locator("option").count() > 1:
            with page.expect_response(f"**/data/{table}/?*"):
                field.select_option(index=1)
            with page.expect_response(f"**/data/{table}/?*"):
                field.select_option(index=0)
    with page.expect_response(f"**/data/{table}/?*text=tea*"):
        page.locator("#text").fill("tea")
    with page.expect_response(f"**/data/{table}/?*"):
        page.locator("#text").fill("")
    expect(rows.first).to_be_visible()
    page.locator("summary", has_text="Columns").click()
    with page.expect_response(f"**/data/{table}/?*columns=*"):
        page.locator("input[name=columns]").last.click()
    until_loaded(page)
    page.locator(".table__sort").last.click()
    expect(page.locator("th[aria-sort]")).to_have_count(1)
    for action in page.locator("button[name=action]:not([value=export])").all()[:1]:
        page.locator("[data-selects-all]").check()
        action.click()
        until_loaded(page)
        page.go_back()
    until_loaded(page)
