"""The pages of files in and out: by hand, in both themes, on a narrow and a wide screen."""

from pathlib import Path

from playwright.sync_api import expect

from annotation.exchange import uploads
from annotation.exchange.sources import check_source
from annotation.models import Comparison, FileImport, ImportSource, Judgment, Project, Prompt, User
from tests.browser.conftest import Axe, Open

VOTES = (
    "asked,response_a,response_b,verdict_of_rater,domain\n"
    'How long should green tea steep?,Two minutes at 70 °C.,"Ten hours, at a full boil.",A,brewing\n'
    "Is coffee a tea?,No.,Yes.,A,facts\n"
    "What is mate?,A tea of leaves.,A herbal drink.,neither,facts\n"
)


def test_a_manager_brings_a_table_in_and_undoes_it(
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
    expect(page.get_by_text("1 column may hold a verdict")).to_be_visible()
    expect(page.get_by_label("domain", exact=True)).to_have_value("metadata")
    page.get_by_role("button", name="Import").click()
    expect(page.get_by_role("alert")).to_contain_text("column verdict_of_rater")
    page.get_by_label("asked", exact=True).select_option("prompt")
    page.get_by_label("verdict_of_rater", exact=True).select_option("winner")
    page.get_by_role("button", name="Refresh preview").click()
    page.get_by_text("Meaning of each value").click()
    expect(page.get_by_label("a 2")).to_have_value("response_a")
    page.get_by_label("neither 1").select_option("both_bad")
    assert barriers(page) == []
    page.get_by_role("button", name="Import").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Waiting for a worker")).to_be_visible()
    record = FileImport.objects.get()
    uploads.do_import(record.pk)
    expect(page.get_by_text("3 annotations and 3 prompts were added")).to_be_visible()
    assert barriers(page) == []
    assert sorted(Judgment.objects.values_list("verdict", flat=True)) == ["both_bad", "ranked", "ranked"]
    comparison = Comparison.objects.filter(metadata__domain="brewing").get()
    page.goto(page.url.split("/projects/")[0] + f"/projects/tea/items/{comparison.pk}/")
    page.get_by_text("Metadata", exact=True).click()
    expect(page.get_by_text("brewing")).to_be_visible()
    assert barriers(page) == []
    page.goto(page.url.split("/projects/")[0] + f"/projects/tea/transfers/{record.pk}/")
    page.get_by_text("Undo import", exact=True).click()
    assert barriers(page) == []
    page.get_by_role("button", name="Delete what it brought").click()
    expect(page.get_by_role("heading", name="Being undone")).to_be_visible()
    uploads.do_import(record.pk)
    expect(page.get_by_role("heading", name="Undone")).to_be_visible()
    assert not Judgment.objects.exists()
    assert not Prompt.objects.exists()


def test_a_watched_folder_brings_its_files_in_with_an_account_of_their_columns(
    project: Project, carol: User, open_as: Open, barriers: Axe, tmp_path: Path, settings
):
    settings.RONDO_IMPORTS = tmp_path / "imports"
    folder = tmp_path / "allowed"
    folder.mkdir()
    settings.RONDO_SOURCES = [str(folder)]
    page = open_as(carol, "/projects/tea/data/comparisons/")
    page.get_by_role("link", name="Sources").click()
    page.get_by_label("Folder or bucket").fill(str(folder))
    page.get_by_role("button", name="Watch").click()
    expect(page.get_by_role("heading", name=str(folder))).to_be_visible()
    (folder / "prompts.csv").write_text("prompt,domain\nWhat is mate?,facts\nIs tea hot?,brewing\n")
    page.get_by_role("button", name="Import now").click()
    expect(page.get_by_text("It is checked as soon as a worker finds it.")).to_be_visible()
    source = ImportSource.objects.get()
    check_source(source.pk)
    uploads.do_import(source.files.get().file_import_id or 0)
    page.reload()
    assert barriers(page) == []
    page.get_by_role("row", name="prompts.csv").get_by_role("link").click()
    expect(page.get_by_text("2 prompts")).to_be_visible()
    page.get_by_text("Columns", exact=True).click()
    expect(page.get_by_role("listitem").filter(has_text="domain")).to_contain_text("metadata")
    assert barriers(page) == []
    assert sorted(Prompt.objects.values_list("metadata__domain", flat=True)) == ["brewing", "facts"]
