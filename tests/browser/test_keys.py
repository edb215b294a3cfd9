"""Keys of one's own in a real browser: chosen by pressing them, shown on the screen, and obeyed."""

import re

import pytest
from playwright.sync_api import expect

from annotation.models import Judgment, Project, User
from annotation.services.people.shortcuts import change_keys
from annotation.services.projects.questions import set_category
from tests.browser.conftest import Axe, Open
from tests.browser.content import make_items

LABEL = "/projects/tea/label/"


@pytest.fixture
def items(project: Project):
    """A pair that comes first and a ranking of four after it, with context passages."""
    return make_items(project)


def test_a_key_is_chosen_by_pressing_it_and_then_obeyed(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keys")
    row = dialog.locator("dl > div").filter(has_text="open or fold the context")
    expect(row).to_contain_text("P")
    page.goto(page.url.replace(LABEL, "/account/keys/"))
    field = page.get_by_label("Open or fold the context")
    field.focus()
    page.keyboard.press(";")
    expect(field).to_have_value(";")
    # Tab goes on to the next field, as in every form.
    page.keyboard.press("Tab")
    expect(page.get_by_label("Skip", exact=True)).to_be_focused()
    page.get_by_role("button", name="Store my keys").click()
    expect(page.get_by_text("Your keys are stored.")).to_be_visible()
    page.goto(page.url.replace("/account/keys/", LABEL))
    passages = page.locator("#passages")
    page.keyboard.press("p")
    expect(passages).not_to_have_attribute("open", "")
    page.keyboard.press(";")
    expect(passages).to_have_attribute("open", "")
    page.keyboard.press("?")
    expect(row).to_contain_text(";")


def test_ones_own_key_wins_over_a_category_and_the_screen_says_so(items, alice: User, open_as: Open):
    change_keys(user=alice, keys={"both_bad": "u"})
    page = open_as(alice, LABEL)
    page.locator("[data-answer]").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("u")
    expect(page.get_by_label("Both bad")).to_be_checked()
    expect(page.locator(".flag")).to_have_count(0)
    page.keyboard.press("i")
    expect(page.locator(".flag")).to_have_count(1)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_contain_text(
        "Untruthful: you use this key for something else"
    )


def test_submit_may_have_another_key_and_control_enter_always_submits(items, alice: User, open_as: Open):
    change_keys(user=alice, keys={"submit": "F2"})
    page = open_as(alice, LABEL)
    page.keyboard.press("2")
    page.keyboard.press("Enter")
    page.keyboard.press("F2")
    expect(page.get_by_text("2 of 2")).to_be_visible()
    page.keyboard.press("-")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()


def test_the_page_of_keys_is_accessible_and_fits_on_a_phone(alice: User, open_as: Open, both_themes: Axe):
    page = open_as(alice, "/account/keys/", viewport={"width": 360, "height": 740})
    assert both_themes(page) == []
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.get_by_label("Skip", exact=True).fill("z")
    page.get_by_role("button", name="Store my keys").click()
    expect(page.get_by_role("alert")).to_have_text(re.compile("Not stored yet.*already"))
    assert both_themes(page) == []


def test_keys_are_changed_without_javascript(alice: User, open_as: Open):
    page = open_as(alice, "/account/keys/", java_script_enabled=False)
    page.get_by_label("Change the last annotation").fill("Insert")
    page.get_by_role("button", name="Store my keys").click()
    expect(page.get_by_text("Your keys are stored.")).to_be_visible()
    alice.refresh_from_db()
    assert alice.keys == {"undo": "Insert"}


def test_after_a_skip_the_next_comparison_has_the_focus(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    page.wait_for_load_state("load")
    page.keyboard.press("s")
    expect(page.get_by_label("The prompt is unclear")).to_be_focused()
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    expect(page.locator(".candidate")).to_have_count(4)
    expect(page.get_by_role("heading", name="Prompt", exact=True)).to_be_focused()


def test_after_a_report_the_comparison_has_the_focus_again(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    page.wait_for_load_state("load")
    page.keyboard.press("x")
    expect(page.get_by_label("The prompt has an error")).to_be_focused()
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("Reported to the reviewers")
    expect(page.locator('[data-menu="flag"]')).not_to_have_attribute("open", "")
    expect(page.get_by_role("heading", name="Prompt", exact=True)).to_be_focused()
    # The comparison stays, and its keys are heard.
    page.keyboard.press("1")
    expect(page.get_by_label("A is much better")).to_be_checked()


def test_a_key_asks_the_managers_and_the_help_tells_of_it(items, alice: User, open_as: Open, axe: Axe):
    page = open_as(alice, LABEL)
    page.wait_for_load_state("load")
    page.keyboard.press("?")
    row = page.get_by_role("dialog", name="Keys").locator("dl > div")
    expect(row.filter(has_text="ask the managers")).to_contain_text("Q")
    expect(row.filter(has_text="report a problem")).to_contain_text("X")
    assert axe(page) == []
    page.keyboard.press("Escape")
    page.keyboard.press("q")
    expect(page.get_by_label("Ask the managers")).to_be_focused()
    page.keyboard.type("Is iced tea meant?")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Sent. The answer arrives here")).to_be_focused()
    page.keyboard.press("Escape")
    # Back to the comparison: on the menu's button the next Enter would open it again.
    expect(page.locator("#prompt-heading")).to_be_focused()


@pytest.mark.parametrize(
    ("key", "menu", "address"), [("q", "ask", "ask"), ("s", "skip", "skip"), ("x", "flag", "flag")]
)
def test_control_enter_in_a_menu_sends_its_own_form(
    key: str, menu: str, address: str, items, alice: User, open_as: Open
):
    page = open_as(alice, LABEL)
    page.keyboard.press("8")
    page.keyboard.press(key)
    form = page.locator(f'[data-menu="{menu}"] form')
    if menu != "ask":
        form.get_by_role("radio").first.check()
    form.get_by_role("textbox").fill("Is this the old tea?")
    with page.expect_response(f"**/{address}/") as sent:
        page.keyboard.press("Control+Enter")
    assert "Is+this+the+old+tea" in sent.value.request.post_data
    assert not Judgment.objects.exists()


def test_after_escape_enter_submits_and_does_not_open_the_menu_again(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    page.keyboard.press("s")
    expect(page.locator('[data-menu="skip"]')).to_have_attribute("open", "")
    page.keyboard.press("Escape")
    expect(page.locator("#prompt-heading")).to_be_focused()
    page.keyboard.press("2")
    with page.expect_response("**/submit/"):
        page.keyboard.press("Enter")
    expect(page.get_by_text("2 of 2")).to_be_visible()


def test_a_pair_without_strength_obeys_its_letters_and_its_digits(
    items, project: Project, alice: User, open_as: Open
):
    Project.objects.update(ask_strength=False)
    page = open_as(alice, LABEL)
    for key, words in (
        ("b", "B is better"),
        ("1", "A is better"),
        ("2", "B is better"),
        ("a", "A is better"),
    ):
        page.keyboard.press(key)
        expect(page.get_by_role("radio", name=words)).to_be_checked()


def test_the_letter_of_a_response_is_left_to_a_category_that_has_it(
    items, project: Project, alice: User, carol: User, open_as: Open
):
    Project.objects.update(ask_strength=False)
    set_category(project=project, key="untruthful", values={"shortcut": "b"}, changed_by=carol)
    page = open_as(alice, LABEL)
    page.keyboard.press("b")
    page.keyboard.press("1")
    expect(page.get_by_role("radio", name="A is better")).to_be_checked()
    page.keyboard.press("b")
    expect(page.get_by_role("radio", name="A is better")).to_be_checked()
