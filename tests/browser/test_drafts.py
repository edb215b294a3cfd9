"""Drafts are never lost: lost sign-ins, second devices, lost networks, two pages at once.

A draft's survival is always tested in a fresh context: a browser restores fields by itself.
"""

import re

import pytest
from playwright.sync_api import Page, Route, expect

from annotation.choices import Verdict
from annotation.models import Assignment, Draft, Judgment, Project, User
from tests import factories
from tests.browser.conftest import Axe, Open
from tests.browser.content import make_items

LABEL = "/projects/tea/label/"
SAVED = re.compile(r"^saved \d+ s ago$")


@pytest.fixture
def items(project: Project):
    """A pair that comes first and a ranking of four after it."""
    return make_items(project)


def saved(page: Page) -> None:
    expect(page.locator("[data-saved]")).to_have_text(SAVED)


def prepared(page: Page) -> None:
    """Wait until the next comparison lies ready in the page: an answer to its request is not yet that."""
    expect(page.locator("#screen[data-next-in-hand]")).to_have_count(1)


def open_prepared(open_as: Open, user: User, **options: object) -> Page:
    """The labelling page, once the next comparison lies ready in it."""
    page = open_as(user, LABEL, routed=True, **options)
    prepared(page)
    expect(page.locator(".candidate")).to_have_count(2)
    return page


def next_held(page: Page, held: list[Route]) -> Route:
    """The next request that is held back, once it is: Playwright may miss the event of a request that comes
    at once, and never its route."""
    for _ in range(3000):
        if held:
            return held.pop(0)
        page.wait_for_timeout(20)
    raise AssertionError("the page sent nothing within a minute")


