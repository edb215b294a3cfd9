"""Tasks of a lead by hand, with the number of clicks that each may take."""

import json
import os
import re
from pathlib import Path

from playwright.sync_api import Page, expect

from annotation.exchange import uploads
from annotation.exchange.file_imports import import_file
from annotation.models import Comparison, Project, User, ViewQueue
from tests import factories
from tests.browser.conftest import Axe, Open, until_loaded
from tests.browser.test_additional_questions import Pointer


def picture(page: Page, name: str) -> None:
    """Keep a picture where a person wants to look at one."""
    if folder := os.environ.get("PICTURES_OF_TASKS"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def test_a_lead_finds_disagreement_on_medical_prompts_and_assigns_it_in_eight_clicks(
    project: Project, alice: User, bob: User, carol: User, open_as: Open, barriers: Axe
):
    project.overlap = 2
    project.save()
    dora = factories.make_user("dora")
    project.memberships.create(user=dora, role="annotator")
    wanted = []
    for domain, ranks in (("medical", (2, 1)), ("medical", (1, 2)), ("law", (2, 1)), ("medical", (2, 1))):
        comparison = factories.make_comparison(project)
        Comparison.objects.filter(pk=comparison.pk).update(metadata={"domain": domain})
        factories.make_judgment(comparison, alice, (1, 2))
        factories.make_judgment(comparison, bob, ranks)
        if domain == "medical" and ranks == (2, 1):
            wanted.append(comparison.pk)
    page = open_as(carol, "/projects/tea/data/comparisons/")
    hand = Pointer(page)
    hand.click(page.locator("#filters summary"))
    page.locator("#filter-agreement").select_option("50")
    hand.clicks += 1
    hand.choose("Column", "metadata.domain")
    hand.fill("Value", "medical")
    page.keyboard.press("Enter")
    expect(page.locator("#rows tbody tr")).to_have_count(2)
    picture(page, "filtered")
    assert barriers(page) == []
    name = "Agreement: below 50 %, domain is medical"
    expect(page.get_by_label("Name of the view")).to_have_value(name)
    page.locator("#view-member").select_option(label="dora")
    hand.clicks += 1
    hand.button("Save view")
    expect(page.get_by_text("2 of 2 comparisons are assigned.")).to_be_visible()
    picture(page, "assign")
    assert barriers(page) == []
    hand.button("Assign")
    expect(page.get_by_text("2 comparisons were assigned to dora.")).to_be_visible()
    assert hand.clicks <= 8
    queue = ViewQueue.objects.get(member=dora)
    assert sorted(queue.queued.values_list("comparison", flat=True)) == wanted
    picture(page, "views")
    assert barriers(page) == []


def test_a_comparison_opens_beside_the_filtered_table_and_keys_lead_on(
    project: Project, carol: User, open_as: Open, barriers: Axe
):
    first, _other, last = (factories.make_comparison(project, round_number=n) for n in (1, 2, 1))
    page = open_as(carol, "/projects/tea/data/comparisons/?round=1&layout=cards")
    until_loaded(page)
    row = page.locator("#rows h2 a").first
    row.press("Enter")
    title = page.locator("#panel-title")
    expect(title).to_be_focused()
    expect(title).to_contain_text(f"Comparison {last.pk}")
    expect(row).to_have_attribute("aria-current", "true")
    page.keyboard.press("ArrowRight")
    expect(title).to_contain_text(f"Comparison {first.pk}")
    expect(title).to_be_focused()
    # The filtered table is still there, with the next row marked.
    expect(page.locator("#rows h2 a")).to_have_count(2)
    expect(page.locator("#rows [aria-current]")).to_have_count(1)
    expect(page.locator("#rows h2 a").last).to_have_attribute("aria-current", "true")
    page.keyboard.press("Escape")
    expect(page.locator("#comparison-panel")).to_be_hidden()
    expect(row).to_be_focused()
    expect(page).to_have_url(re.compile(r"/data/comparisons/\?round=1&layout=cards$"))
    row.press("Enter")
    expect(title).to_be_focused()
    assert barriers(page) == []


def test_arrow_keys_lead_through_a_filtered_table(project: Project, carol: User, open_as: Open):
    first, _other, last = (factories.make_comparison(project, round_number=n) for n in (1, 2, 1))
    # Without room for the panel.
    viewport = {"width": 1000, "height": 900}
    page = open_as(carol, "/projects/tea/data/comparisons/?round=1", viewport=viewport)
    page.locator("#rows tbody a").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(f"Comparison {last.pk}")
    # The page shows before its scripts hear keys.
    until_loaded(page)
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("heading", level=1)).to_contain_text(f"Comparison {first.pk}")
    until_loaded(page)
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("heading", level=1)).to_contain_text(f"Comparison {last.pk}")
    page.get_by_role("link", name="All comparisons").click()
    expect(page).to_have_url(re.compile(r"/data/comparisons/\?round=1$"))


