"""Text pasted into a critique: the page reports how much, and whether the screen shows it."""

import pytest
from playwright.sync_api import Page, expect

from annotation.models import PasteRecord, Project, User
from tests import factories
from tests.browser.conftest import Open

LABEL = "/projects/tea/label/"
SHOWN = "Boil fresh water and wait a while."


@pytest.fixture
def pair(project: Project):
    Project.objects.filter(pk=project.pk).update(ask_critique=True, records_pastes=True)
    return factories.make_comparison(project, [SHOWN, SHOWN + " Then pour."])


def paste(page: Page, text: str) -> None:
    """Paste into the field that has the focus, as a person does, and wait until the server has taken it."""
    with page.expect_response("**/pastes/"):
        page.evaluate(
            """(text) => {
              const data = new DataTransfer();
              data.setData("text/plain", text);
              document.activeElement.dispatchEvent(
                new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
            }""",
            text,
        )


def test_a_paste_into_a_critique_is_recorded_with_its_length_and_source(pair, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    expect(page.get_by_text("this project's managers see it")).to_be_visible()
    field = page.locator('textarea[name^="critique-"]').first
    field.evaluate("(field) => { field.closest('details')?.setAttribute('open', ''); field.focus(); }")
    paste(page, "fresh   water")
    paste(page, "written by another model")
    page.locator("#comment").focus()
    paste(page, "as above")
    rows = PasteRecord.objects.order_by("pk").values_list("field", "characters", "is_on_screen")
    assert list(rows) == [("critique", 13, True), ("critique", 24, False), ("comment", 8, False)]
    assert PasteRecord.objects.filter(completion__isnull=True).count() == 1
