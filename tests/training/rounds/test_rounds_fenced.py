"""A worker that was cut off or stood still, and comes back when its work is done, writes over nothing."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from annotation.models import Project, User
from annotation.services import jobs
from tests import factories
from tests.training.conftest import judge_all
from tests.training.rounds.round_scenes import behave, do_steps_before
from training.choices import RoundState, RunState, StepKind
from training.models import EvaluatedPrompt, Round, RoundStep, Run
from training.services.evaluation import evaluating as evaluations
from training.services.jobs import StepHeartbeat
from training.services.rounds.controls import start_round
from training.services.rounds.executor import advance_round, claim_step, do_step
from training.services.runs import launcher

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_trainer", "rings")]


def fall_silent(step: RoundStep) -> None:
    """So long ago was its last heartbeat that anybody may take it."""
    RoundStep.objects.filter(pk=step.pk).update(heartbeat_at=timezone.now() - timedelta(seconds=60))


def rows_of(round_: Round) -> list[Any]:
    """All that could be written over."""
    runs = Run.objects.order_by("pk").values("pk", "name", "state", "worker", "step", "error", "snapshot")
    steps, rounds = (model.objects.order_by("pk").values() for model in (RoundStep, Round))
    return [*runs, *steps, *rounds]


@pytest.mark.parametrize(
    "kind", [StepKind.FREEZE_SNAPSHOT, StepKind.TRAIN_REWARD_MODEL, StepKind.TRAIN_POLICY]
)
def test_a_worker_that_comes_back_after_the_round_went_on_without_it_writes_nothing(
    labelled: Round, project: Project, alice: User, carol: User, kind: StepKind
):
    start_round(round_=labelled, started_by=carol)
    do_steps_before(labelled, kind)
    cut_off = claim_step(labelled.steps.get(kind=kind).pk)
    fall_silent(cut_off)
    advance_round(labelled.pk)
    labelled.refresh_from_db()
    assert labelled.state == RoundState.NOT_ENOUGH_EVIDENCE
    # What the late worker would freeze is no longer what was frozen.
    factories.make_comparison(project)
    assert judge_all(project, alice)
    after = rows_of(labelled)
    with pytest.raises(jobs.ClaimLostError):
        do_step(cut_off, StepHeartbeat(cut_off))
    assert rows_of(labelled) == after


@pytest.mark.usefixtures("fake_trainer")
def test_a_worker_whose_trainer_ended_while_it_was_cut_off_settles_nothing(
    labelled: Round, carol: User, rondo_home: Path, monkeypatch: pytest.MonkeyPatch
):
    behave(rondo_home, seconds=0)
    start_round(round_=labelled, started_by=carol)
    do_steps_before(labelled, StepKind.TRAIN_REWARD_MODEL)
    step = labelled.steps.get(kind=StepKind.TRAIN_REWARD_MODEL)
    cut_off = claim_step(step.pk)
    trainer = launcher.run_trainer

    def another_takes_over(folder: Path, **watched: Any) -> launcher.TrainerExit:
        ending = trainer(folder, **watched)
        fall_silent(cut_off)
        other = claim_step(step.pk)
        Run.objects.filter(pk=other.run_id).update(worker=other.worker, state=RunState.RUNNING, step=1)
        return ending

    monkeypatch.setattr(launcher, "run_trainer", another_takes_over)
    with pytest.raises(jobs.ClaimLostError):
        do_step(cut_off, StepHeartbeat(cut_off))
    run = Run.objects.get()
    assert (run.state, run.step) == (RunState.RUNNING, 1)
    assert run.worker == RoundStep.objects.get(pk=step.pk).worker != cut_off.worker


def test_figures_that_a_late_worker_found_are_not_written_over_newer_ones(
    deciding_round: Round, project: Project
):
    prompt = factories.make_prompt(project, split="held-out")
    old, new = factories.make_completions(prompt, ("Two minutes.", "Ten hours."))
    evaluation = deciding_round.evaluations.get()
    row = EvaluatedPrompt.objects.create(
        evaluation=evaluation, prompt=prompt, old=old, new=new, figures={"reward": [1.0, 2.0], "kl": 3.0}
    )
    step = deciding_round.steps.get(kind=StepKind.EVALUATE)
    RoundStep.objects.filter(pk=step.pk).update(state="waiting")
    cut_off = claim_step(step.pk)
    late = EvaluatedPrompt.objects.get(pk=row.pk)
    late.figures = {}
    fall_silent(cut_off)
    assert claim_step(step.pk)
    with pytest.raises(jobs.ClaimLostError):
        evaluations._Work([late], StepHeartbeat(cut_off)).note(late, kl=99.0)
    row.refresh_from_db()
    assert row.figures == {"reward": [1.0, 2.0], "kl": 3.0}
