"""Celery tasks: each takes an id at most and calls one service. A message only says "look"."""

from typing import Any

from celery import shared_task
from celery.signals import worker_ready, worker_shutting_down

from annotation.services import kept_answers
from annotation.services.webhooks import deliveries
from training.services import (
    arena,
    drift,
    exports,
    jobs,
    judges,
    leaderboard,
    registry,
    retention,
    rounds,
    scores,
)
from training.services.claims import worker_is_stopping


@shared_task(name="training.tasks.advance_round")
def advance_round(round_id: int) -> None:
    """Do what of a round can be done now."""
    rounds.advance_round(round_id)


@shared_task(name="training.tasks.sweep")
def sweep() -> None:
    """Look for work that nobody does."""
    rounds.sweep()
    scores.sweep_scores()
    jobs.sweep_jobs()
    registry.sweep_deleted()
    leaderboard.sweep_votes()
    arena.sweep_arenas()
    judges.sweep_judges()


@shared_task(name="training.tasks.score_project")
def score_project(project_id: int) -> None:
    """Have reward models score what is not scored of a project's newest round."""
    scores.score_project(project_id)


@shared_task(name="training.tasks.prepare_arena")
def prepare_arena(arena_id: int) -> None:
    """Have checkpoints answer an arena's prompts."""
    arena.prepare_arena(arena_id)


@shared_task(name="training.tasks.do_job")
def do_job(kind: str, job_id: int) -> None:
    """Do a background job: an export of a checkpoint, a measurement of drift."""
    {"export": exports.do_export, "drift": drift.do_measurement}[kind](job_id)


@shared_task(name="training.tasks.judge")
def judge(judge_id: int) -> None:
    """Have a judge judge what is left to it."""
    judges.judge_comparisons(judge_id)


@shared_task(name="training.tasks.retention")
def keep_what_is_kept() -> None:
    """Once a day, delete the files that this installation does not keep."""
    retention.apply_retention()
    kept_answers.forget_answers()
    deliveries.forget_messages()


@worker_ready.connect
def _go(**_: Any) -> None:
    worker_is_stopping.clear()


@worker_shutting_down.connect
def _stop(**_: Any) -> None:
    """Let go of the steps that this worker holds: training saves its state and ends."""
    worker_is_stopping.set()
