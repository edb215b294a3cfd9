"""Whoever waits for what others have in hand waits with empty hands, so that nobody waits in a ring."""

from functools import partial
from threading import Semaphore, Thread
from typing import cast

import pytest
from django.db import connection, transaction

from annotation.models import Assignment, Comparison
from annotation.services.assignments import next as next_one
from annotation.services.assignments.next import assign_next
from tests import factories
from tests.annotation.assignments.test_concurrency import at_once

SECONDS = 60


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> tuple[list[tuple[str, int]], Semaphore]:
    """Each walk along the queue with the transaction in which it was made, and a signal before each."""
    made: list[tuple[str, int]] = []
    signal = Semaphore(0)

    def note(name: str) -> None:
        walk = getattr(next_one, name)

        def noted(*arguments: object, **named: object) -> Comparison | None:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_current_xact_id()::text::bigint")
                made.append((name, cursor.fetchone()[0]))
            signal.release()
            return cast("Comparison | None", walk(*arguments, **named))

        monkeypatch.setattr(next_one, name, noted)

    note("first_open")
    note("first_open_waiting")
    return made, signal


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_who_waits_for_work_does_so_in_a_transaction_that_passed_over_nothing(looks):
    made, signal = looks
    alice = factories.make_user("alice")
    project = factories.make_project(annotators=[alice])
    factories.make_comparison(project)
    got: list[object] = []
    ask = partial(assign_next, project=project, annotator=alice)
    asking = Thread(target=lambda: got.extend(at_once(ask)))
    with transaction.atomic():
        list(Comparison.objects.select_for_update(no_key=True))
        asking.start()
        assert signal.acquire(timeout=SECONDS)
        assert signal.acquire(timeout=SECONDS)
    asking.join(SECONDS)
    assert [name for name, _ in made] == ["first_open", "first_open_waiting"]
    assert len({transaction_number for _, transaction_number in made}) == 2
    assert [type(assignment) for assignment in got] == [Assignment]
