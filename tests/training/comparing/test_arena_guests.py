"""Guests of an arena see its pairs and nothing else; nobody learns who wrote what before the vote."""

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from annotation.models import Judgment, Project, User
from tests import factories
from tests.architecture.address_table import TABLE
from tests.training.comparing.arena_scene import ready_arena
from tests.training.engine.fake_server import FakeServer
from training.models import ArenaBallot, ArenaLink, Checkpoint, VoteCount, Voters
from training.selectors.evaluations import people_say
from training.services import arenas
from training.services.leaderboard import count_votes
from training.services.voting import VOTES

pytestmark = pytest.mark.django_db


@pytest.fixture
def arena(project: Project, carol: User) -> ArenaLink:
    # Ids of more than two digits: a page full of small numbers would hide one.
    factories.make_completions(factories.make_prompt(project, "Before?", split="train"), ["x"] * 120)
    server = FakeServer()
    server.text = lambda body: "Long." if body["model"] == "north" else "Short."
    return ready_arena(project, carol, server=server, for_guests=True)


@pytest.fixture
def guest(arena: ArenaLink) -> Client:
    client = Client()
    assert client.post(reverse("arena-begin", args=[arena.slug])).status_code == 302
    return client


def test_a_visitor_reads_what_it_is_about_and_becomes_a_guest_only_by_beginning(arena):
    client = Client()
    page = client.get(arena.get_absolute_url())
    assert page.status_code == 200
    assert "Begin" in page.content.decode()
    assert not User.objects.filter(is_guest=True).exists()
    client.post(reverse("arena-begin", args=[arena.slug]))
    client.post(reverse("arena-begin", args=[arena.slug]))
    guest_user = User.objects.get(is_guest=True)
    assert not guest_user.is_active
    assert not guest_user.has_usable_password()
    assert not guest_user.memberships.exists()


def test_nothing_of_a_model_is_told_before_the_vote_and_the_names_after_it(arena, guest):
    page = guest.get(arena.get_absolute_url())
    ballot = ArenaBallot.objects.get()
    address = reverse("arena-ballot", args=[arena.slug, ballot.pk])
    for answer in (page, guest.get(address), guest.post(address, {"vote": "nonsense"})):
        everything = answer.content.decode() + str(answer.headers)
        for secret in ("north", "south", *arena_ids(arena)):
            assert not re.search(rf"\b{secret}\b", everything), secret
        assert answer.headers["Cache-Control"].count("no-store") == 1
    response = guest.post(address, {"vote": "first"}, follow=True)
    assert response.redirect_chain == [(address, 302)]
    assert "north" in response.content.decode()
    assert "south" in response.content.decode()


def arena_ids(arena: ArenaLink) -> list[str]:
    """Ids of completions tell their order of writing, and so the model."""
    ids = [pk for pair in arena.pairs.all() for pk in (pair.left_id, pair.right_id)]
    assert min(ids) > 99
    return [str(pk) for pk in ids]


def test_a_guests_votes_are_told_apart(arena, guest):
    guest.get(arena.get_absolute_url())
    ballot = ArenaBallot.objects.get()
    guest.post(reverse("arena-ballot", args=[arena.slug, ballot.pk]), {"vote": "second"})
    assert Judgment.objects.get().annotator.is_guest
    count_votes()
    assert set(VoteCount.objects.values_list("voters", flat=True)) == {Voters.GUESTS}


def test_an_annotator_votes_under_their_own_name(arena, alice, client_of):
    client_of(alice).get(arena.get_absolute_url())
    assert ArenaBallot.objects.get().voter == alice


