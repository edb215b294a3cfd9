"""States of a round and their order; rounds drafted, paused, resumed; a worker that dies anywhere."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.db.utils import IntegrityError
from django.utils import timezone

from annotation.models import Comparison, Completion, Project, Prompt, User
from annotation.services import jobs
from tests.refusals import refused
from tests.training.engine.fake_server import FakeServer
from tests.training.rounds.round_scenes import behave, deeds, do_steps_before
from training.choices import STATE_OF_STEP, RoundState, StepKind, StepState
from training.models import Checkpoint, Round, RoundStep, Run, Snapshot
from training.services.jobs import StepHeartbeat
from training.services.rounds import executor
from training.services.rounds.controls import (
    IN_PROGRESS,
    MAY_FOLLOW,
    cancel_round,
    draft_first_round,
    enter,
    move,
    open_round,
    pause_round,
    resume_round,
    start_again,
    start_round,
)
from training.services.rounds.executor import advance_round, do_step, rounds_with_work, sweep

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_trainer")]

# The second evaluator trains only where judgments are many; `test_second_evaluator` has it.
IN_EVERY_TRAINING = [
    kind for kind in StepKind if kind not in (StepKind.ANSWER_PROMPTS, StepKind.TRAIN_EVALUATOR)
]


def test_every_state_is_in_the_table_and_every_step_stops_in_all_three_ways():
    assert set(MAY_FOLLOW) == set(RoundState)
    for state in IN_PROGRESS:
        assert {RoundState.PAUSED, RoundState.FAILED, RoundState.CANCELLED} <= MAY_FOLLOW[state]
        assert state in MAY_FOLLOW[RoundState.PAUSED]
        assert state in MAY_FOLLOW[RoundState.FAILED]
    assert set(STATE_OF_STEP) == set(StepKind)


def test_a_round_moves_only_as_the_table_says(project: Project, carol: User):
    round_ = draft_first_round(project=project, created_by=carol)
    for before in RoundState:
        for after in RoundState:
            Round.objects.update(state=before)
            moved = move(round_, after)
            round_.refresh_from_db()
            allowed = after in MAY_FOLLOW[before]
            assert (moved, round_.state) == (allowed, after if allowed else before), (before, after)


def test_the_database_knows_no_other_state(project: Project, carol: User):
    draft_first_round(project=project, created_by=carol)
    with pytest.raises(IntegrityError, match="round_state_known"):
        Round.objects.update(state="finished")


def test_a_draft_samples_nothing_before_it_is_opened(
    project: Project, prompts: list[Prompt], carol: User, fake_server: FakeServer
):
    round_ = draft_first_round(project=project, created_by=carol)
    sweep()
    advance_round(round_.pk)
    assert (round_.state, fake_server.asked, rounds_with_work()) == (RoundState.DRAFT, [], [])
    Round.objects.update(recipe={"ranking_size": 3})
    open_round(round_=round_, opened_by=carol)
    advance_round(round_.pk)
    assert sorted(Comparison.objects.values_list("size", flat=True)) == [2, 2, 3, 3]
    with refused("round_not_draft"):
        open_round(round_=round_, opened_by=carol)
    assert deeds(round_) == [("round.draft", "carol"), ("round.open", "carol")]


def test_a_cancelled_draft_is_a_draft_again_when_it_is_started_again(project: Project, carol: User):
    round_ = draft_first_round(project=project, created_by=carol)
    cancel_round(round_=round_, actor=carol)
    assert round_.state == RoundState.CANCELLED
    start_again(round_=round_, actor=carol)
    assert round_.state == RoundState.DRAFT


@pytest.mark.usefixtures("fake_trainer")
def test_a_paused_trainer_saves_its_state_and_goes_on_exactly_there(
    labelled: Round, carol: User, rondo_home: Path, monkeypatch: pytest.MonkeyPatch
):
    behave(rondo_home, steps=100_000, seconds=0.02)
    start_round(round_=labelled, started_by=carol)
    original = StepHeartbeat.__call__

    def pause_at_step_two(heartbeat, *, current=None, **progress):
        if heartbeat.job.kind == "train_reward_model" and (current or 0) >= 2:
            round_ = Round.objects.get(pk=labelled.pk)
            if not round_.pause_requested:
                pause_round(round_=round_, actor=carol)
        return original(heartbeat, current=current, **progress)

    monkeypatch.setattr(StepHeartbeat, "__call__", pause_at_step_two)
    advance_round(labelled.pk)
    labelled.refresh_from_db()
    assert (labelled.state, labelled.pause_requested) == (RoundState.PAUSED, False)
    run = Run.objects.get()
    assert run.state == "stopped"
    reached = int((run.path / "state" / "step").read_text())
    assert 2 <= reached < 100_000
    step = labelled.steps.get(kind="train_reward_model")
    assert (step.state, step.message) == (StepState.WAITING, "paused; it goes on where it was")

    # Nobody goes on with it, whoever looks.
    sweep()
    advance_round(labelled.pk)
    assert (run.path / "starts").read_text().count("from") == 1
    assert rounds_with_work() == []

    monkeypatch.setattr(StepHeartbeat, "__call__", original)
    behave(rondo_home, steps=reached + 1)
    resume_round(round_=labelled, actor=carol)
    assert labelled.state == RoundState.TRAINING_REWARD_MODELS
    advance_round(labelled.pk)
    labelled.refresh_from_db()
    assert labelled.state == RoundState.NOT_ENOUGH_EVIDENCE
    assert f"from {reached}" in (run.path / "starts").read_text()
    assert Run.objects.count() == 2
    assert ("round.pause", "carol") in deeds(labelled)
    assert ("round.resume", "carol") in deeds(labelled)


@pytest.mark.parametrize("kind", IN_EVERY_TRAINING)
def test_a_round_is_paused_before_each_step_and_goes_on_with_it(labelled: Round, carol: User, kind: StepKind):
    start_round(round_=labelled, started_by=carol)
    do_steps_before(labelled, kind)
    labelled.refresh_from_db()
    pause_round(round_=labelled, actor=carol)
    assert labelled.state == RoundState.PAUSED
    advance_round(labelled.pk)
    assert labelled.steps.get(kind=kind).state == StepState.WAITING
    with refused("round_not_running"):
        pause_round(round_=labelled, actor=carol)
    resume_round(round_=labelled, actor=carol)
    assert labelled.state == STATE_OF_STEP[kind]
    advance_round(labelled.pk)
    labelled.refresh_from_db()
    assert labelled.state == RoundState.NOT_ENOUGH_EVIDENCE
    assert Run.objects.count() == 2
    assert Snapshot.objects.count() == 1
    with refused("round_not_paused"):
        resume_round(round_=labelled, actor=carol)


@pytest.mark.parametrize("kind", IN_EVERY_TRAINING)
def test_a_worker_that_dies_in_any_step_is_followed_by_one_that_does_nothing_twice(
    labelled: Round, carol: User, kind: StepKind, rings: list[int]
):
    start_round(round_=labelled, started_by=carol)
    do_steps_before(labelled, kind)
    dead = jobs.claim(RoundStep.objects.all(), labelled.steps.get(kind=kind).pk)
    assert dead is not None
    # It did all of it and died before it could say so.
    enter(dead)
    do_step(dead, StepHeartbeat(dead))
    RoundStep.objects.filter(pk=dead.pk).update(heartbeat_at=timezone.now() - timedelta(seconds=60))
    rings.clear()
    sweep()
    assert rings == [labelled.pk]
    completion_count = Completion.objects.count()
    advance_round(labelled.pk)
    labelled.refresh_from_db()
    assert labelled.state == RoundState.NOT_ENOUGH_EVIDENCE
    assert (Run.objects.count(), Snapshot.objects.count(), Round.objects.count()) == (2, 1, 2)
    starts = [(run.path / "starts").read_text().splitlines() for run in Run.objects.all()]
    assert [len(lines) for lines in starts] == [1, 1]
    assert Checkpoint.objects.exclude(kind="starter").count() == 2
    assert [name for name, _ in deeds(labelled)].count("round.not_enough_evidence") == 1
    if kind in (StepKind.EVALUATE, StepKind.DECIDE):
        assert Completion.objects.count() == completion_count
    with pytest.raises(jobs.ClaimLostError):
        jobs.release(dead, state=StepState.FINISHED)


def test_a_worker_that_claims_a_step_while_the_round_is_paused_gives_it_back(labelled: Round, carol: User):
    start_round(round_=labelled, started_by=carol)
    claimed = jobs.claim(RoundStep.objects.all(), labelled.steps.get(position=1).pk)
    assert claimed is not None
    Round.objects.update(state=RoundState.PAUSED)
    assert not executor._carry_out(claimed)
    claimed.refresh_from_db()
    assert claimed.state == StepState.WAITING
    assert not Snapshot.objects.exists()


@pytest.mark.parametrize(("stop", "state"), [(pause_round, "paused"), (cancel_round, "cancelled")])
def test_a_request_that_the_last_step_did_not_hear_is_fulfilled_all_the_same(
    labelled: Round, carol: User, monkeypatch: pytest.MonkeyPatch, stop: Callable[..., None], state: str
):
    start_round(round_=labelled, started_by=carol)

    def finish_after_the_request(step: RoundStep, **values: object) -> None:
        if step.kind == StepKind.DECIDE:
            stop(round_=Round.objects.get(pk=labelled.pk), actor=carol)
        jobs.release(step, **values)

    monkeypatch.setattr(executor, "release", finish_after_the_request)
    advance_round(labelled.pk)
    labelled.refresh_from_db()
    assert (labelled.state, labelled.pause_requested, labelled.cancel_requested) == (state, False, False)
    assert Round.objects.count() == 1
