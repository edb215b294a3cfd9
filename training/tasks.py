"""Celery tasks. Each takes an id at most and calls one service: a message only says "look"."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from celery import shared_task
from celery.signals import worker_ready, worker_shutting_down

from annotation.api import base
from annotation.services import webhooks
from annotation.services.jobs import worker_is_stopping
from training.choices import JobKind, TrainingTask
from training.services import (
    arenas,
    base_models,
    checkpoint_exports,
    checkpoint_files,
    conversations,
    course,
    drift,
    embeddings,
    judges,
    leaderboard,
    live,
    rubric_drafts,
    scores,
    suggestions,
)
from training.services.feedback import abuse, recording, selection
from training.services.rounds import executor
from training.services.runs import clusters, runs


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One kind of background work."""

    do: Callable[[int], object]
    """Claims a row by its id and does its work."""
    sweep: Callable[[], None]
    """Sends a message for each row that nobody works on: a message was lost, or a worker died."""


WORK: Final[Mapping[TrainingTask | JobKind, Work]] = {
    TrainingTask.ADVANCE_ROUND: Work(do=executor.advance_round, sweep=executor.sweep),
    TrainingTask.SCORE_PROJECT: Work(do=scores.score_project, sweep=scores.sweep_scores),
    TrainingTask.PREPARE_ARENA: Work(do=arenas.prepare_arena, sweep=arenas.sweep_arenas),
    TrainingTask.PREPARE_OPENINGS: Work(
        do=conversations.prepare_openings, sweep=conversations.sweep_openings
    ),
    TrainingTask.JUDGE: Work(do=judges.judge_comparisons, sweep=judges.sweep_judges),
    TrainingTask.SELECT_FEEDBACK: Work(do=selection.select_requests, sweep=selection.sweep_selection),
    JobKind.BASE_MODEL: Work(do=base_models.do_addition, sweep=base_models.sweep_additions),
    JobKind.EXPORT: Work(do=checkpoint_exports.do_export, sweep=checkpoint_exports.sweep_exports),
    JobKind.DRIFT: Work(do=drift.do_measurement, sweep=drift.sweep_measurements),
    JobKind.LESSON: Work(do=course.do_run, sweep=course.sweep_runs),
    JobKind.RUBRIC_DRAFT: Work(do=rubric_drafts.do_draft, sweep=rubric_drafts.sweep_drafts),
    JobKind.EMBEDDINGS: Work(do=embeddings.do_embeddings, sweep=embeddings.sweep_embeddings),
    JobKind.LIVE: Work(do=live.do_live, sweep=live.sweep_live),
    JobKind.SUGGESTIONS: Work(do=suggestions.do_suggestions, sweep=suggestions.sweep_suggestions),
}
"""All work whose rows a worker claims; the kinds of a job share the task `do_job`."""

for name, work in WORK.items():
    if isinstance(name, TrainingTask):
        shared_task(name=name)(work.do)


@shared_task(name=TrainingTask.DO_JOB)
def do_job(kind: str, job_id: int) -> None:
    """Do a background job of a kind."""
    WORK[JobKind(kind)].do(job_id)


@shared_task(name=TrainingTask.SWEEP)
def sweep() -> None:
    """Find work that nobody does."""
    for each in WORK.values():
        each.sweep()
    checkpoint_files.sweep_deleted()
    runs.sweep_summaries()
    clusters.sweep_launches()
    leaderboard.sweep_votes()
    abuse.sweep_abuse()


@shared_task(name=TrainingTask.RETENTION)
def apply_retention() -> None:
    """Once a day, delete the files and stored requests that this installation does not keep."""
    checkpoint_files.apply_retention()
    base.forget_answers()
    webhooks.forget_messages()
    recording.erase_expired()


@worker_ready.connect
def clear_stop_flag(**_: Any) -> None:
    """Let this worker take up work."""
    worker_is_stopping.clear()


@worker_shutting_down.connect
def request_stop(**_: Any) -> None:
    """Let go of the steps that this worker holds: training saves its state and ends."""
    worker_is_stopping.set()
