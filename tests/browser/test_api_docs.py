"""The API's documentation: found from the tokens, read without a mouse, in both themes, on a phone too."""

from playwright.sync_api import expect

from annotation.models import Project, User
from tests.browser.conftest import Axe, Open


def test_an_operation_unfolds_by_keyboard_and_leads_to_what_it_answers(
    project: Project, alice: User, open_as: Open, both_themes: Axe
):
    page = open_as(alice, "/account/tokens/")
    page.get_by_role("link", name="What programs can do with it").click()
    expect(page.get_by_role("heading", name="API", exact=True)).to_be_visible()
    operation = page.locator("#assignments_judge")
    operation.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(operation.get_by_text("Submit a judgment completely or not at all.")).to_be_visible()
    expect(operation.get_by_text("Idempotency-Key", exact=True)).to_be_visible()
    expect(operation.get_by_role("link", name="Submitted")).to_have_attribute("href", "#object-Submitted")
    assert both_themes(page) == []
    page.set_viewport_size({"width": 360, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
