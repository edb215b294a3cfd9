"""Asking from the labelling screen by keyboard, and the badge that tells of the answer."""

from playwright.sync_api import expect

from annotation.models import Comment, Draft, Project, User
from annotation.services.inbox import post_comment
from tests.api.scene import make_scene
from tests.browser.conftest import Axe, Open


def test_a_question_is_asked_without_leaving_the_item_or_losing_the_draft(
    project: Project, alice: User, carol: User, open_as: Open, axe: Axe
):
    make_scene(project, alice, carol)
    page = open_as(alice, "/projects/tea/label/")
    page.locator("#comment").fill("half a thought")
    page.locator('[data-menu="ask"] summary').focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("Is iced tea meant? 1 2 s x")
    assert axe(page) == []
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Sent. The answer arrives here")).to_be_focused()
    expect(page.locator("#comment")).to_have_value("half a thought")
    question = Comment.objects.latest("pk")
    assert (question.author, question.text) == (alice, "Is iced tea meant? 1 2 s x")
    expect(page.locator("[data-saved]")).to_contain_text("saved")
    assert Draft.objects.get().fields["comment"] == ["half a thought"]


def test_the_badge_tells_of_an_answer_and_the_inbox_leads_to_it(
    project: Project, alice: User, carol: User, open_as: Open
):
    scene = make_scene(project, alice, carol)
    post_comment(assignment=scene.judgment.assignment, author=carol, text="Yes, it is.")
    page = open_as(alice, "/")
    expect(page.locator("#inbox-count")).to_have_text("1 unread")
    page.get_by_role("link", name="Inbox").press("Enter")
    page.get_by_role("button", name="carol replied").press("Enter")
    expect(page.get_by_text("Yes, it is.")).to_be_visible()
    expect(page.locator("#inbox-count")).to_have_count(0)
