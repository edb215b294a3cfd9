"""Statements in one message: the same as one after the other."""

import uuid

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from annotation.models import Assignment, Comparison, Draft, Project, User
from annotation.prepared import Prepared, PreparedDelete, PreparedInsert, PreparedUpdate
from annotation.services.assignments import assign_next
from annotation.together import Statement, gathered, together
from tests import factories

PRIORITY = Prepared(lambda p: Comparison.objects.filter(pk=p("pk")).values_list("priority"))
COMPARISON = Prepared(lambda p: Comparison.objects.filter(pk=p("pk")))
RAISE = PreparedUpdate(
    lambda p: (Comparison.objects.filter(pk=p("pk")), {"priority": F("priority") + p("by")})
)
DISCARD = PreparedDelete(lambda p: Draft.objects.filter(assignment=p("assignment")))
WRITE = PreparedInsert(Draft)


@pytest.fixture
def comparison(project: Project) -> Comparison:
    return factories.make_comparison(project)


@pytest.fixture
def held(comparison: Comparison, alice: User) -> Assignment:
    assignment = assign_next(project=comparison.project, annotator=alice)
    assert assignment is not None
    return assignment


def raising(comparison: Comparison, by: int) -> Statement[int]:
    """An update that says how many rows it met."""
    table = Comparison._meta.db_table
    return Statement(
        f"UPDATE {table} SET priority = priority + %s WHERE id = %s",
        [by, comparison.pk],
        lambda c: c.rowcount,
    )


def messages(asked: CaptureQueriesContext) -> int:
    return len(asked.captured_queries)


def on_postgresql() -> bool:
    return connection.vendor == "postgresql"


def test_each_answer_is_that_of_its_own_statement_and_sees_what_those_before_it_did(comparison: Comparison):
    with CaptureQueriesContext(connection) as asked:
        met, rows, objects = together(
            raising(comparison, 3),
            PRIORITY.asking_rows(pk=comparison.pk),
            COMPARISON.asking(pk=comparison.pk),
        )
    assert (met, rows) == (1, [(3,)])
    assert [(one.pk, one.priority) for one in objects] == [(comparison.pk, 3)]
    assert together(PRIORITY.asking_rows(pk=0), raising(comparison, 1)) == ([], 1)
    assert messages(asked) == (1 if on_postgresql() else 3)


def test_a_per_cent_sign_and_a_semicolon_in_a_value_stay_where_they_are(held: Assignment):
    fields = {"comment": ["100 %; %s %(x)s ';--"]}
    with transaction.atomic(), gathered():
        WRITE.soon([Draft(assignment=held, fields=fields, saved_from=uuid.uuid4())])
        RAISE.soon(pk=held.comparison_id, by=1)
    assert Draft.objects.get(assignment=held).fields == fields
    assert Comparison.objects.get(pk=held.comparison_id).priority == 1


def test_what_waits_goes_before_what_is_asked_next_and_the_rest_at_the_end(
    held: Assignment, comparison: Comparison
):
    Draft.objects.create(assignment=held, fields={}, saved_from=uuid.uuid4())
    with transaction.atomic(), CaptureQueriesContext(connection) as asked, gathered():
        RAISE.soon(pk=comparison.pk, by=2)
        RAISE.soon(pk=comparison.pk, by=3)
        assert PRIORITY.rows(pk=comparison.pk) == [(5,)]
        RAISE.soon(pk=comparison.pk, by=4)
        # The ORM's own questions do not overtake either.
        assert Comparison.objects.get(pk=comparison.pk).priority == 9
        DISCARD.soon(assignment=held.pk)
        RAISE.soon(pk=comparison.pk, by=1)
    assert not Draft.objects.exists()
    assert Comparison.objects.get(pk=comparison.pk).priority == 10
    assert messages(asked) == (4 if on_postgresql() else 7)


def test_a_savepoint_within_keeps_what_was_said_before_it(comparison: Comparison):
    with transaction.atomic(), gathered():
        RAISE.soon(pk=comparison.pk, by=1)
        with transaction.atomic():
            RAISE(pk=comparison.pk, by=10)
            transaction.set_rollback(True)
        RAISE.soon(pk=comparison.pk, by=100)
    assert Comparison.objects.get(pk=comparison.pk).priority == 101


def test_outside_of_a_block_soon_is_at_once(comparison: Comparison):
    RAISE.soon(pk=comparison.pk, by=7)
    WRITE.soon([])
    assert Comparison.objects.get(pk=comparison.pk).priority == 7


def test_a_block_within_a_block_is_part_of_it(comparison: Comparison):
    with transaction.atomic(), gathered():
        RAISE.soon(pk=comparison.pk, by=1)
        with gathered():
            RAISE.soon(pk=comparison.pk, by=2)
        RAISE.soon(pk=comparison.pk, by=4)
    assert Comparison.objects.get(pk=comparison.pk).priority == 7


def test_an_error_within_leaves_nothing_of_the_transaction_even_where_it_is_caught(comparison: Comparison):
    with transaction.atomic():
        RAISE(pk=comparison.pk, by=1)
        try:
            with gathered():
                RAISE.soon(pk=comparison.pk, by=2)
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
    assert Comparison.objects.get(pk=comparison.pk).priority == 0
    RAISE.soon(pk=comparison.pk, by=5)
    assert Comparison.objects.get(pk=comparison.pk).priority == 5


def test_what_a_constraint_refuses_ends_the_transaction_and_nothing_of_the_message_stays(
    held: Assignment, comparison: Comparison
):
    Draft.objects.create(assignment=held, fields={}, saved_from=uuid.uuid4())
    twice = Draft(assignment=held, fields={}, saved_from=uuid.uuid4())

    @transaction.atomic
    def write() -> None:
        with gathered():
            RAISE.soon(pk=comparison.pk, by=1)
            WRITE.soon([twice])
            DISCARD.soon(assignment=held.pk)

    with pytest.raises(IntegrityError):
        write()
    assert Draft.objects.filter(assignment=held).count() == 1
    assert Comparison.objects.get(pk=comparison.pk).priority == 0
    with pytest.raises(DatabaseError), transaction.atomic():
        together(raising(comparison, 1), Statement("SELECT no_such_function()", [], lambda c: c.fetchall()))
    assert Comparison.objects.get(pk=comparison.pk).priority == 0
