"""Celery tasks: each takes an id at most and calls one service. A message only says "look"."""

from typing import Any

from celery import shared_task
from celery.signals import worker_ready, worker_shutting_down

from training.services import rounds, scores
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


@shared_task(name="training.tasks.score_project")
def score_project(project_id: int) -> None:
    """Have reward models score what is not scored of a project's newest round."""
    scores.score_project(project_id)


@worker_ready.connect
def _go(**_: Any) -> None:
    worker_is_stopping.clear()


@worker_shutting_down.connect
def _stop(**_: Any) -> None:
    """Let go of the steps that this worker holds: training saves its state and ends."""
    worker_is_stopping.set()