def test_what_was_entered_is_there_on_another_device(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    page.keyboard.press("2")
    page.locator("#comment").fill("half a thought")
    saved(page)
    assert Draft.objects.get().fields["comment"] == ["half a thought"]
    other = open_as(alice, LABEL)
    expect(other.locator("#comment")).to_have_value("half a thought")
    expect(other.locator('[data-key="2"]')).to_be_checked()
    expect(other.locator("[data-saved]")).to_contain_text(" restored")


def test_a_restored_page_has_room_for_a_comment_and_the_whole_submit(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    page.keyboard.press("2")
    page.locator("#comment").fill("x")
    saved(page)
    other = open_as(alice, LABEL)
    expect(other.locator("[data-saved]")).to_contain_text(" restored")
    for width in (1400, 1200, 1152, 768, 360):
        other.set_viewport_size({"width": width, "height": 800})
        comment = other.locator("#comment").bounding_box()
        submit = other.get_by_role("button", name="Submit").bounding_box()
        assert comment["width"] >= 80, width
        assert 0 <= submit["x"] <= submit["x"] + submit["width"] <= width


def test_marks_and_missing_info_come_back_from_a_draft(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    page.locator("[data-answer]").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("u")
    quote = page.locator(".flag").inner_text()
    page.keyboard.press("m")
    page.keyboard.type("the temperature")
    saved(page)
    other = open_as(alice, LABEL)
    expect(other.locator(".flag")).to_have_text(quote)
    expect(other.get_by_label("What is missing").first).to_have_value("the temperature")


def test_what_is_saved_never_moves_the_submit_bar(project: Project, alice: User, open_as: Open):
    factories.make_comparison(project, [f"Answer number {number}." for number in range(4)])
    page = open_as(alice, LABEL)
    page.keyboard.press("b")
    saved(page)
    other = open_as(alice, LABEL)
    line = other.locator("[data-saved]")
    expect(line).to_have_text(re.compile(r"^Draft from \d\d:\d\d restored$"))
    restored = line.inner_text()
    for width in (1400, 1200, 768, 360):
        other.set_viewport_size({"width": width, "height": 900})
        boxes = []
        for text in (restored, "", "saved 59 min ago", "saving…"):
            line.evaluate("(element, text) => { element.textContent = text; }", text)
            dock = other.locator(".dock").bounding_box()
            button = other.locator(".dock__submit button").bounding_box()
            assert dock is not None
            assert button is not None
            boxes.append((dock["height"], button["x"], button["y"] - dock["y"]))
        assert len(set(boxes)) == 1, (width, boxes)
        # In one line with the comment and the clock, where there is room for all three.
        assert button["height"] < 50, width


def test_an_untouched_screen_saves_nothing(items, alice: User, open_as: Open):
    sent: list[str] = []
    page = open_as(alice, "/projects/tea/")
    page.on("request", lambda request: sent.append(request.url))
    page.get_by_role("link", name="Start labelling").click()
    prepared(page)
    page.keyboard.press("l")
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    page.keyboard.press("Escape")
    # A change of the screen that is saved proves that a save would have come before it.
    page.keyboard.press("2")
    saved(page)
    assert len([url for url in sent if url.endswith("/draft/")]) == 1


def test_a_draft_of_a_closed_page_comes_back_once_one_is_signed_in_again(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    session_cookie = next(cookie for cookie in page.context.cookies() if cookie["name"] == "sessionid")
    address = page.url
    page.context.clear_cookies(name="sessionid")
    page.locator("#comment").fill("still here")
    expect(page.locator("[data-saved]")).to_have_text(
        "not saved: you have been signed out, kept on this device"
    )
    expect(page.locator("#outbox")).to_contain_text("1 draft kept on this device")
    assert not Draft.objects.exists()
    context = page.context
    page.close()
    context.add_cookies([{"name": "sessionid", "value": session_cookie["value"], "url": address}])
    again = context.new_page()
    again.goto(address)
    expect(again.locator("#comment")).to_have_value("still here")
    expect(again.locator("#outbox")).to_be_hidden()
    assert Draft.objects.get().fields["comment"] == ["still here"]


def test_what_another_person_left_on_the_device_is_not_sent(items, alice: User, bob: User, open_as: Open):
    page = open_as(alice, LABEL)
    page.context.clear_cookies(name="sessionid")
    page.locator("#comment").fill("Alice's own")
    expect(page.locator("#outbox")).to_contain_text("1 draft kept on this device")
    context, address = page.context, page.url
    page.close()
    session = next(cookie for cookie in open_as(bob, "/").context.cookies() if cookie["name"] == "sessionid")
    context.add_cookies([{"name": "sessionid", "value": session["value"], "url": address}])
    bobs = context.new_page()
    bobs.goto(address)
    bobs.locator("#comment").fill("Bob's own")
    saved(bobs)
    expect(bobs.locator("#outbox")).to_be_hidden()
    assert [draft.fields["comment"] for draft in Draft.objects.all()] == [["Bob's own"]]


# ── Two pages ─────────────────────────────────────────────────────────────────────────


def two_versions(alice: User, open_as: Open) -> tuple[Page, Page]:
    """Two devices on one comparison; the first has saved, the second is shown that both differ."""
    first, second = open_as(alice, LABEL), open_as(alice, LABEL)
    first.keyboard.press("2")
    first.locator("#comment").fill("from the first")
    saved(first)
    second.keyboard.press("8")
    second.locator("#comment").fill("from the second")
    dialog = second.get_by_role("dialog", name="Two versions of one annotation")
    expect(dialog).to_contain_text("from the first")
    expect(dialog).to_contain_text("A is better")
    expect(dialog).to_contain_text("from the second")
    expect(dialog).to_contain_text("B is better")
    return first, second


def test_a_conflict_is_shown_in_words_and_mine_can_stay(items, alice: User, open_as: Open):
    _first, second = two_versions(alice, open_as)
    assert Draft.objects.get().fields["comment"] == ["from the first"]
    second.get_by_role("button", name="Keep mine").click()
    saved(second)
    expect(second.locator("#comment")).to_have_value("from the second")
    draft = Draft.objects.get()
    assert (draft.version, draft.fields["comment"]) == (2, ["from the second"])


def test_a_conflict_is_shown_in_words_and_the_other_can_be_taken(items, alice: User, open_as: Open):
    _first, second = two_versions(alice, open_as)
    # Escape chooses nothing.
    second.keyboard.press("Escape")
    second.keyboard.press("Escape")
    second.get_by_role("button", name="Take the other").click()
    expect(second.locator("#comment")).to_have_value("from the first")
    expect(second.locator('[data-key="2"]')).to_be_checked()
    draft = Draft.objects.get()
    assert (draft.version, draft.fields["comment"]) == (1, ["from the first"])
    # From here on the second page goes on where the first was.
    second.locator("#comment").fill("and more")
    saved(second)
    assert Draft.objects.get().version == 2


def test_two_pages_that_submit_leave_the_choice_to_the_person(items, alice: User, open_as: Open):
    first, second = open_as(alice, LABEL), open_as(alice, LABEL)
    first.keyboard.press("2")
    with first.expect_response("**/submit/"):
        first.keyboard.press("Control+Enter")
    expect(first.get_by_text("2 of 2")).to_be_visible()
    second.keyboard.press("-")
    second.keyboard.press("Control+Enter")
    dialog = second.get_by_role("dialog", name="Two versions of one annotation")
    expect(dialog).to_contain_text("Both bad")
    expect(dialog).to_contain_text("A is better")
    assert Judgment.objects.get().verdict == Verdict.RANKED
    # The next page is shown before the answer has come.
    with second.expect_response("**/submit/"):
        second.get_by_role("button", name="Keep mine").click()
    expect(second.get_by_text("2 of 2")).to_be_visible()
    before, after = Judgment.objects.order_by("pk")
    assert (after.verdict, after.supersedes) == (Verdict.BOTH_BAD, before)


def test_axe_finds_nothing_while_a_conflict_is_shown(items, alice: User, open_as: Open, both_themes: Axe):
    first = open_as(alice, LABEL)
    second = open_as(alice, LABEL, viewport={"width": 360, "height": 740})
    first.locator("#comment").fill("from the first")
    saved(first)
    second.locator("#comment").fill("from the second")
    expect(second.get_by_role("dialog", name="Two versions of one annotation")).to_be_visible()
    assert both_themes(second) == []
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert second.evaluate(overflow) <= 0


# ── No network ────────────────────────────────────────────────────────────────────────


def test_a_submit_without_network_arrives_once_when_it_is_back(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    expect(page.locator(".candidate")).to_have_count(2)
    # Nothing lies ready yet or it does: either way the answer waits on the device.
    page.context.set_offline(True)
    page.keyboard.press("2")
    page.locator("#comment").fill("from the train")
    page.locator("#comment").press("Control+Enter")
    expect(page.locator("#outbox")).to_contain_text("1 answer kept on this device")
    assert not Judgment.objects.exists()
    page.context.set_offline(False)
    expect(page.locator("#outbox")).to_be_hidden()
    expect(page.get_by_text("2 of 2")).to_be_visible()
    assert Judgment.objects.get().comment == "from the train"
    assert Judgment.objects.get().verdict == Verdict.RANKED


def test_an_answer_of_a_closed_tab_is_sent_by_the_next(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    page.keyboard.press("2")
    page.context.set_offline(True)
    page.keyboard.press("Enter")
    expect(page.locator("#outbox")).to_contain_text("1 answer kept on this device")
    context, address = page.context, page.url
    page.close()
    context.set_offline(False)
    again = context.new_page()
    again.goto(address)
    expect(again.get_by_text("2 of 2")).to_be_visible()
    expect(again.locator("#outbox")).to_be_hidden()
    assert Judgment.objects.get().verdict == Verdict.RANKED
    again.reload()
    expect(again.get_by_text("2 of 2")).to_be_visible()
    assert Judgment.objects.count() == 1


def test_an_answer_whose_receipt_was_lost_is_not_doubled(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL, routed=True)
    lost: list[str] = []

    def lose_the_receipt(route: Route) -> None:
        if lost:
            route.continue_()
            return
        lost.append(route.request.url)
        route.fetch()
        route.abort()

    page.route("**/submit/", lose_the_receipt)
    page.keyboard.press("2")
    page.keyboard.press("Enter")
    expect(page.get_by_text("2 of 2")).to_be_visible()
    expect(page.locator("#outbox")).to_be_hidden()
    assert len(lost) == 1
    assert Judgment.objects.count() == 1


# ── The next one ahead of time ────────────────────────────────────────────────────────


def test_the_next_comparison_is_there_before_the_submit_is_answered(items, alice: User, open_as: Open):
    page = open_prepared(open_as, alice)
    held: list[Route] = []
    page.route("**/submit/", lambda route: held.append(route))
    page.keyboard.press("2")
    page.keyboard.press("Enter")
    expect(page.locator(".candidate")).to_have_count(4)
    expect(page.get_by_text("2 of 2")).to_be_visible()
    assert not Judgment.objects.exists()
    page.keyboard.type("ab=c")
    next_held(page, held).continue_()
    page.keyboard.press("z")
    # Undo waits for the answer to be stored, and opens it.
    expect(page.get_by_text("changing an annotation")).to_be_visible()
    expect(page.locator('[data-key="2"]')).to_be_checked()
    # What was begun of the next one was saved.
    page.get_by_role("link", name="Discard changes").click()
    expect(page.locator("#order")).to_have_value("A > B = C")


def test_a_refused_answer_comes_back_and_the_next_one_stays_in_hand(items, alice: User, open_as: Open):
    page = open_prepared(open_as, alice)
    page.locator("[data-answer]").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("u")
    page.locator("#comment").fill("keep me")
    page.evaluate("""() => {
      const field = document.querySelector('[name="span_flags"]');
      field.value = field.value.replace('"quote":"', '"quote":"x');
    }""")
    page.keyboard.press("Escape")
    page.keyboard.press("-")
    expect(page.get_by_label("Both bad")).to_be_checked()
    held: list[Route] = []
    page.route("**/submit/", lambda route: held.append(route))
    page.keyboard.press("Enter")
    expect(page.locator(".candidate")).to_have_count(4)
    page.keyboard.type("ab=c")
    next_held(page, held).continue_()
    page.unroute("**/submit/")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("does not stand on its quote")
    expect(page.locator(".candidate")).to_have_count(2)
    expect(page.locator("#comment")).to_have_value("keep me")
    assert not Judgment.objects.exists()
    page.locator("[data-removes-flag]").click()
    with page.expect_response("**/submit/") as stored:
        page.get_by_role("button", name="Submit").last.click()
    assert stored.value.status == 204
    expect(page.locator(".candidate")).to_have_count(4)
    expect(page.locator("#order")).to_have_value("A > B = C")
    assert Judgment.objects.get().comment == "keep me"


def test_a_page_that_waits_shows_what_was_submitted_as_waiting_not_as_done(
    project: Project, alice: User, open_as: Open
):
    factories.make_comparison(project)
    page = open_as(alice, LABEL)
    page.keyboard.press("2")
    page.context.set_offline(True)
    page.keyboard.press("Enter")
    expect(page.locator("#submit-status")).to_contain_text("Kept on this device")
    assert Assignment.objects.get().state == "leased"
    page.context.set_offline(False)
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()
    assert Judgment.objects.count() == 1
