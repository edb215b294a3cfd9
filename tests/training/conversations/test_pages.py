"""Pages of conversations: begin, say, stream, judge with the labelling form, go on, end; settings."""

import json
import re
from collections.abc import Callable

import httpx
import pytest
from django.test import Client
from django.urls import reverse

from annotation.choices import AssignmentState
from annotation.models import (
    Assignment,
    Conversation,
    ConversationTask,
    ConversationTurn,
    Judgment,
    Project,
    User,
)
from annotation.services.assignments.display_order import tokens_of
from annotation.services.conversations import end_conversation, save_task
from tests import factories
from tests.training.comparing.arena_scene import make_checkpoints
from tests.training.conversations.scene import judge_turn, open_conversations, talk, text_at
from tests.training.engine.streaming_server import StreamingServer
from training.models import ConversationSettings
from training.selectors.conversations import standing_of
from training.services.conversations import begin, say

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]
SCRIPT = {"HX-Request": "true"}
NAMES = ("north", "south")


@pytest.fixture
def open_project(project: Project, carol: User, server: StreamingServer) -> Project:
    open_conversations(project, carol)
    return project


@pytest.fixture
def conversation(open_project: Project, alice: User) -> Conversation:
    return begin(project=open_project, annotator=alice)


@pytest.fixture
def browser(alice: User, client_of: SignIn) -> Client:
    return client_of(alice)


def address(name: str, conversation: Conversation) -> str:
    return reverse(name, args=[conversation.project.slug, conversation.pk])


def page_of(browser: Client, conversation: Conversation, **headers: str) -> str:
    response = browser.get(address("conversation", conversation), headers=headers)
    assert response.status_code == 200
    return response.content.decode()


def events_of(body: bytes) -> list[dict[str, object]]:
    return [json.loads(part[6:]) for part in body.decode().split("\n\n") if part.startswith("data: ")]


def form_of(assignment: Assignment, conversation: Conversation, *, best: int = 1) -> dict[str, str]:
    """Return the fields that the labelling form in a conversation sends: one response is much better."""
    token = list(tokens_of(assignment))[best - 1]
    return {
        "idempotency_key": "7f3a0000-0000-4000-8000-000000000001",
        "conversation": str(conversation.pk),
        "choice": f"win:{token}:4",
        "span_flags": "[]",
        "active_seconds": "3",
    }


# ── Talking ───────────────────────────────────────────────────────────────────────────


def test_from_the_list_through_a_turn_and_its_annotation_to_the_next_message(
    open_project: Project, browser: Client, alice: User
):
    begun = browser.post(reverse("conversation-begin", args=["tea"]), {"task": ""})
    conversation = Conversation.objects.get(annotator=alice)
    assert begun["Location"] == conversation.get_absolute_url()
    assert "Your message" in page_of(browser, conversation)

    content = browser.post(
        address("conversation-say", conversation), {"text": "How hot?"}, headers=SCRIPT
    ).content.decode()
    assert f'data-write="{address("conversation-write", conversation)}"' in content

    stream = browser.post(address("conversation-write", conversation), headers=SCRIPT)
    assert stream["Content-Type"] == "text/event-stream"
    events = events_of(b"".join(stream))
    assert events[-1] == {"done": True}
    turn = ConversationTurn.objects.get()
    for position in (1, 2):
        pieces = [text for event in events for place, text in event.get("pieces", ()) if place == position]  # type: ignore[attr-defined]
        assert "".join(pieces) == text_at(turn, position)

    judging = page_of(browser, conversation)
    assert 'id="judgment"' in judging
    assignment = Assignment.objects.get()
    sent = browser.post(
        reverse("submit", args=["tea", assignment.pk]), form_of(assignment, conversation), headers=SCRIPT
    )
    # Nothing to show: the script asks for the conversation by itself.
    assert (sent.status_code, sent.content) == (200, b"")
    judgment = Judgment.objects.get()
    assert (judgment.strength, judgment.comparison) == (4, turn.comparison)
    assert Assignment.objects.count() == 1

    following = page_of(browser, conversation, **SCRIPT)
    assert text_at(turn, 1) in following
    assert 'name="text"' in following
    assert "<html" not in following


def test_without_a_script_each_step_leads_to_the_next_page(conversation: Conversation, browser: Client):
    there = conversation.get_absolute_url()
    response = browser.post(address("conversation-say", conversation), {"text": "How hot?"})
    assert response["Location"] == there
    assignment = Assignment.objects.get()
    sent = browser.post(reverse("submit", args=["tea", assignment.pk]), form_of(assignment, conversation))
    assert sent["Location"] == there


