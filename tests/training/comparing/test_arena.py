"""Arenas: answers written ahead, pairs balanced, names shown after the vote, nothing learned from votes."""

from collections import Counter
from datetime import timedelta

import httpx
import pytest
from django.utils import timezone

from annotation.choices import Purpose, Split, Verdict
from annotation.errors import NotAllowed
from annotation.models import AuditEntry, Comparison, Completion, Project, User
from annotation.selectors.access import judgments_current, last_submitted
from annotation.services.assignments.next import assign_next
from tests import factories
from tests.refusals import refused
from tests.training.comparing.arena_scene import engines_of, make_checkpoints, ready_arena
from tests.training.engine.fake_server import FakeServer
from training.models import ArenaBallot, ArenaLink, ArenaPair, Slice, VoteCount
from training.selectors.rounds import decided_judgments
from training.services.arenas import (
    BALLOTS_A_MINUTE,
    TooFast,
    close_arena,
    create_arena,
    next_ballot,
    prepare_arena,
    vote_in_arena,
)
from training.services.leaderboard import count_votes
from training.services.voting import VOTES

pytestmark = pytest.mark.django_db


def server_that_signs() -> FakeServer:
    """Every answer says who wrote it, in words of no model."""
    server = FakeServer()
    server.text = lambda body: f"Writer {body['model'][::-1]}, seed {body['seed']}."
    return server


@pytest.fixture
def arena(project: Project, carol: User) -> ArenaLink:
    return ready_arena(project, carol, server=server_that_signs())


def test_every_held_out_prompt_is_answered_once_by_each_and_no_other_prompt(arena, project):
    assert ArenaPair.objects.count() == 3
    answers = Completion.objects.filter(prompt__project=project)
    assert Counter(answers.values_list("prompt__split", flat=True)) == {Split.HELD_OUT: 6}
    assert Counter(answers.values_list("source__name", flat=True)) == {"north": 3, "south": 3}
    assert arena.prepared_at is not None
    assert set(Comparison.objects.values_list("purpose", "open_slots")) == {(Purpose.ARENA, 0)}


def test_preparing_again_asks_nothing_and_adds_nothing(arena):
    server = server_that_signs()
    ArenaLink.objects.update(prepared_at=None, heartbeat_at=None)
    prepare_arena(arena.pk, engines=engines_of(server))
    assert server.asked == []
    assert ArenaPair.objects.count() == 3


def test_a_worker_prepares_what_nobody_else_does_and_waits_for_a_server_that_is_down(project, carol):
    server = FakeServer()
    server.trouble = lambda request: httpx.Response(503, json={"error": {"message": "still loading"}})
    arena = ready_arena(project, carol, server=server)
    assert arena.prepared_at is None
    assert "still loading" in arena.progress
    prepare_arena(arena.pk, engines=engines_of(server_that_signs()))
    arena.refresh_from_db()
    assert (arena.progress, arena.prepared_at is None) == ("3 / 3", False)


def test_texts_that_are_equal_or_name_a_model_make_no_pair(project, carol):
    server = FakeServer()
    texts = {"north": "Same.", "south": "Same.", "east": "I am ChatGPT."}
    server.text = lambda body: texts[body["model"]]
    ready_arena(project, carol, names=list(texts), server=server)
    assert ArenaPair.objects.count() == 0


def test_pairs_of_models_and_sides_are_balanced_over_voters(project, carol):
    arena = ready_arena(project, carol, names=("a", "b", "c"), prompts=4, server=server_that_signs())
    voters = [factories.make_user(f"v{number}") for number in range(8)]
    for voter in voters:
        for _ in range(6):
            ballot = next_ballot(arena=arena, voter=voter)
            vote_in_arena(ballot=ballot, voter=voter, vote=VOTES["equal"])
    pairs = Counter(ArenaBallot.objects.values_list("pair__models_key", flat=True))
    assert set(pairs.values()) == {16}
    first: Counter[str] = Counter()
    for ballot in ArenaBallot.objects.select_related("pair"):
        first[ballot.pair.models_key] += ballot.display_order[0] == ballot.pair.left_id
    assert set(first.values()) == {8}


def test_which_side_stands_first_is_not_always_the_same(project, carol):
    """The first pairs of 40 voters in as many arenas of one pair: one side 40 times is no chance."""
    arena = ready_arena(project, carol, prompts=1, server=server_that_signs())
    sides = set()
    for number in range(40):
        ArenaBallot.objects.all().delete()
        ArenaPair.objects.update(given=0, given_left_first=0)
        ballot = next_ballot(arena=arena, voter=factories.make_user(f"w{number}"))
        sides.add(ballot.display_order[0] == ballot.pair.left_id)
        if len(sides) == 2:
            break
    assert sides == {True, False}


def test_a_pair_stays_before_its_voter_until_the_vote_and_never_comes_again(arena, alice):
    ballot = next_ballot(arena=arena, voter=alice)
    assert next_ballot(arena=arena, voter=alice) == ballot
    seen = set()
    while (ballot := next_ballot(arena=arena, voter=alice)) is not None:
        seen.add(ballot.pair_id)
        vote_in_arena(ballot=ballot, voter=alice, vote=VOTES["cannot_judge"])
    assert len(seen) == 3


