"""Helpers of the tests of labelling: one person leases comparisons, answers them, looks at what comes."""

import uuid
from collections.abc import Callable

from annotation.choices import Verdict
from annotation.models import Assignment, Judgment, Project, User
from annotation.record.judgment import JudgmentRecord
from annotation.services.assignments.next import assign_next
from annotation.services.judgments.submission import submit_judgment
from tests.records import judgment_record

Answering = Callable[[Assignment], JudgmentRecord]


def lease(project: Project, annotator: User) -> Assignment:
    """The next thing for this person; there must be one."""
    assignment = assign_next(project=project, annotator=annotator)
    assert assignment is not None
    return assignment


def in_candidate_order(assignment: Assignment) -> JudgmentRecord:
    """The candidate that was made first is best, and so on."""
    ids = assignment.comparison.candidates.order_by("index").values_list("completion_id", flat=True)
    return judgment_record(verdict=Verdict.RANKED, ranks={pk: rank for rank, pk in enumerate(ids, start=1)})


def reversed_order(assignment: Assignment) -> JudgmentRecord:
    """The candidate that was made last is best."""
    ids = assignment.comparison.candidates.order_by("-index").values_list("completion_id", flat=True)
    return judgment_record(verdict=Verdict.RANKED, ranks={pk: rank for rank, pk in enumerate(ids, start=1)})


def answer(assignment: Assignment, answering: Answering | JudgmentRecord = in_candidate_order) -> Judgment:
    """Submit this, or what the function says of it."""
    return submit_judgment(
        assignment=assignment,
        annotator=assignment.annotator,
        answer=answering if isinstance(answering, JudgmentRecord) else answering(assignment),
        idempotency_key=uuid.uuid4(),
    )


def work(project: Project, annotator: User, number: int) -> list[Assignment]:
    """Take and answer so many things, one after the other."""
    done = []
    for _ in range(number):
        assignment = lease(project, annotator)
        answer(assignment)
        done.append(assignment)
    return done
