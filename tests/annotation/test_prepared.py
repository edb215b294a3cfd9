"""Prepared queries: the ORM asked in the plain way says what they must say."""

import uuid
from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import CharField, DateTimeField, Exists, F, OuterRef
from django.test.utils import CaptureQueriesContext

from annotation.choices import AssignmentState
from annotation.models import Assignment, Candidate, Comparison, Draft, Project, User
from annotation.prepared import Prepared, PreparedDelete, PreparedInsert, PreparedUpdate
from annotation.services.assignments import assign_next
from tests import factories

HELD = Prepared(
    lambda p: (
        Assignment.objects.filter(annotator=p("annotator"), comparison__project__slug=p("slug", CharField()))
        .select_related("comparison__prompt")
        .annotate(had=Exists(Candidate.objects.filter(comparison=OuterRef("comparison"))))
        .order_by("id")
    )
)
BEFORE = Prepared(
    lambda p: Assignment.objects.filter(leased_at__lt=p("moment", DateTimeField())).values_list(
        "pk", "leased_at", "display_order"
    )
)


@pytest.fixture
def held(project: Project, alice: User, bob: User) -> Assignment:
    for _ in range(2):
        factories.make_comparison(project)
    assign_next(project=project, annotator=bob)
    assignment = assign_next(project=project, annotator=alice)
    assert assignment is not None
    return assignment


def test_rows_come_as_the_objects_that_the_orm_makes_with_what_was_selected_beside_them(
    held: Assignment, alice: User, bob: User, project: Project
):
    for person in (alice, bob, alice):
        plain = Assignment.objects.select_related("comparison__prompt").get(annotator=person)
        with CaptureQueriesContext(connection) as asked:
            (found,) = HELD.all(annotator=person.pk, slug=project.slug)
            assert found.comparison.prompt.messages == plain.comparison.prompt.messages
        assert len(asked) == 1
        for field in Assignment._meta.concrete_fields:
            assert getattr(found, field.attname) == getattr(plain, field.attname)
        for field in Comparison._meta.concrete_fields:
            assert getattr(found.comparison, field.attname) == getattr(plain.comparison, field.attname)
        assert found.had is True
        assert not found._state.adding
    assert HELD.all(annotator=alice.pk, slug="another") == []
    assert HELD.first(annotator=alice.pk, slug="another") is None


def test_values_come_as_python_knows_them(held: Assignment):
    moment = held.leased_at + timedelta(microseconds=1)
    plain = Assignment.objects.filter(leased_at__lt=moment).values_list("pk", "leased_at", "display_order")
    assert sorted(BEFORE.rows(moment=moment)) == sorted(plain)
    assert (held.pk, held.leased_at, held.display_order) in BEFORE.rows(moment=moment)
    assert held.pk not in [pk for pk, *_ in BEFORE.rows(moment=held.leased_at)]


def test_an_update_says_how_many_rows_it_met_and_changes_only_those(held: Assignment, project: Project):
    give = PreparedUpdate(
        lambda p: (
            Comparison.objects.filter(pk=p("pk"), open_slots__gt=0),
            {"open_slots": F("open_slots") - 1, "priority": p("priority")},
        )
    )
    comparison = factories.make_comparison(project)
    before = list(Comparison.objects.exclude(pk=comparison.pk).order_by("pk").values())
    assert give(pk=comparison.pk, priority=5) == 1
    comparison.refresh_from_db()
    assert (comparison.open_slots, comparison.priority) == (0, 5)
    assert give(pk=comparison.pk, priority=9) == 0
    assert list(Comparison.objects.exclude(pk=comparison.pk).order_by("pk").values()) == before


def test_a_delete_takes_its_rows_and_no_other(held: Assignment, bob: User):
    his = Assignment.objects.get(annotator=bob)
    for assignment in (held, his):
        Draft.objects.create(assignment=assignment, fields={}, saved_from=uuid.uuid4())
    discard = PreparedDelete(lambda p: Draft.objects.filter(assignment=p("assignment")))
    assert discard(assignment=held.pk) == 1
    assert discard(assignment=held.pk) == 0
    assert list(Draft.objects.values_list("assignment", flat=True)) == [his.pk]


def test_the_sql_is_written_once_for_a_connection(held: Assignment, alice: User):
    written = []

    def build(p):
        written.append(p)
        return Assignment.objects.filter(annotator=p("annotator"), state=AssignmentState.LEASED)

    mine = Prepared(build)
    assert [one.pk for one in mine.all(annotator=alice.pk)] == [held.pk]
    assert mine.all(annotator=0) == []
    assert len(written) == 1


def test_a_value_that_is_left_out_is_an_error_and_no_other_value(held: Assignment, alice: User):
    HELD.all(annotator=alice.pk, slug="tea")
    with pytest.raises(KeyError, match="slug"):
        HELD.all(annotator=alice.pk)


def test_what_is_inserted_is_what_the_orm_would_have_written(held: Assignment, alice: User):
    insert = PreparedInsert(Assignment)
    comparisons = [factories.make_comparison(held.comparison.project) for _ in range(3)]
    rows = [
        Assignment(
            comparison=comparison,
            annotator=alice,
            slot=0,
            display_order=[7, 3],
            reason='“quoted” % "so"',
            leased_at=held.leased_at,
            lease_expires_at=held.lease_expires_at,
        )
        for comparison in comparisons
    ]
    insert([])
    insert(rows[:1])
    insert(rows[1:])
    for row, comparison in zip(rows, comparisons, strict=True):
        assert not row._state.adding
        stored = Assignment.objects.get(comparison=comparison)
        for field in Assignment._meta.concrete_fields:
            assert getattr(stored, field.attname) == getattr(row, field.attname)


def test_an_insert_that_a_constraint_refuses_spoils_the_transaction_as_any_other(
    held: Assignment, alice: User
):
    again = Assignment(
        comparison=held.comparison,
        annotator=alice,
        slot=0,
        display_order=held.display_order,
        leased_at=held.leased_at,
        lease_expires_at=held.lease_expires_at,
    )
    with pytest.raises(IntegrityError), transaction.atomic():
        PreparedInsert(Assignment)([again])
    assert Assignment.objects.filter(annotator=alice).count() == 1
