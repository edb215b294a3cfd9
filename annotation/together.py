"""Statements that go to the database in one message, with one wait for all their answers.

A message costs both sides some 0.15 ms of processor time beside what it asks, and a label sends twenty.
PostgreSQL takes several statements in a message, one after the other: each sees what those before it did
and what others committed meanwhile, as it would alone. Other databases get them one by one.

    turn, locked = together(taking_turn(...), _LOCKED.asking(assignment=pk))

    with gathered():
        _SUBMIT.soon(assignment=pk)  # nobody waits for it:
        _DISCARD.soon(assignment=pk)  # both are sent at the end of the block, or with what is asked before
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

Answer = TypeVar("Answer")
First = TypeVar("First")
Second = TypeVar("Second")
Third = TypeVar("Third")

_UNSENT = "rondo_unsent"


@dataclass(frozen=True, slots=True)
class Statement(Generic[Answer]):
    """One statement with its values, and what to make of its answer."""

    text: str
    values: Sequence[Any]
    read: Callable[[Any], Answer]
    """Takes the cursor that stands at the answer."""
    writes: bool = False
    """Where a change fails, nothing of its transaction stays."""

    def run(self) -> Answer:
        """Send it, and its answer."""
        answer: Answer = _send(connections[DEFAULT_DB_ALIAS], self)[0]
        return answer

    def soon(self) -> None:
        """Send it with the next statement of a `gathered` block; at once outside of one."""
        unsent: list[Statement[Any]] | None = vars(connections[DEFAULT_DB_ALIAS]).get(_UNSENT)
        if unsent is None:
            self.run()
        else:
            unsent.append(self)


@overload
def together(one: Statement[First], two: Statement[Second], /) -> tuple[First, Second]: ...
@overload
def together(
    one: Statement[First], two: Statement[Second], three: Statement[Third], /
) -> tuple[First, Second, Third]: ...
def together(*statements: Statement[Any]) -> tuple[Any, ...]:
    """Send statements in one message; their answers in the same order."""
    return tuple(_send(connections[DEFAULT_DB_ALIAS], *statements))


@contextmanager
def gathered() -> Iterator[None]:
    """Within the block, what is to be done `soon` waits for the next statement, or for the end of the block.

    Belongs inside a transaction. Nothing overtakes: whatever else is asked of the database is asked after
    it. When an error leaves the block, nothing of that transaction stays.
    """
    connection = connections[DEFAULT_DB_ALIAS]
    if _UNSENT in vars(connection):
        yield
        return
    # Where a message takes one statement, nothing waits.
    vars(connection)[_UNSENT] = [] if _takes_several(connection) else None
    try:
        with connection.execute_wrapper(_after_what_waits):
            yield
            _send(connection)
    except BaseException:
        # Some of it may not have been sent: what was is no whole.
        transaction.set_rollback(True)
        raise
    finally:
        del vars(connection)[_UNSENT]


def _after_what_waits(
    execute: Callable[..., Any], text: str, values: Any, many: bool, context: dict[str, Any]
) -> Any:
    _send(context["connection"])
    return execute(text, values, many, context)


def _send(connection: BaseDatabaseWrapper, *statements: Statement[Any]) -> list[Any]:
    """The answers to `statements`. What waits to be sent goes before them."""
    waiting: list[Statement[Any]] = vars(connection).get(_UNSENT) or []
    sent = (*waiting, *statements)
    waited = len(waiting)
    waiting.clear()
    if not sent:
        return []
    guard = (
        transaction.mark_for_rollback_on_error(using=connection.alias)
        if any(one.writes for one in sent)
        else nullcontext()
    )
    with guard, connection.cursor() as cursor:
        in_one = _takes_several(connection)
        if in_one:
            text = "; ".join(one.text for one in sent)
            cursor.execute(text, [value for one in sent for value in one.values])
        answers = []
        for place, one in enumerate(sent):
            if not in_one:
                cursor.execute(one.text, one.values)
            elif place:
                cursor.nextset()
            answers.append(one.read(cursor))
        return answers[waited:]


def _takes_several(connection: BaseDatabaseWrapper) -> bool:
    # Parameters that the server binds belong to one statement.
    return connection.vendor == "postgresql" and not getattr(
        connection.features, "uses_server_side_binding", False
    )
