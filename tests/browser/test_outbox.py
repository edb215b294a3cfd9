"""Submitted answers leave the page at once: no lost, slow or disputed draft holds them up."""

import json

import pytest
from playwright.sync_api import Page, Route, expect

from annotation.choices import Verdict
from annotation.models import Draft, Judgment, Project, User
from tests import factories
from tests.browser.conftest import Open
from tests.browser.content import make_items
from tests.browser.test_drafts import LABEL, next_held, open_prepared, saved

SOON = 5_000
"""Milliseconds in which a submit must have left: far less than a draft may take, or a pause after it."""


@pytest.fixture
def items(project: Project):
    """A pair that comes first and a ranking of four after it."""
    return make_items(project)


def hold_drafts(page: Page) -> list[Route]:
    """Every draft from now on stays under way; what is held back, as it comes."""
    held: list[Route] = []
    page.route("**/draft/", lambda route: held.append(route))
    return held


def submit_leaves(page: Page) -> None:
    """Enter leads to a request soon; back once it is answered."""
    with page.expect_response("**/submit/"), page.expect_request("**/submit/", timeout=SOON):
        page.keyboard.press("Enter")


def test_a_submit_does_not_wait_for_a_draft_under_way(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL, routed=True)
    held = hold_drafts(page)
    with page.expect_request("**/draft/"):
        page.keyboard.press("2")
    submit_leaves(page)
    expect(page.get_by_text("2 of 2")).to_be_visible()
    assert Judgment.objects.get().verdict == Verdict.RANKED
    # The draft comes too late: the server refuses it, and the screen shown now hears nothing of it.
    with page.expect_response("**/draft/") as late:
        next_held(page, held).continue_()
    assert late.value.status == 410
    expect(page.locator("#outbox")).to_be_hidden()
    assert not Draft.objects.exists()


def test_a_submit_does_not_wait_while_drafts_fail_and_pause(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL, routed=True)
    page.route("**/draft/", lambda route: route.abort())
    page.keyboard.press("2")
    expect(page.locator("#outbox")).to_contain_text("1 draft kept on this device")
    submit_leaves(page)
    expect(page.get_by_text("2 of 2")).to_be_visible()
    expect(page.locator("#outbox")).to_be_hidden()
    assert Judgment.objects.count() == 1


def test_a_draft_that_fails_while_one_submits_delays_nothing(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL, routed=True)
    held = hold_drafts(page)
    # Three failures in a row have made the pause eight seconds long; the fourth is under way.
    with page.expect_request("**/draft/"):
        page.keyboard.press("2")
    for _ in range(3):
        with page.expect_request("**/draft/"):
            next_held(page, held).abort()
    submit_leaves(page)
    next_held(page, held).abort()
    expect(page.get_by_text("2 of 2")).to_be_visible()
    assert Judgment.objects.count() == 1


def test_drafts_of_a_closed_page_do_not_keep_a_submit_waiting(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL, routed=True)
    page.route("**/draft/", lambda route: route.abort())
    page.locator("#comment").fill("never sent")
    expect(page.locator("#outbox")).to_contain_text("1 draft kept on this device")
    again = page.context.new_page()
    page.close()
    held = hold_drafts(again)
    with again.expect_request("**/draft/"):
        again.goto(page.url)
    again.keyboard.press("2")
    submit_leaves(again)
    expect(again.get_by_text("2 of 2")).to_be_visible()
    assert Judgment.objects.count() == 1
    for route in held:
        route.abort()


def test_a_conflict_that_comes_after_the_submit_asks_nothing(items, alice: User, open_as: Open):
    other, page = open_as(alice, LABEL), open_prepared(open_as, alice)
    other.locator("#comment").fill("from the other")
    saved(other)
    held: list[Route] = []
    # The page asks for the other version, to show both; until it is here, one goes on working.
    page.route("**/label/", lambda route: held.append(route))
    with page.expect_request("**/label/"):
        page.keyboard.press("2")
    submit_leaves(page)
    expect(page.locator(".candidate")).to_have_count(4)
    page.keyboard.type("ab=c")
    next_held(page, held).continue_()
    page.keyboard.type("d")
    expect(page.locator("#order")).to_have_value("A > B = C > D")
    saved(page)
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert Judgment.objects.get().verdict == Verdict.RANKED


def test_a_draft_stored_while_the_answer_is_refused_is_no_other_page(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    page.locator("[data-answer]").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("u")
    page.evaluate("""() => {
      const field = document.querySelector('[name="span_flags"]');
      field.value = field.value.replace('"quote":"', '"quote":"x');
    }""")
    held = hold_drafts(page)
    with page.expect_request("**/draft/"):
        page.keyboard.press("-")
    submit_leaves(page)
    expect(page.get_by_role("alert")).to_contain_text("does not stand on its quote")
    # The refused page was made before the draft was stored, and cannot know of it.
    next_held(page, held).continue_()
    page.unroute("**/draft/")
    page.locator("#comment").fill("and more")
    saved(page)
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert Draft.objects.get().fields["comment"] == ["and more"]


def test_an_answer_that_is_no_answer_of_the_server_holds_nothing_up(items, alice: User, open_as: Open):
    """A proxy that says 200 with a page of its own: that draft is lost to it, what comes next is not."""
    page = open_as(alice, LABEL, routed=True)
    page.route("**/draft/", lambda route: route.fulfill(status=200, body="<p>Please accept our terms"))
    page.keyboard.press("2")
    expect(page.locator("[data-saved]")).to_contain_text("not saved")
    submit_leaves(page)
    expect(page.get_by_text("2 of 2")).to_be_visible()
    assert Judgment.objects.count() == 1


def test_a_submit_refused_in_other_words_than_the_pages_own_is_kept(items, alice: User, open_as: Open):
    page = open_prepared(open_as, alice)
    page.route("**/submit/", lambda route: route.fulfill(status=422, body="<p>Blocked by a firewall"))
    page.keyboard.press("2")
    submit_leaves(page)
    expect(page.locator("#outbox")).to_contain_text("An annotation was not accepted: the server returned 422")
    expect(page.locator(".candidate")).to_have_count(4)
    page.unroute("**/submit/")
    with page.expect_response("**/submit/"):
        page.get_by_role("button", name="Send now").click()
    expect(page.locator("#outbox")).to_be_hidden()
    assert Judgment.objects.get().verdict == Verdict.RANKED


def test_enter_right_after_a_selection_was_given_up_submits(project: Project, alice: User, open_as: Open):
    factories.make_comparison(project)
    page = open_as(alice, LABEL)
    page.keyboard.press("2")
    page.locator("[data-answer]").first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".marker")).to_be_visible()
    # In one go: no timer of the page runs between the selection's end and the key.
    with page.expect_request("**/submit/", timeout=SOON):
        page.evaluate("""() => {
          getSelection().removeAllRanges();
          document.activeElement.blur();
          const enter = { key: "Enter", bubbles: true, cancelable: true };
          document.body.dispatchEvent(new KeyboardEvent("keydown", enter));
        }""")
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()


def test_what_lies_broken_in_the_devices_storage_holds_nothing_up(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    key = json.dumps(f"rondo-outbox-{alice.pk}-draft-x")
    page.evaluate(f"() => localStorage.setItem({key}, '{{\"half an entry')")
    page.reload()
    page.keyboard.press("2")
    submit_leaves(page)
    expect(page.get_by_text("2 of 2")).to_be_visible()
    assert Judgment.objects.count() == 1