def test_a_message_that_is_refused_stays_in_its_field(conversation: Conversation, browser: Client):
    refused = browser.post(address("conversation-say", conversation), {"text": "  "}, headers=SCRIPT)
    assert refused.status_code == 422
    assert "Write a message." in refused.content.decode()


def test_a_message_that_comes_while_responses_wait_shows_them(conversation: Conversation, browser: Client):
    talk(conversation, "How hot?")
    shown = browser.post(address("conversation-say", conversation), {"text": "And now?"}, headers=SCRIPT)
    assert shown.status_code == 200
    assert 'id="judgment"' in shown.content.decode()
    assert ConversationTurn.objects.count() == 1


def test_an_annotation_that_lacks_something_comes_back_in_its_conversation(
    conversation: Conversation, browser: Client
):
    talk(conversation, "How hot?")
    assignment = Assignment.objects.get()
    sent = form_of(assignment, conversation) | {"choice": ""}
    refused = browser.post(reverse("submit", args=["tea", assignment.pk]), sent, headers=SCRIPT)
    assert refused.status_code == 422
    text = refused.content.decode()
    assert f'name="conversation" value="{conversation.pk}"' in text
    assert f'data-label="{conversation.get_absolute_url()}"' in text
    # What comes next is no other comparison of the queue.
    assert "data-next" not in text


def test_a_skipped_turn_goes_on_with_a_response_by_chance(conversation: Conversation, browser: Client):
    talk(conversation, "How hot?")
    assignment = Assignment.objects.get()
    skipped = browser.post(
        reverse("skip", args=["tea", assignment.pk]),
        {"reason": "broken", "conversation": str(conversation.pk)},
        headers=SCRIPT,
    )
    assert (skipped.status_code, skipped.content) == (200, b"")
    assert 'name="text"' in page_of(browser, conversation)


def test_the_last_annotation_may_be_changed_before_the_next_message(
    conversation: Conversation, browser: Client
):
    turn = talk(conversation, "How hot?")
    assignment = judge_turn(conversation, best=1)
    revise = f"{reverse('revise', args=['tea', assignment.pk])}?conversation={conversation.pk}"
    assert revise in page_of(browser, conversation)
    assert f'name="conversation" value="{conversation.pk}"' in browser.get(revise).content.decode()
    browser.post(reverse("submit", args=["tea", assignment.pk]), form_of(assignment, conversation, best=2))
    assert text_at(turn, 2) in page_of(browser, conversation)


def test_another_persons_conversation_is_no_way_back(
    conversation: Conversation, open_project: Project, bob: User, client_of: SignIn
):
    comparison = factories.make_comparison(open_project)
    assignment = factories.lease_to(comparison, bob)
    sent = client_of(bob).post(
        reverse("submit", args=["tea", assignment.pk]), form_of(assignment, conversation)
    )
    assert sent["Location"] == reverse("label", args=["tea"])


# ── Blind ─────────────────────────────────────────────────────────────────────────────


def test_no_name_of_a_model_stands_on_any_page_of_who_talks(
    open_project: Project, browser: Client, alice: User, server: StreamingServer
):
    server.text = lambda body: f"{len(body['messages'])} messages."
    conversation = begin(project=open_project, annotator=alice)
    response = browser.post(address("conversation-say", conversation), {"text": "How hot?"}, headers=SCRIPT)
    stream = browser.post(address("conversation-write", conversation), headers=SCRIPT)
    pages = [response.content.decode(), b"".join(stream).decode(), page_of(browser, conversation)]
    judge_turn(conversation)
    pages += [page_of(browser, conversation)]
    end_conversation(conversation=conversation, actor=alice)
    pages += [
        page_of(browser, conversation),
        browser.get(reverse("conversations", args=["tea"])).content.decode(),
    ]
    assert [name for page in pages for name in NAMES if re.search(rf"\b{name}\b", page)] == []


def test_a_failed_server_is_reported_without_its_words(
    conversation: Conversation, browser: Client, alice: User, server: StreamingServer
):
    server.trouble = lambda request: httpx.Response(503, json={"error": {"message": "north is down"}})
    say(conversation=conversation, annotator=alice, text="How hot?")
    stream = browser.post(address("conversation-write", conversation), headers=SCRIPT)
    (event,) = events_of(b"".join(stream))
    assert event == {"error": "A response could not be generated. Try again in a moment."}


def test_a_turn_that_is_complete_is_not_streamed_again(conversation: Conversation, browser: Client):
    talk(conversation, "How hot?")
    assert browser.post(address("conversation-write", conversation), headers=SCRIPT).status_code == 204


# ── The end, and who may look ─────────────────────────────────────────────────────────


