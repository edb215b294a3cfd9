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
    page.set_viewport_size({"width": 360, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    # Hundreds of folded operations and objects are like each other; axe takes a minute for all of them.
    folded = "section[aria-labelledby] .api-operation:not([open]):not(:nth-of-type(-n+2))"
    page.eval_on_selector_all(folded, "all => all.forEach((one) => one.remove())")
    assert page.locator(".api-operation").count() > 20
    assert both_themes(page) == []
