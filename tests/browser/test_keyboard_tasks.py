"""Tasks of people in Chromium by keyboard alone, each control at most 40 Tabs away."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from annotation.exchange import uploads
from annotation.models import Comparison, FileImport, Judgment, Project, User
from tests import factories
from tests.browser.conftest import Open
from tests.browser.keyboard import Keyboard
from tests.browser.test_models import policy, prompt_set, runs, server
from training.models import Run, SideBySide

__all__ = ["policy", "prompt_set", "runs", "server"]
pytestmark = pytest.mark.django_db(transaction=True)


def test_a_newcomer_labels_without_a_single_shortcut(project: Project, alice: User, open_as: Open):
    """The screen is a form: Tab, arrows and Enter suffice for who knows none of its keys."""
    factories.make_comparison(project)
    page = open_as(alice, "/projects/tea/label/")
    by = Keyboard(page)
    by.reach(page.locator("input[name=choice]"))
    by.press("Space")
    expect(page.get_by_label("A is much better")).to_be_checked()
    by.reach(page.get_by_role("button", name="Submit"))
    with page.expect_response("**/submit/"):
        by.press("Enter")
    assert Judgment.objects.count() == 1


def test_a_manager_creates_a_project_imports_and_invites_by_keyboard(
    admin: User, open_as: Open, tmp_path: Path, settings
):
    settings.RONDO_IMPORTS = tmp_path / "imports"
    path = tmp_path / "pairs.csv"
    rows = [f"How long should tea {number} steep?,{number} minutes.,An hour.\n" for number in range(100)]
    path.write_text("prompt,response_a,response_b\n" + "".join(rows), encoding="utf-8")
    page = open_as(admin, "/")
    by = Keyboard(page)
    by.skip()
    by.link("New project")
    by.enter("Name", "Green tea")
    by.reach(page.locator("label", has_text="Helpfulness pairs").get_by_role("radio"))
    by.press("Space")
    by.button("Create project")
    expect(page.get_by_role("heading", name="Import and export")).to_be_visible()
    by.skip()
    # Asked for some keys before the one that opens it: the browser may need a moment to hand choosers over.
    with page.expect_file_chooser() as chooser:
        by.reach(page.locator("input[type=file]"))
        by.press("Space")
    chooser.value.set_files(path)
    by.button("Preview")
    expect(page.get_by_role("heading", name="pairs.csv")).to_be_visible()
    by.skip()
    by.button("Import")
    expect(page.get_by_role("heading", name="Waiting for a worker")).to_be_visible()
    uploads.do_import(FileImport.objects.get().pk)
    assert Comparison.objects.filter(open_slots__gt=0).count() == 100
    by.link("Settings")
    by.link("Invitations")
    by.skip()
    by.button("Make a link")
    expect(page.get_by_role("heading", name="The link")).to_be_visible()
    by.link("Label")
    expect(page.get_by_role("button", name="Submit")).to_be_visible()


def test_comparisons_with_low_agreement_are_requeued_by_keyboard(
    project: Project, alice: User, bob: User, carol: User, open_as: Open
):
    Project.objects.filter(pk=project.pk).update(overlap=2)
    project.refresh_from_db()
    apart, alike, earlier = (factories.make_comparison(project, round_number=number) for number in (2, 2, 1))
    for comparison, ranks in ((apart, (2, 1)), (alike, (1, 2)), (earlier, (2, 1))):
        factories.make_judgment(comparison, alice, (1, 2))
        factories.make_judgment(comparison, bob, ranks)
    page = open_as(carol, "/projects/tea/")
    by = Keyboard(page)
    by.link("Data")
    by.skip()
    by.reach(page.locator("#filters > summary"))
    by.press("Enter")
    by.choose("Round", "Round 2")
    expect(page.get_by_role("status").first).to_have_text("2 rows")
    by.choose("Agreement", "below 50 %")
    expect(page.get_by_role("status").first).to_have_text("1 row")
    by.reach(page.get_by_label("All matching rows"))
    by.press("Space")
    by.button("Re-queue")
    expect(page.get_by_text("1 of 1 selected rows")).to_be_visible()
    by.skip()
    by.button("Re-queue")
    expect(page.get_by_text("1 row changed.")).to_be_visible()
    assert list(Comparison.objects.filter(open_slots__gt=0)) == [apart]


def test_the_best_run_is_found_by_keyboard(runs: list[Run], carol: User, open_as: Open):
    page = open_as(carol, "/")
    by = Keyboard(page)
    by.skip()
    by.link("Tea")
    by.link("Models")
    by.skip()
    by.reach(page.get_by_role("link", name="Held-out accuracy best"))
    by.press("Enter")
    expect(page.get_by_role("heading", name=f"Run {runs[2].name}")).to_be_visible()


def test_two_checkpoints_are_compared_blind_by_keyboard(prompt_set: None, carol: User, open_as: Open):
    page = open_as(carol, "/")
    by = Keyboard(page)
    by.skip()
    by.link("Tea")
    by.link("Compare")
    by.skip()
    by.reach(page.get_by_role("button", name="Everyday tea"))
    by.press("Enter")
    expect(page.get_by_role("heading", name="Which is better?")).to_be_visible()
    by.press("2")
    expect(page.get_by_text("1 of 3 compared")).to_be_visible()
    by.button("Next prompt of the set")
    expect(page.get_by_role("heading", name="Which is better?")).to_be_visible()
    by.skip()
    by.reach(page.get_by_role("button", name="Response 1 is better"))
    by.press("Enter")
    expect(page.get_by_text("2 of 3 compared")).to_be_visible()
    assert SideBySide.objects.filter(judgment__blind=True).count() == 2
