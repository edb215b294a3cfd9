"""An arena as a conversation: guests talk on the same screen, vote, and see names at the end."""

import re
from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from annotation.choices import Purpose, Split
from annotation.models import Assignment, Conversation, Judgment, Project, Prompt, User
from annotation.services.assignments.next import assign_next
from tests.training.comparing.arena_scene import make_checkpoints
from tests.training.engine.streaming_server import StreamingServer
from training.models import ArenaLink, TurnResponse, VoteCount, Voters
from training.services import conversations
from training.services.arenas import close_arena, create_arena
from training.services.leaderboard import count_votes

pytestmark = pytest.mark.django_db
SCRIPT = {"HX-Request": "true"}
NAMES = ("north", "south")


@pytest.fixture
def arena(project: Project, carol: User, server: StreamingServer) -> ArenaLink:
    server.text = lambda body: f"{len(body['messages'])} cups."
    return create_arena(
        project=project,
        created_by=carol,
        name="Talk",
        checkpoints=make_checkpoints(project, NAMES),
        prompts=20,
        for_guests=True,
        is_conversation=True,
    )


@pytest.fixture
def guest(arena: ArenaLink) -> Client:
    client = Client()
    client.post(reverse("arena-begin", args=[arena.slug]))
    assert client.get(arena.get_absolute_url()).status_code == 302
    return client


def at(name: str, arena: ArenaLink) -> str:
    return reverse(name, args=[arena.slug, Conversation.objects.get().pk])


def turn(guest: Client, arena: ArenaLink, text: str) -> str:
    """Say something and have the responses streamed; the page on which they are judged."""
    assert guest.post(at("arena-talk-say", arena), {"text": text}, headers=SCRIPT).status_code == 200
    stream = guest.post(at("arena-talk-write", arena), headers=SCRIPT)
    assert b'"done": true' in b"".join(stream)
    return guest.get(at("arena-talk", arena)).content.decode()


def vote(guest: Client, arena: ArenaLink, page: str, *, choice: str | None = None) -> int:
    """Send the labelling form of a page: the first response is much better."""
    key = re.search(r'name="idempotency_key" value="([^"]+)"', page)
    best = re.search(r'value="(win:[^"]+:4)"', page)
    assert key
    assert best
    form = {
        "idempotency_key": key[1],
        "choice": choice or best[1],
        "span_flags": "[]",
        "active_seconds": "1",
    }
    return guest.post(at("arena-talk-vote", arena), form, headers=SCRIPT).status_code


def test_a_guest_talks_votes_and_sees_the_names_at_the_end(arena: ArenaLink, guest: Client):
    pages = [turn(guest, arena, "How much?")]
    assert f'action="{at("arena-talk-vote", arena)}"' in pages[0]
    assert vote(guest, arena, pages[0]) == 200
    pages.append(guest.get(at("arena-talk", arena)).content.decode())
    pages.append(turn(guest, arena, "And tea?"))
    assert vote(guest, arena, pages[2], choice="both_bad") == 200
    assert not [name for page in pages for name in NAMES if re.search(rf"\b{name}\b", page)]

    ended = guest.post(at("arena-talk-end", arena), headers=SCRIPT).content.decode()
    assert all(name in ended for name in NAMES)
    arena.refresh_from_db()
    assert arena.votes == 2
    first, second = Judgment.objects.order_by("pk")
    assert first.annotator.is_guest
    assert (first.strength, second.verdict) == (4, "both_bad")
    best = TurnResponse.objects.get(turn__index=1, position=1)
    assert first.ranks.get(rank=1).completion_id == best.completion_id
    count_votes()
    assert set(VoteCount.objects.values_list("voters", flat=True)) == {Voters.GUESTS}
    assert VoteCount.objects.filter(slice="arena").exists()


def test_nothing_is_learned_from_it_and_no_annotator_meets_it(
    arena: ArenaLink, guest: Client, project: Project, alice: User
):
    vote(guest, arena, turn(guest, arena, "How much?"))
    assert assign_next(project=project, annotator=alice) is None
    assert {
        assignment.comparison.purpose for assignment in Assignment.objects.select_related("comparison")
    } == {Purpose.ARENA}
    assert set(Prompt.objects.values_list("split", flat=True)) == {Split.HELD_OUT}


def test_a_vote_sent_twice_is_one(arena: ArenaLink, guest: Client):
    page = turn(guest, arena, "How much?")
    assert [vote(guest, arena, page), vote(guest, arena, page)] == [200, 200]
    arena.refresh_from_db()
    assert (arena.votes, Judgment.objects.count()) == (1, 1)


def test_another_visitor_finds_no_conversation(arena: ArenaLink, guest: Client):
    other = Client()
    other.post(reverse("arena-begin", args=[arena.slug]))
    assert other.get(at("arena-talk", arena)).status_code == 404
    assert Client().post(at("arena-talk-say", arena), {"text": "Hi"}).status_code == 404


def test_a_visitor_has_one_open_conversation(arena: ArenaLink, guest: Client):
    first = guest.get(arena.get_absolute_url())["Location"]
    assert guest.get(arena.get_absolute_url())["Location"] == first
    guest.post(at("arena-talk-say", arena), {"text": "Hi"}, headers=SCRIPT)
    b"".join(guest.post(at("arena-talk-write", arena), headers=SCRIPT))
    guest.post(at("arena-talk-end", arena))
    assert guest.get(arena.get_absolute_url())["Location"] != first


def test_more_turns_than_a_person_reads_are_refused(
    arena: ArenaLink, guest: Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(conversations, "TURNS_A_MINUTE", 1)
    vote(guest, arena, turn(guest, arena, "How much?"))
    refused = guest.post(at("arena-talk-say", arena), {"text": "And tea?"}, headers=SCRIPT)
    assert (refused.status_code, refused["Retry-After"]) == (422, "60")


def test_an_arena_that_is_over_takes_neither_messages_nor_votes(arena: ArenaLink, guest: Client, carol: User):
    page = turn(guest, arena, "How much?")
    close_arena(arena=arena, closed_by=carol)
    assert vote(guest, arena, page) == 422
    assert Judgment.objects.count() == 0
    assert Client().get(arena.get_absolute_url()).status_code == 410


def test_an_annotator_talks_under_their_own_name(
    arena: ArenaLink, alice: User, client_of: Callable[[User], Client]
):
    client_of(alice).get(arena.get_absolute_url())
    assert Conversation.objects.get().annotator == alice
    # It is no conversation of the project's list.
    page = client_of(alice).get(reverse("conversations", args=["tea"])).content.decode()
    assert "No conversations yet." in page


def test_the_form_opens_one_without_held_out_prompts(
    project: Project, carol: User, client_of: Callable[[User], Client]
):
    make_checkpoints(project, NAMES)
    sent = {
        "name": "Talk",
        "checkpoints": list(NAMES),
        "prompts": "20",
        "temperature": "0.7",
        "max_tokens": "64",
        "is_conversation": "on",
    }
    manager = client_of(carol)
    assert manager.post(reverse("arena-create", args=["tea"]), sent).status_code == 302
    assert ArenaLink.objects.get().is_conversation
    assert "Conversations" in manager.get(reverse("arenas", args=["tea"])).content.decode()
