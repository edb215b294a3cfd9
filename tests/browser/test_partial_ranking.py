"""The best ranked alone in a real browser: by key, by typing, by the control, and without JavaScript."""

import pytest
from playwright.sync_api import Page, expect

from annotation.models import Judgment, Project, User
from tests import factories
from tests.browser.conftest import Axe, Open
from tests.browser.labelling_scene import LABEL, shown_order, texts_by_rank


@pytest.fixture(autouse=True)
def four(project: Project):
    return factories.make_comparison(project, [f"Answer number {number}." for number in range(4)])


def submit(page: Page) -> Judgment:
    with page.expect_response("**/submit/"):
        page.keyboard.press("Control+Enter")
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()
    judgment: Judgment = Judgment.objects.get()
    return judgment


def rest(page: Page):
    return page.get_by_role("checkbox", name="Leave the rest unordered")


def test_a_key_leaves_the_rest_unordered_and_the_screen_says_which(alice: User, open_as: Open, axe: Axe):
    page = open_as(alice, LABEL)
    shown = shown_order()
    expect(rest(page)).to_be_hidden()
    page.keyboard.type("bc")
    expect(page.locator("#submit-status")).to_have_text("Rank A and D, or leave them unordered.")
    expect(page.get_by_role("button", name="Submit")).to_have_attribute("aria-disabled", "true")
    page.keyboard.press(",")
    expect(rest(page)).to_be_checked()
    expect(page.locator("#order")).to_have_value("B > C > …")
    expect(page.locator("#submit-status")).to_have_text("B > C; not ordered: A, D")
    expect(page.get_by_role("button", name="Response A, not ordered")).to_be_visible()
    assert axe(page) == []
    assert texts_by_rank(submit(page)) == {1: {shown["B"]}, 2: {shown["C"]}}


def test_an_unfinished_ranking_is_not_sent_as_a_partial_one(alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    page.keyboard.type("bc")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#submit-status")).to_have_text("Rank A and D, or leave them unordered.")
    assert not Judgment.objects.exists()


def test_a_typed_order_ends_with_an_ellipsis_or_dots(alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    shown = shown_order()
    page.locator("#order").fill("d = a > ... b")
    expect(page.locator("#submit-status")).to_have_text("“…” is the rest, in no order: write it last.")
    page.locator("#order").fill("d = a > ...")
    expect(rest(page)).to_be_checked()
    page.locator("#order").fill("d = a")
    expect(rest(page)).not_to_be_checked()
    page.locator("#order").fill("d = a > …")
    assert texts_by_rank(submit(page)) == {1: {shown["D"], shown["A"]}}


def test_one_that_is_left_is_the_last(alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    page.keyboard.type("bca")
    page.keyboard.press(",")
    expect(page.locator("#order")).to_have_value("B > C > A > D")
    expect(rest(page)).to_be_hidden()
    page.keyboard.press("Backspace")
    expect(rest(page)).not_to_be_checked()
    page.locator("#order").fill("B > C > A > …")
    page.keyboard.press("Escape")
    expect(page.locator("#order")).to_have_value("B > C > A > D")


def test_what_was_left_unordered_does_not_outlast_the_order(alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    page.keyboard.type("b")
    rest(page).check(force=True)
    expect(page.locator("#order")).to_have_value("B > …")
    page.get_by_role("button", name="Clear the order").click()
    expect(rest(page)).to_be_hidden()
    page.keyboard.type("a")
    expect(rest(page)).not_to_be_checked()
    expect(page.locator("#submit-status")).to_have_text("Rank B, C and D, or leave them unordered.")


def test_a_draft_and_a_revision_bring_it_back(alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    page.keyboard.type("bc")
    page.keyboard.press(",")
    expect(page.locator(".dock__saved")).to_contain_text("saved")
    page.goto(page.url)
    expect(page.locator("#submit-status")).to_have_text("B > C; not ordered: A, D")
    submit(page)
    page.get_by_role("link", name="Change the last annotation").click()
    expect(page.locator("#order")).to_have_value("B > C > …")
    expect(rest(page)).to_be_checked()
