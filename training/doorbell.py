"""Tells workers to look. What they find stands in the database, so a lost ring costs a few seconds."""

import logging

from celery import current_app
from django.db import transaction
from kombu.exceptions import KombuError, OperationalError

logger = logging.getLogger(__name__)

ADVANCE_ROUND = "training.tasks.advance_round"
SCORE_PROJECT = "training.tasks.score_project"


def ring_after_commit(round_id: int) -> None:
    """Once this transaction is committed, tell a worker that a round has work."""
    transaction.on_commit(lambda: ring(round_id))


def ring(round_id: int) -> None:
    """Tell a worker that a round has work. A broker that is down is no failure: the sweep finds the row."""
    try:
        current_app.send_task(ADVANCE_ROUND, args=[round_id])
    except (OperationalError, KombuError, OSError) as error:
        logger.warning("Round %s: no message to the workers (%s); the sweep will find it.", round_id, error)


def ring_for_scores(project_id: int) -> None:
    """Tell a worker that answers of a project lack scores; a later sweep rings again where this is lost."""
    try:
        current_app.send_task(SCORE_PROJECT, args=[project_id])
    except (OperationalError, KombuError, OSError) as error:
        logger.warning("Project %s: no message to the workers (%s); a sweep rings again.", project_id, error)
