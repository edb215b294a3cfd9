"""Tells workers to look. What they find stands in the database, so a lost ring costs a few seconds."""

from django.db import transaction

from annotation.doorbell import send

__all__ = [
    "ADVANCE_ROUND",
    "DO_JOB",
    "PREPARE_ARENA",
    "SCORE_PROJECT",
    "ring",
    "ring_after_commit",
    "ring_for_scores",
    "send",
]

ADVANCE_ROUND = "training.tasks.advance_round"
SCORE_PROJECT = "training.tasks.score_project"
PREPARE_ARENA = "training.tasks.prepare_arena"
DO_JOB = "training.tasks.do_job"


def ring_after_commit(round_id: int) -> None:
    """Once this transaction is committed, tell a worker that a round has work."""
    transaction.on_commit(lambda: ring(round_id))


def ring(round_id: int) -> None:
    """Tell a worker that a round has work."""
    send(ADVANCE_ROUND, round_id)


def ring_for_scores(project_id: int) -> None:
    """Tell a worker that answers of a project lack scores."""
    send(SCORE_PROJECT, project_id)