def test_a_lead_undoes_an_import_in_three_clicks(
    project: Project, carol: User, open_as: Open, barriers: Axe, tmp_path: Path
):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": "Tea?", "answer_1": "Yes.", "answer_2": "No."}), encoding="utf-8")
    record = import_file(project=project, path=path)
    page = open_as(carol, "/projects/tea/transfers/")
    hand = Pointer(page)
    hand.click(page.get_by_role("link", name="rows.jsonl"))
    hand.click(page.get_by_text("Undo import", exact=True))
    hand.button("Delete what it brought")
    expect(page.get_by_role("heading", name="Being undone")).to_be_visible()
    uploads.do_import(record.pk)
    expect(page.get_by_role("heading", name="Undone")).to_be_visible()
    assert hand.clicks <= 3
    assert not Comparison.objects.exists()


def test_what_goes_is_shown_before_a_deletion_and_all_of_it_comes_back(
    project: Project, alice: User, carol: User, open_as: Open, barriers: Axe
):
    comparison = factories.make_comparison(project)
    factories.make_judgment(comparison, alice)
    page = open_as(carol, "/projects/tea/data/prompts/")
    page.get_by_label("Select row").first.check()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("annotations by people: 1")).to_be_visible()
    picture(page, "effect")
    assert barriers(page) == []
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("No prompts yet")).to_be_visible()
    picture(page, "undo")
    assert barriers(page) == []
    page.get_by_role("button", name="Undo Delete prompts").click()
    expect(page.locator("#rows tbody tr")).to_have_count(1)

    page.goto(page.url.split("/projects/")[0] + "/projects/tea/settings/delete/")
    expect(page.get_by_text("annotations by people: 1")).to_be_visible()
    picture(page, "project")
    assert barriers(page) == []
    page.get_by_label("I have exported what is needed").check()
    page.get_by_role("button", name="Move to the bin").click()
    expect(page.get_by_role("heading", name="Bin")).to_be_visible()
    picture(page, "bin")
    assert barriers(page) == []
    page.get_by_role("button", name="Bring back").click()
    expect(page.get_by_text("The project is back.")).to_be_visible()


def test_conditions_are_joined_by_or_with_a_second_row(
    project: Project, carol: User, open_as: Open, barriers: Axe
):
    for domain in ("medical", "law", "tax"):
        comparison = factories.make_comparison(project)
        Comparison.objects.filter(pk=comparison.pk).update(metadata={"domain": domain})
    page = open_as(carol, "/projects/tea/data/comparisons/?columns=prompt&columns=metadata.domain")
    page.locator("#filters summary").click()
    page.locator("#column-1").select_option("metadata.domain")
    page.locator("#to-1").fill("medical")
    page.get_by_role("button", name="Add condition").click()
    page.locator("#join-2").select_option("or")
    page.locator("#column-2").select_option("metadata.domain")
    page.locator("#to-2").fill("law")
    page.keyboard.press("Enter")
    expect(page.locator("#rows tbody tr")).to_have_count(2)
    picture(page, "conditions")
    assert barriers(page) == []
    page.reload()
    expect(page.locator("#rows tbody tr")).to_have_count(2)
    expect(page.locator("#join-2")).to_have_value("or")
    page.set_viewport_size({"width": 360, "height": 800})
    page.emulate_media(color_scheme="dark")
    picture(page, "conditions-narrow")
    page.locator("#to-1").fill("5")
    page.locator("#column-1").select_option("round")
    page.locator("#is-1").select_option("contains")
    expect(page.get_by_role("alert")).to_contain_text("has no relation")
