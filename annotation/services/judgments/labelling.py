"""A labeller's step: submit a judgment and get the next comparison."""

import uuid
from typing import Any

from django.db import IntegrityError, transaction

from annotation.errors import Refusal
from annotation.models import Assignment, Guideline, RubricVersion, User
from annotation.services.assignments import assign_next_in_transaction, expire_leases_now_and_then
from annotation.services.judgments.checks import JudgmentAnswer
from annotation.services.judgments.submission import submit_in_transaction, submit_judgment


def submit_and_get_next(
    *,
    assignment: Assignment,
    annotator: User,
    answer: JudgmentAnswer,
    idempotency_key: uuid.UUID,
    guideline: Guideline | None = None,
    rubric: RubricVersion | None = None,
    stands_on: int | None = None,
) -> Assignment | None:
    """`submit_judgment`, and then `assign_next`, written to disk together.

    A database waits for the disk at the end of every transaction; one instead of two halves the
    time that everyone else waits for it. Refuses as `submit_judgment` does. None when nothing could
    be leased in the same breath: ask `assign_next` then, which tells why.
    """
    project = assignment.comparison.project
    expire_leases_now_and_then(project=project)
    answered: dict[str, Any] = {
        "assignment": assignment,
        "annotator": annotator,
        "answer": answer,
        "idempotency_key": idempotency_key,
        "guideline": guideline,
        "rubric": rubric,
        "stands_on": stands_on,
    }
    try:
        # Without savepoints, which would be four statements more: of a clash nothing stays.
        with transaction.atomic():
            _judgment, turn = submit_in_transaction(**answered)
            try:
                return assign_next_in_transaction(project=project, annotator=annotator, turn=turn)
            except Refusal:
                return None
    except IntegrityError:
        submit_judgment(**answered)
        return None