def test_a_vote_is_a_judgment_by_completion_id_and_is_counted_once(arena, alice):
    ballot = next_ballot(arena=arena, voter=alice)
    second = Completion.objects.get(pk=ballot.display_order[1])
    voted = vote_in_arena(ballot=ballot, voter=alice, vote=VOTES["second"])
    again = vote_in_arena(ballot=ballot, voter=alice, vote=VOTES["first"])
    assert again.judgment == voted.judgment
    judgment = voted.judgment
    assert judgment.verdict == Verdict.RANKED
    assert {row.completion_id: row.rank for row in judgment.ranks.all()} == {
        ballot.display_order[0]: 2,
        second.pk: 1,
    }
    assert judgment.assignment.display_order == ballot.display_order
    count_votes()
    row = VoteCount.objects.get(slice=Slice.ARENA)
    won = row.left if row.wins else row.right
    assert (won.name, row.wins + row.losses) == (second.source.name, 1)
    arena.refresh_from_db()
    assert arena.votes == 1


def test_nothing_learns_from_an_arena_and_no_queue_hands_it_out(arena, project, alice):
    """Not even as a measurement: a snapshot reads work alone, and an arena's votes are none."""
    ballot = next_ballot(arena=arena, voter=alice)
    vote_in_arena(ballot=ballot, voter=alice, vote=VOTES["first"])
    assert list(judgments_current(project)) == []
    assert list(decided_judgments(project, [1])) == []
    assert assign_next(project=project, annotator=alice) is None
    assert last_submitted(alice, project) is None


def test_an_arena_ends_by_its_limit_its_time_or_its_manager(project, carol, alice, bob):
    arena = ready_arena(project, carol, server=server_that_signs(), most_votes=1)
    mine, theirs = next_ballot(arena=arena, voter=alice), next_ballot(arena=arena, voter=bob)
    vote_in_arena(ballot=mine, voter=alice, vote=VOTES["equal"])
    with refused("arena_over"):
        vote_in_arena(ballot=theirs, voter=bob, vote=VOTES["equal"])
    arena.refresh_from_db()
    assert next_ballot(arena=arena, voter=alice) is None
    ArenaLink.objects.update(most_votes=None, expires_at=timezone.now() - timedelta(seconds=1))
    arena.refresh_from_db()
    assert not arena.is_open
    ArenaLink.objects.update(expires_at=None)
    close_arena(arena=arena, closed_by=carol)
    close_arena(arena=arena, closed_by=carol)
    arena.refresh_from_db()
    assert not arena.is_open
    assert list(AuditEntry.objects.order_by("pk").values_list("action", flat=True)) == [
        "arena.create",
        "arena.close",
    ]


def test_nobody_votes_faster_than_one_can_read(project, carol, alice):
    arena = ready_arena(project, carol, prompts=BALLOTS_A_MINUTE + 1, server=server_that_signs())
    for _ in range(BALLOTS_A_MINUTE):
        vote_in_arena(ballot=next_ballot(arena=arena, voter=alice), voter=alice, vote=VOTES["equal"])
    with refused("too_fast", TooFast):
        next_ballot(arena=arena, voter=alice)
    ArenaBallot.objects.update(given_at=timezone.now() - timedelta(minutes=2))
    assert next_ballot(arena=arena, voter=alice) is not None


def test_another_persons_ballot_is_refused(arena, alice, bob):
    with refused("assigned_to_another", NotAllowed):
        vote_in_arena(ballot=next_ballot(arena=arena, voter=alice), voter=bob, vote=VOTES["first"])


def test_what_cannot_be_an_arena_is_refused_by_field(project, carol, alice):
    checkpoints = make_checkpoints(project)
    fields = {"project": project, "name": "A", "prompts": 5}
    with refused("manager_changes_arenas", NotAllowed):
        create_arena(created_by=alice, checkpoints=checkpoints, **fields)
    with refused("invalid_checkpoint_count") as refusal:
        create_arena(created_by=carol, checkpoints=checkpoints[:1], **fields)
    assert refusal.value.field == "checkpoints"
    with refused("no_held_out_prompts") as refusal:
        create_arena(created_by=carol, checkpoints=checkpoints, **fields)
    assert refusal.value.field == "prompts"
    factories.make_prompt(project, "Held out?", split=Split.HELD_OUT)
    other = factories.make_project(slug="coffee")
    with refused("unknown_checkpoint") as refusal:
        create_arena(created_by=carol, checkpoints=[*checkpoints, *make_checkpoints(other, ["x"])], **fields)
    assert refusal.value.field == "checkpoints"
    past = timezone.now() - timedelta(days=1)
    with refused("date_past") as refusal:
        create_arena(created_by=carol, checkpoints=checkpoints, expires_at=past, **fields)
    assert refusal.value.field == "expires_at"