def test_a_guest_is_a_stranger_on_every_other_page(arena, guest, project):
    """Every address without a part of its own, and those of the project, as anonymous people get them."""
    # Longer than what chance writes into a token of the page.
    project.name = "Tea of the afternoon"
    project.save()
    for name in TABLE:
        if name.startswith(("arena", "login", "logout", "v1-")):
            continue
        try:
            address = reverse(name)
        except Exception:
            try:
                address = reverse(name, kwargs={"slug": project.slug})
            except Exception:
                continue
        answer, anonymous = guest.get(address), Client().get(address)
        assert answer.status_code == anonymous.status_code, name
        assert answer.headers.get("Location") == anonymous.headers.get("Location"), name
        assert project.name not in answer.content.decode(), name
    assert project.name not in guest.get(arena.get_absolute_url()).content.decode()


def test_another_guests_ballot_does_not_exist(arena, guest):
    guest.get(arena.get_absolute_url())
    ballot = ArenaBallot.objects.get()
    other = Client()
    other.post(reverse("arena-begin", args=[arena.slug]))
    assert other.get(reverse("arena-ballot", args=[arena.slug, ballot.pk])).status_code == 404
    assert Client().get(reverse("arena-ballot", args=[arena.slug, ballot.pk])).status_code == 404


def test_an_address_that_was_guessed_is_no_arena(arena):
    assert Client().get("/arena/guessed/").status_code == 404


def test_an_arena_without_guests_is_closed_to_strangers(arena, oscar, client_of):
    ArenaLink.objects.update(for_guests=False)
    assert Client().get(arena.get_absolute_url())["Location"].startswith(reverse("login"))
    assert client_of(oscar).get(arena.get_absolute_url()).status_code == 404


def test_an_outsider_with_the_link_votes_as_a_guest(arena, oscar, client_of):
    client = client_of(oscar)
    client.post(reverse("arena-begin", args=[arena.slug]))
    client.get(arena.get_absolute_url())
    assert ArenaBallot.objects.get().voter.is_guest


def test_an_arena_that_is_over_says_so(arena, guest):
    ArenaLink.objects.update(most_votes=0)
    page = guest.get(arena.get_absolute_url())
    assert page.status_code == 410
    assert "over" in page.content.decode()
    assert Client().post(reverse("arena-begin", args=[arena.slug])).status_code == 302
    assert User.objects.filter(is_guest=True).count() == 1


def test_a_crowd_of_new_guests_and_a_hasty_voter_are_asked_to_wait(arena, guest, monkeypatch):
    monkeypatch.setattr(arenas, "GUESTS_A_MINUTE", 1)
    answer = Client().post(reverse("arena-begin", args=[arena.slug]))
    assert (answer.status_code, answer["Retry-After"]) == (429, "60")
    monkeypatch.setattr(arenas, "BALLOTS_A_MINUTE", 0)
    assert guest.get(arena.get_absolute_url()).status_code == 429


def test_one_address_begins_as_so_many_guests_and_others_go_on(arena, guest, monkeypatch):
    monkeypatch.setattr(arenas, "GUESTS_OF_ADDRESS", {1: 2, 60: 3})
    address = reverse("arena-begin", args=[arena.slug])
    begin = [Client().post(address).status_code for _ in range(2)]
    assert begin == [302, 429]
    assert Client().post(address, REMOTE_ADDR="203.0.113.9").status_code == 302
    # Not within a minute, and within an hour.
    User.objects.filter(is_guest=True).update(date_joined=timezone.now() - timedelta(minutes=2))
    assert [Client().post(address).status_code for _ in range(2)] == [302, 429]
    assert not User.objects.filter(is_guest=True, username__contains="127.0.0.1").exists()


def test_votes_of_guests_decide_nothing_and_votes_of_members_are_counted_as_such(arena, alice):
    north, south = (Checkpoint.objects.get(name=name) for name in ("north", "south"))
    for voter in (arenas.begin_as_guest(arena=arena), arenas.begin_as_guest(arena=arena), alice):
        ballot = arenas.next_ballot(arena=arena, voter=voter)
        arenas.vote_in_arena(ballot=ballot, voter=voter, vote=VOTES["equal"])
    people = people_say(north, south)
    assert (people.judgments, people.held_out_judgments, people.held_out_arena_votes) == (1, 1, 1)
