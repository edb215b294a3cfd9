"""Tasks of people in Chromium, with the clicks that they take. Two more stand in test_models.py: the best run
in three clicks, and two checkpoints compared blind on a prompt set in four.
"""

from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from annotation.exchange import uploads
from annotation.models import Comparison, FileImport, Judgment, Project, User
from tests import factories
from tests.browser.conftest import Open

pytestmark = pytest.mark.django_db(transaction=True)


class Clicks:
    """A counter of somebody's clicks with the mouse. Typing into a field that has the focus is no click."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.number = 0

    def click(self, target: Locator) -> None:
        """Click, and count it."""
        self.number += 1
        target.click()

    def choose(self, label: str, option: str) -> None:
        """Choose an option of a list: one click."""
        self.number += 1
        self.page.get_by_role("combobox", name=label, exact=True).select_option(label=option)

    def upload(self, path: Path) -> None:
        """Choose a file: one click."""
        self.number += 1
        self.page.locator("input[type=file]").first.set_input_files(path)

    def enter(self, label: str, text: str) -> None:
        """Click into a field and type."""
        self.number += 1
        self.page.get_by_label(label, exact=True).fill(text)

    def link(self, name: str) -> None:
        """Click the first link of that name, and wait for the page and its scripts."""
        self.click(self.page.get_by_role("link", name=name, exact=True).first)
        self.page.wait_for_load_state("load")

    def button(self, name: str) -> None:
        """Click the button of that name."""
        self.click(self.page.get_by_role("button", name=name, exact=True).first)


def test_a_newcomer_labels_the_first_item_in_three_clicks(project: Project, alice: User, open_as: Open):
    factories.make_comparison(project)
    page = open_as(alice, "/")
    by = Clicks(page)
    by.link("Continue: 1 left in Tea")
    by.click(page.locator("label", has_text="A is much better"))
    with page.expect_response("**/submit/"):
        by.click(page.get_by_role("button", name="Submit"))
    assert Judgment.objects.count() == 1
    assert by.number <= 3


def test_a_manager_creates_a_project_imports_invites_and_labels_in_fifteen_clicks(
    admin: User, open_as: Open, tmp_path: Path, settings
):
    settings.RONDO_IMPORTS = tmp_path / "imports"
    path = tmp_path / "pairs.csv"
    rows = [f"How long should tea {number} steep?,{number} minutes.,An hour.\n" for number in range(100)]
    path.write_text("prompt,response_a,response_b\n" + "".join(rows), encoding="utf-8")
    page = open_as(admin, "/")
    by = Clicks(page)
    by.link("New project")
    by.enter("Name", "Green tea")
    by.click(page.locator("label", has_text="Helpfulness pairs").first)
    by.button("Create project")
    expect(page.get_by_role("heading", name="Import and export")).to_be_visible()
    by.upload(path)
    by.button("Preview")
    expect(page.get_by_role("heading", name="pairs.csv")).to_be_visible()
    by.button("Import")
    expect(page.get_by_role("heading", name="Waiting for a worker")).to_be_visible()
    uploads.do_import(FileImport.objects.get().pk)
    assert Comparison.objects.filter(open_slots__gt=0).count() == 100
    by.link("Settings")
    by.link("Invitations")
    by.button("Make a link")
    expect(page.get_by_role("heading", name="The link")).to_be_visible()
    by.link("Label")
    expect(page.get_by_role("button", name="Submit")).to_be_visible()
    assert by.number <= 15


def test_comparisons_with_low_agreement_in_a_round_are_requeued_in_seven_clicks(
    project: Project, alice: User, bob: User, carol: User, open_as: Open
):
    Project.objects.filter(pk=project.pk).update(overlap=2)
    project.refresh_from_db()
    apart, alike, earlier = (factories.make_comparison(project, round_number=number) for number in (2, 2, 1))
    for comparison, ranks in ((apart, (2, 1)), (alike, (1, 2)), (earlier, (2, 1))):
        factories.make_judgment(comparison, alice, (1, 2))
        factories.make_judgment(comparison, bob, ranks)
    page = open_as(carol, "/projects/tea/")
    by = Clicks(page)
    by.link("Data")
    by.click(page.locator("#filters > summary"))
    by.choose("Round", "Round 2")
    expect(page.get_by_role("status").first).to_have_text("2 rows")
    by.choose("Agreement", "below 50 %")
    expect(page.get_by_role("status").first).to_have_text("1 row")
    by.click(page.locator("label", has_text="All matching rows"))
    by.button("Re-queue")
    expect(page.get_by_text("1 of 1 selected rows")).to_be_visible()
    by.button("Re-queue")
    expect(page.get_by_text("1 row changed.")).to_be_visible()
    assert list(Comparison.objects.filter(open_slots__gt=0)) == [apart]
    assert by.number <= 7