def test_the_end_takes_the_ratings_and_gives_the_open_turn_back(
    open_project: Project, browser: Client, alice: User, carol: User
):
    task = save_task(project=open_project, actor=carol, name="Refund", harm_category="fraud")
    conversation = begin(project=open_project, annotator=alice, task=task)
    talk(conversation, "How hot?")
    judge_turn(conversation)
    assert "fraud" in page_of(browser, conversation)
    talk(conversation, "And now?")
    ended = browser.post(
        address("conversation-end", conversation),
        {"rating": "4", "attack_success": "0", "comment": "Hm"},
        headers=SCRIPT,
    )
    assert "Your rating: 4 of 5." in ended.content.decode()
    conversation.refresh_from_db()
    assert (conversation.rating, conversation.attack_success, conversation.comment) == (4, 0, "Hm")
    assert Assignment.objects.filter(state=AssignmentState.RELEASED).count() == 1


def test_a_rating_off_the_scale_ends_nothing(conversation: Conversation, browser: Client):
    talk(conversation, "How hot?")
    judge_turn(conversation)
    refused = browser.post(address("conversation-end", conversation), {"rating": "9"}, headers=SCRIPT)
    assert refused.status_code == 422
    conversation.refresh_from_db()
    assert conversation.ended_at is None


def test_a_manager_reads_every_conversation_with_the_names(
    conversation: Conversation, carol: User, bob: User, client_of: SignIn
):
    turn = talk(conversation, "How hot?")
    judge_turn(conversation, best=2)
    text = page_of(client_of(carol), conversation)
    assert all(name in text for name in (*NAMES, text_at(turn, 1), "preferred", "alice"))
    assert "alice" in client_of(carol).get(reverse("conversations", args=["tea"])).content.decode()
    other = client_of(bob)
    assert other.get(address("conversation", conversation)).status_code == 404
    assert "No conversations yet." in other.get(reverse("conversations", args=["tea"])).content.decode()


def test_a_closed_project_offers_nothing(open_project: Project, browser: Client):
    ConversationSettings.objects.update(is_open=False)
    page = browser.get(reverse("conversations", args=["tea"])).content.decode()
    assert "Conversations are closed" in page
    refused = browser.post(reverse("conversation-begin", args=["tea"]), {"task": ""})
    assert (refused.status_code, Conversation.objects.count()) == (422, 0)


def test_hostile_text_in_a_conversation_does_nothing(
    open_project: Project, browser: Client, alice: User, server: StreamingServer
):
    server.text = lambda body: "<script>alert(1)</script><img src=x onerror=alert(2)>"
    conversation = begin(project=open_project, annotator=alice)
    talk(conversation, "<script>alert(3)</script>")
    judge_turn(conversation)
    page = page_of(browser, conversation)
    assert "<script>alert" not in page
    assert "<img" not in page


# ── Settings ──────────────────────────────────────────────────────────────────────────


def test_a_manager_sets_conversations_up_and_begins_tasks(project: Project, carol: User, client_of: SignIn):
    make_checkpoints(project, NAMES)
    manager = client_of(carol)
    there = reverse("conversation-settings", args=["tea"])
    sent = {
        "checkpoints": list(NAMES),
        "responses": "2",
        "continues_with": "random",
        "most_turns": "5",
        "temperature": "0.5",
        "max_tokens": "64",
        "is_open": "on",
    }
    assert manager.post(there, sent)["Location"] == there
    stored = ConversationSettings.objects.get()
    assert (stored.continues_with, stored.most_turns, stored.rates_whole) == ("random", 5, False)
    assert stored.sampling == {"temperature": 0.5, "top_p": 0.95, "max_tokens": 64}
    assert manager.post(there, sent | {"checkpoints": []}).status_code == 422

    added = manager.post(
        reverse("conversation-task-add", args=["tea"]),
        {"name": "Refund", "least_turns": "2", "opening": "My tea is cold."},
    )
    assert added.status_code == 302
    task = ConversationTask.objects.get()
    changed = reverse("conversation-task", args=["tea", task.pk])
    assert "My tea is cold." in manager.get(changed).content.decode()
    manager.post(changed, {"name": "Refund", "least_turns": "3", "language": "German"})
    task.refresh_from_db()
    assert (task.least_turns, task.language, task.opening) == (3, "German", "")
    manager.post(reverse("conversation-task-archive", args=["tea", task.pk]))
    task.refresh_from_db()
    assert task.archived_at is not None


def test_the_page_of_a_conversation_costs_the_same_queries_however_long_it_is(
    conversation: Conversation, browser: Client, django_assert_max_num_queries: Callable[..., object]
):
    for number in range(4):
        talk(conversation, f"Question {number}?")
        judge_turn(conversation)
    assert standing_of(conversation).may_go_on
    with django_assert_max_num_queries(20):  # type: ignore[attr-defined]
        page_of(browser, conversation)
