"""The desk of the demo project against the services whose work it does in bulk: the same rows everywhere."""

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from random import Random
from typing import Any, Protocol

import pytest
from django.apps import apps
from django.db import models, transaction
from django.db.models import F
from django.utils import timezone

from annotation.choices import AssignmentState, Verdict
from annotation.models import AnnotatorTally, Assignment, Category, Judgment, Project, User
from annotation.record.judgment import JudgmentRecord, MissingPart, SpanPart
from annotation.services.assignments.leases import skip_assignment
from annotation.services.assignments.next import assign_next
from annotation.services.inbox import post_comment
from annotation.services.judgments.submission import flag_item, submit_judgment
from tests import factories
from tests.records import judgment_record
from webapp.demo.desk import DemoClock, Desk, shown_in

pytestmark = pytest.mark.django_db

MORNING = datetime(2026, 3, 2, 8, tzinfo=UTC)
SKIPPED, ASKED = 4, 9
"""Steps at which a comparison is skipped, and at which a question is asked."""


class _Desk(Protocol):
    def next(self, annotator: User) -> Assignment | None: ...
    def skip(self, assignment: Assignment, reason: str) -> None: ...
    def ask(self, assignment: Assignment, *, flag: str, text: str) -> None: ...
    def submit(self, assignment: Assignment, answer: JudgmentRecord, key: uuid.UUID) -> None: ...
    def write(self) -> None: ...


class Services:
    """The services in the place of a desk."""

    def __init__(self, project: Project) -> None:
        self._project = project

    def next(self, annotator: User) -> Assignment | None:
        return assign_next(project=self._project, annotator=annotator)

    def skip(self, assignment: Assignment, reason: str) -> None:
        skip_assignment(assignment=assignment, annotator=assignment.annotator, reason=reason)

    def ask(self, assignment: Assignment, *, flag: str, text: str) -> None:
        flag_item(assignment=assignment, annotator=assignment.annotator, reason=flag)
        post_comment(assignment=assignment, author=assignment.annotator, text=text)

    def submit(self, assignment: Assignment, answer: JudgmentRecord, key: uuid.UUID) -> None:
        submit_judgment(
            assignment=assignment, annotator=assignment.annotator, answer=answer, idempotency_key=key
        )
        # The labelling page submits and asks for the next comparison in one turn.
        tally = AnnotatorTally.objects.filter(project=self._project, annotator=assignment.annotator)
        tally.update(turns=F("turns") - 1)

    def write(self) -> None:
        """Everything is written."""


def test_a_desk_writes_the_rows_that_the_services_write(alice: User, bob: User, carol: User):
    project = factories.make_project(
        annotators=[alice, bob],
        managers=[carol],
        overlap=2,
        gold_share=0.2,
        retest_share=0.2,
        review_disagreements=True,
    )
    for number in range(15):
        factories.make_comparison(project, question=f"Question {number}?")
    for _item in range(2):
        factories.make_gold_item(project)
    project.refresh_from_db()
    by_services = rows_of_a_day(project, (alice, bob), lambda clock: Services(project))
    other = rows_of_a_day(project, (alice, bob), lambda clock: Desk(project, clock))
    # The day has something of everything.
    assignments = by_services["annotation.Assignment"]
    assert {row["state"] for row in assignments} == {AssignmentState.SUBMITTED, AssignmentState.SKIPPED}
    assert any(row["retest_of"] for row in assignments)
    assert any(row["slot"] is None and not row["retest_of"] for row in assignments)
    for name in ("Judgment", "SpanFlag", "MissingInfo", "Review", "Comment"):
        assert by_services[f"annotation.{name}"], name
    differing = {
        name: (
            [row for row in rows if row not in other[name]],
            [row for row in other[name] if row not in rows],
        )
        for name, rows in by_services.items()
        if other[name] != rows
    }
    assert differing == {}


def rows_of_a_day(project: Project, people: tuple[User, User], desk_at: Any) -> dict[str, list[Any]]:
    """Let two people work, and return all rows of the application; then take everything back."""
    clock = DemoClock(MORNING)
    with transaction.atomic(), clock.in_charge():
        desk = desk_at(clock)
        work(desk, clock, people, Category.objects.filter(project=project))
        desk.write()
        rows = {model._meta.label: sorted(rows_of(model), key=repr) for model in tables()}
        transaction.set_rollback(True)
    return rows


def work(desk: _Desk, clock: DemoClock, people: tuple[User, User], categories: Any) -> None:
    chance = Random(3)
    for step in range(40):
        assignment = desk.next(people[step % 2])
        clock.forward(seconds=30)
        if assignment is None:
            continue
        if step == SKIPPED:
            desk.skip(assignment, "I lack the knowledge")
            continue
        if step == ASKED:
            desk.ask(assignment, flag="The prompt is unclear", text="Which tea?")
        first, second = shown_in(assignment)
        # One likes what the other does not, so that reviewers have something to do.
        better, other = sorted((first, second), key=lambda each: each.pk, reverse=bool(step % 2))
        ranks = {better.pk: 1, other.pk: 1 if chance.random() < 0.2 else 2}
        span = SpanPart(
            completion=str(first.pk),
            category="untruthful",
            start=0,
            end=3,
            quote=first.text[:3],
            text_hash=first.text_hash,
        )
        gap = MissingPart(completion=str(second.pk), category="missing", text="The water.")
        answer = judgment_record(
            verdict=Verdict.RANKED if ranks[other.pk] == 2 else Verdict.EQUAL,
            ranks=ranks,
            spans=(span,) if chance.random() < 0.5 else (),
            missing=(gap,) if chance.random() < 0.3 else (),
            comment="Clear." if chance.random() < 0.2 else "",
            active_seconds=30,
        )
        desk.submit(assignment, answer, uuid.UUID(int=chance.getrandbits(128), version=4))
        clock.forward(seconds=2)


def tables() -> list[type[models.Model]]:
    return [model for model in apps.get_models() if model._meta.app_label in ("annotation", "training")]


NEW = (Assignment, Judgment)
REAL_NOW = timezone.now


def rows_of(model: type[models.Model]) -> Iterator[dict[str, Any]]:
    """Yield each row by its fields; numbers that the database gives are named by what they stand for."""
    for row in model._default_manager.all():
        values = {}
        for field in model._meta.concrete_fields:
            if field.default is REAL_NOW:
                # No clock of a demo reaches it.
                continue
            value = getattr(row, field.attname)
            if isinstance(field, models.ForeignKey) and value is not None:
                value = name_of(getattr(row, field.name)) if issubclass(field.related_model, NEW) else value
            if not field.primary_key or not model._meta.auto_field:
                values[field.name] = value
        yield values


def name_of(row: Any) -> Any:
    if isinstance(row, Judgment):
        return row.idempotency_key
    return row.annotator_id, row.comparison_id, row.leased_at
