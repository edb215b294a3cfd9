"""The pages of files in and out: by hand, in both themes, on a narrow and a wide screen."""

from pathlib import Path

from playwright.sync_api import expect

from annotation.exchange import uploads
from annotation.models import FileImport, Judgment, Project, User
from tests.browser.conftest import Axe, Open

VOTES = (
    "asked,response_a,response_b,verdict_of_rater\n"
    'How long should green tea steep?,Two minutes at 70 °C.,"Ten hours, at a full boil.",A\n'
    "Is coffee a tea?,No.,Yes.,A\n"
    "What is mate?,A tea of leaves.,A herbal drink.,tie\n"
)


def test_a_manager_brings_a_table_in(
    project: Project, carol: User, open_as: Open, barriers: Axe, tmp_path: Path, settings
):
    settings.RONDO_IMPORTS = tmp_path / "imports"
    path = tmp_path / "votes.csv"
    path.write_text(VOTES, encoding="utf-8")
    page = open_as(carol, "/projects/tea/transfers/")
    page.get_by_label("File", exact=True).set_input_files(path)
    assert barriers(page) == []
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("heading", name="votes.csv")).to_be_visible()
    # The guess found the answers; what was asked and the verdict have names that nobody can guess.
    page.get_by_text("Columns under other names").scroll_into_view_if_needed()
    page.get_by_label("prompt", exact=True).select_option("asked")
    page.get_by_label("winner", exact=True).select_option("verdict_of_rater")
    assert barriers(page) == []
    page.get_by_role("button", name="Import").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Waiting for a worker")).to_be_visible()
    uploads.do_import(FileImport.objects.get().pk)
    expect(page.get_by_text("3 annotations and 3 prompts were added")).to_be_visible()
    assert barriers(page) == []
    assert Judgment.objects.count() == 3
