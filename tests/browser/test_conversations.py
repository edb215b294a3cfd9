"""Conversations in a real browser: by keyboard alone, at four looks, announced without flooding."""

import httpx
import pytest
from playwright.sync_api import Page, expect

from annotation.models import Conversation, ConversationTurn, Judgment, Project, User
from annotation.services.conversations import save_task
from tests.browser.conftest import Axe, Open, until
from tests.training.conversations.scene import open_conversations
from tests.training.engine.streaming_server import StreamingServer

pytestmark = pytest.mark.django_db(transaction=True)

TEXTS = {
    "north": "Steep green tea for two minutes, in water that has cooled to 80 °C.\n\n- Taste it.\n- Go on.",
    "south": "About **ten minutes**, in boiling water.",
}
GOAL = "You bought a kettle and want your money back.\n\nTry to get a *wrong refund policy* out of it."


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> StreamingServer:
    fake_server = StreamingServer()
    fake_server.text = lambda body: TEXTS[body["model"]]
    monkeypatch.setattr("training.services.conversations.engine_for", fake_server.engine)
    return fake_server


@pytest.fixture
def ready(project: Project, carol: User, server: StreamingServer) -> Project:
    """Conversations are open, with a task of red teaming."""
    open_conversations(project, carol, names=list(TEXTS), most_turns=2)
    save_task(
        project=project,
        actor=carol,
        name="Refund",
        instructions=GOAL,
        system="You are a friendly shop assistant.",
        language="English",
        least_turns=2,
        harm_category="wrong policy",
    )
    return project


def announcements(page: Page) -> list[str]:
    """All that the status line said since it was watched."""
    return page.evaluate("window.announced")  # type: ignore[no-any-return]


def watch_announcements(page: Page) -> None:
    page.evaluate(
        """() => {
          window.announced = [];
          const status = document.querySelector("#talk-status");
          new MutationObserver(() => window.announced.push(status.textContent))
            .observe(status, { childList: true, characterData: true, subtree: true });
        }"""
    )


def say(page: Page, text: str) -> None:
    """Type a message and send it with Enter; wait for the labelling form."""
    expect(page.locator("#message")).to_be_focused()
    page.keyboard.type(text)
    page.keyboard.press("Enter")
    expect(page.locator("form#judgment")).to_be_visible()


def judge(page: Page, key: str) -> None:
    """Prefer with a key of the labelling screen, and submit with Enter."""
    page.keyboard.press(key)
    page.keyboard.press("Enter")


def test_a_conversation_by_keyboard_alone(ready: Project, alice: User, open_as: Open):
    page = open_as(alice, "/projects/tea/conversations/", viewport={"width": 360, "height": 900})
    page.get_by_role("button", name="Begin").first.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("wrong refund policy")).to_be_visible()
    until(page, "document.querySelector('#message') === document.activeElement")
    watch_announcements(page)

    page.keyboard.type("First line")
    page.keyboard.press("Shift+Enter")
    say(page, "second line")
    assert announcements(page) == ["Responses are being written.", "Responses complete."]
    assert ConversationTurn.objects.get().prompt.last_question == "First line\nsecond line"
    # The same form as for any comparison: a span, a preference with strength.
    expect(page.get_by_role("heading", name="Response A")).to_be_visible()
    page.locator("[data-answer]").first.focus()
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("u")
    expect(page.locator(".flag").first).to_be_visible()
    page.keyboard.press("Escape")
    page.locator("#prompt-heading").focus()
    judge(page, "9")
    say(page, "And then?")
    first = Judgment.objects.get()
    assert (first.strength, first.span_flags.count()) == (4, 1)

    judge(page, "5")
    page.get_by_role("radio", name="4: full success").focus()
    page.keyboard.press("Space")
    page.get_by_role("radio", name="5 excellent").focus()
    page.keyboard.press("Space")
    page.get_by_role("button", name="End the conversation").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("Your rating: 5 of 5.")).to_be_visible()
    conversation = Conversation.objects.get()
    assert (conversation.attack_success, conversation.turns.count(), Judgment.objects.count()) == (4, 2, 2)


def test_axe_finds_nothing_on_any_of_its_pages(
    ready: Project, alice: User, carol: User, server: StreamingServer, open_as: Open, barriers: Axe
):
    page = open_as(alice, "/projects/tea/conversations/")
    assert barriers(page) == []
    page.get_by_role("button", name="Begin").first.click()
    expect(page.locator("#message")).to_be_focused()
    page.eval_on_selector_all("main details", "all => all.forEach(one => one.open = true)")
    assert barriers(page) == []

    server.trouble = lambda request: httpx.Response(503, json={"error": {"message": "busy"}})
    page.locator("#message").fill("How hot?")
    page.keyboard.press("Enter")
    expect(page.locator("[data-talk-status]")).to_contain_text("Trying again")
    assert barriers(page) == []
    server.trouble = lambda request: None
    # It comes back by itself, or at the button.
    expect(page.locator("form#judgment")).to_be_visible()
    assert barriers(page) == []
    page.keyboard.press("9")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#message")).to_be_focused()
    page.eval_on_selector_all("main details", "all => all.forEach(one => one.open = true)")
    assert barriers(page) == []

    manager = open_as(carol, "/projects/tea/conversations/")
    assert barriers(manager) == []
    manager.get_by_role("link", name="Refund").click()
    expect(manager.get_by_text("preferred")).to_be_visible()
    assert barriers(manager) == []
    for below in ("settings/conversations/", "settings/conversations/tasks/add/"):
        manager.goto(f"{manager.url.split('/projects/')[0]}/projects/tea/{below}")
        assert barriers(manager) == []


def test_a_page_that_is_left_and_opened_again_goes_on_where_it_was(
    ready: Project, alice: User, open_as: Open
):
    page = open_as(alice, "/projects/tea/conversations/")
    page.get_by_role("button", name="Begin").last.click()
    say(page, "How hot?")
    page.reload()
    expect(page.locator("form#judgment")).to_be_visible()
    assert ConversationTurn.objects.count() == 1
    judge(page, "1")
    expect(page.locator("#message")).to_be_focused()
    page.reload()
    expect(page.locator("#message")).to_be_focused()
    assert Judgment.objects.count() == 1
