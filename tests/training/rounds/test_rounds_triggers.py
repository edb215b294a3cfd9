"""Automatic steps of a round: it starts when it is due, and stops when its hours are spent."""

from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from annotation.models import AuditEntry, Project, Prompt, User
from tests.training.conftest import judge_all
from tests.training.engine.fake_server import FakeServer
from tests.training.rounds.round_scenes import behave
from training.choices import RoundState
from training.models import Round, RoundStep, Run
from training.services.rounds import executor
from training.services.rounds.controls import (
    cancel_round,
    open_first_round,
    pause_round,
    reopen_round,
    start_again,
    start_round,
)
from training.services.rounds.executor import advance_round, sweep

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_trainer")]


def test_enough_labels_start_the_training(
    project: Project, prompts: list[Prompt], alice: User, fake_server: FakeServer, rings: list[int]
):
    round_ = open_first_round(project=project, recipe={"start": {"judgments": 4}})
    advance_round(round_.pk)
    sweep()
    round_.refresh_from_db()
    assert round_.state == RoundState.LABELLING
    assert len(judge_all(project, alice)) == 4
    sweep()
    round_.refresh_from_db()
    assert (round_.state, round_.started_by) == (RoundState.TRAINING_REWARD_MODELS, None)
    entry = AuditEntry.objects.get(action="round.start")
    assert (entry.actor, entry.details) == (None, {"judgments": 4})
    sweep()
    advance_round(round_.pk)
    round_.refresh_from_db()
    assert round_.state == RoundState.NOT_ENOUGH_EVIDENCE
    assert AuditEntry.objects.filter(action="round.start").count() == 1


def test_a_time_starts_the_training_of_what_is_labelled_by_then(
    project: Project, prompts: list[Prompt], alice: User, fake_server: FakeServer
):
    soon = timezone.now() + timedelta(hours=1)
    round_ = open_first_round(project=project, recipe={"start": {"at": soon.isoformat()}})
    advance_round(round_.pk)
    judge_all(project, alice)
    sweep()
    round_.refresh_from_db()
    assert round_.state == RoundState.LABELLING
    past = (timezone.now() - timedelta(minutes=1)).isoformat()
    Round.objects.update(recipe={"start": {"at": past}})
    sweep()
    advance_round(round_.pk)
    round_.refresh_from_db()
    assert round_.state == RoundState.NOT_ENOUGH_EVIDENCE
    # The time was meant for this round: the next one does not start at once.
    assert Round.objects.get(number=2).parsed_recipe.start.at is None


def test_a_time_that_comes_before_the_first_label_waits_for_it(project: Project, prompts: list[Prompt]):
    past = (timezone.now() - timedelta(minutes=1)).isoformat()
    round_ = open_first_round(project=project, recipe={"start": {"at": past}})
    sweep()
    round_.refresh_from_db()
    assert round_.state == RoundState.SAMPLING
    assert not AuditEntry.objects.filter(action="round.start").exists()


def test_nothing_starts_by_itself_that_is_paused_or_was_taken_back(labelled: Round, carol: User):
    Round.objects.update(recipe={"start": {"judgments": 1}})
    pause_round(round_=labelled, actor=carol)
    sweep()
    labelled.refresh_from_db()
    assert labelled.state == RoundState.PAUSED
    cancel_round(round_=labelled, actor=carol)
    reopen_round(round_=labelled, actor=carol)
    sweep()
    labelled.refresh_from_db()
    assert labelled.state == RoundState.LABELLING


@pytest.mark.usefixtures("fake_trainer")
def test_training_that_costs_more_than_its_hours_is_stopped_with_the_reason(
    labelled: Round, carol: User, rondo_home: Path
):
    # 0.001 hours are 3.6 seconds, which the steps before training do not take; the trainer would take 2,000.
    behave(rondo_home, steps=100_000, seconds=0.02)
    Round.objects.update(recipe={"budget": {"hours": 0.001}})
    labelled.refresh_from_db()
    start_round(round_=labelled, started_by=carol)
    advance_round(labelled.pk)
    labelled.refresh_from_db()
    assert labelled.state == RoundState.CANCELLED
    run = Run.objects.get()
    assert run.state == "stopped"
    assert "its budget of 0.001 hours is spent" in labelled.steps.get(state="cancelled", run=run).message
    entry = AuditEntry.objects.get(action="round.cancel")
    assert entry.actor is None
    assert "budget" in entry.details["reason"]

    # A person who starts it again grants it as much once more, and it goes on where it was.
    # On a busy machine the budget is spent before the trainer has saved a step.
    saved = run.path / "state" / "step"
    reached = int(saved.read_text()) if saved.is_file() else 0
    behave(rondo_home, steps=reached + 1)
    Round.objects.update(recipe={"budget": {"hours": 1}})
    labelled.refresh_from_db()
    start_again(round_=labelled, actor=carol)
    advance_round(labelled.pk)
    labelled.refresh_from_db()
    assert labelled.state == RoundState.NOT_ENOUGH_EVIDENCE
    assert f"from {reached}" in (run.path / "starts").read_text()


def test_time_in_which_a_round_stands_still_costs_no_budget(labelled: Round, carol: User):
    Round.objects.update(recipe={"budget": {"hours": 1}})
    start_round(round_=labelled, started_by=carol)
    RoundStep.objects.filter(kind="freeze_snapshot").update(
        started_at=timezone.now() - timedelta(hours=30), seconds_worked=2.0
    )
    step = RoundStep.objects.select_related("round").get(kind="train_policy")
    step.round.refresh_from_db()
    assert executor._seconds_left(step) == 3598.0
    assert executor._seconds_left(step.round.steps.get(kind="evaluate")) is None
