"""A kept connection to PostgreSQL is looked at without a question, and a dead one is still found."""

import select
from typing import Any

import psycopg
import pytest
from django.db import connection

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.postgres,
]


@pytest.fixture
def kept():
    """This thread's connection as a new request finds it."""
    opened: Any = connection
    opened.ensure_connection()
    opened.health_check_enabled, opened.health_check_done = True, False
    yield opened
    opened.close()


def asked_of(opened: Any) -> list[str]:
    """What is sent over this connection from here on, whoever opens the cursor."""
    sent: list[str] = []

    class Noted(opened.cursor_factory):  # type: ignore[misc]  # whichever Django opens
        def execute(self, query, *arguments, **named):
            sent.append(str(query))
            return super().execute(query, *arguments, **named)

    opened.cursor_factory = Noted
    return sent


def test_a_living_connection_is_not_asked_whether_it_lives(kept):
    sent = asked_of(kept.connection)
    with kept.cursor() as cursor:
        cursor.execute("SELECT 41 + 1")
        assert cursor.fetchone() == (42,)
    assert kept.health_check_done
    assert sent == ["SELECT 41 + 1"]


def test_a_connection_that_the_server_ended_is_opened_anew(kept):
    ended = kept.connection.info.backend_pid
    with psycopg.connect(kept.connection.info.dsn, password=kept.settings_dict["PASSWORD"]) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [ended])
    with kept.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        assert cursor.fetchone() != (ended,)


def test_a_word_of_the_server_that_is_no_farewell_ends_nothing(kept):
    here = kept.connection.info.backend_pid
    with psycopg.connect(kept.connection.info.dsn, password=kept.settings_dict["PASSWORD"]) as other:
        kept.connection.execute("LISTEN rondo_test")
        other.execute("NOTIFY rondo_test")
        other.commit()
    assert select.select([kept.connection.pgconn.socket], [], [], 60)[0]
    sent = asked_of(kept.connection)
    with kept.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        assert cursor.fetchone() == (here,)
    assert sent == ["SELECT 1", "SELECT pg_backend_pid()"]
