"""Celery tasks: each takes an id at most and calls one service. A message only says "look"."""

from typing import Any

from celery import shared_task
from celery.signals import worker_ready, worker_shutting_down

from annotation.api import idempotency
from annotation.services import webhooks
from annotation.services.jobs.claims import worker_is_stopping
from training.choices import TaskName
from training.services import rounds
from training.services.comparing import arena, leaderboard
from training.services.conversations import openings
from training.services.evaluation import drift, scores
from training.services.feedback import abuse, erasure, selection
from training.services.judges import drafting, judge_job
from training.services.registry import base_adding, exports, registry, retention
from training.services.runs import launch_sweep, summaries
from training.services.suggestions import suggesting


@shared_task(name=TaskName.ADVANCE_ROUND)
def advance_round(round_id: int) -> None:
    """Do what of a round can be done now."""
    rounds.advance_round(round_id)


@shared_task(name=TaskName.SWEEP)
def sweep() -> None:
    """Look for work that nobody does."""
    rounds.sweep()
    scores.sweep_scores()
    base_adding.sweep_additions()
    exports.sweep_exports()
    drift.sweep_measurements()
    registry.sweep_deleted()
    summaries.sweep_summaries()
    launch_sweep.sweep_launches()
    leaderboard.sweep_votes()
    arena.sweep_arenas()
    openings.sweep_openings()
    judge_job.sweep_judges()
    abuse.sweep_abuse()
    selection.sweep_selection()
    drafting.sweep_drafts()
    suggesting.sweep_suggestions()


@shared_task(name=TaskName.SCORE_PROJECT)
def score_project(project_id: int) -> None:
    """Have reward models score what is not scored of a project's newest round."""
    scores.score_project(project_id)


@shared_task(name=TaskName.PREPARE_ARENA)
def prepare_arena(arena_id: int) -> None:
    """Have checkpoints answer an arena's prompts."""
    arena.prepare_arena(arena_id)


@shared_task(name=TaskName.PREPARE_OPENINGS)
def prepare_openings(project_id: int) -> None:
    """Have checkpoints respond to the opening messages of a project's tasks."""
    openings.prepare_openings(project_id)


@shared_task(name=TaskName.DO_JOB)
def do_job(kind: str, job_id: int) -> None:
    """Do a background job: adding a base model, an export of a checkpoint, a measurement of drift,
    suggestions ahead, a draft of a rubric."""
    kinds = {
        "base-model": base_adding.do_addition,
        "export": exports.do_export,
        "drift": drift.do_measurement,
        "rubric-draft": drafting.do_draft,
        "suggestions": suggesting.do_suggestions,
    }
    kinds[kind](job_id)


@shared_task(name=TaskName.JUDGE)
def judge(judge_id: int) -> None:
    """Have a judge judge what is left to it."""
    judge_job.judge_comparisons(judge_id)


@shared_task(name=TaskName.SELECT_FEEDBACK)
def select_feedback(settings_id: int) -> None:
    """Put stored requests before annotators, as a project's rules say."""
    selection.select_requests(settings_id)


@shared_task(name=TaskName.RETENTION)
def keep_what_is_kept() -> None:
    """Once a day, delete the files and stored requests that this installation does not keep."""
    retention.apply_retention()
    idempotency.forget_answers()
    webhooks.forget_messages()
    erasure.erase_expired()


@worker_ready.connect
def _go(**_: Any) -> None:
    worker_is_stopping.clear()


@worker_shutting_down.connect
def _stop(**_: Any) -> None:
    """Let go of the steps that this worker holds: training saves its state and ends."""
    worker_is_stopping.set()
