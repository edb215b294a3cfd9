"""Calls with a deadline, for resources that may never answer."""

from collections.abc import Callable
from threading import Lock, Thread
from typing import TypeVar

Answer = TypeVar("Answer")

_threads: dict[str, Thread] = {}
_guard = Lock()


class OverdueError(Exception):
    """The call did not return in time."""


def within(seconds: float, name: str, ask: Callable[[], Answer]) -> Answer:
    """Return or raise the outcome of `ask`, called in a thread; raise `OverdueError` after `seconds`.

    Raise it at once while an earlier call of the same name is still running: a database that hangs for an
    hour costs one thread, not one per check.
    """
    outcome: list[Answer] = []
    problem: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(ask())
        except Exception as error:
            problem.append(error)

    with _guard:
        earlier = _threads.get(name)
        if earlier is not None and earlier.is_alive():
            raise OverdueError
        thread = Thread(target=work, name=f"within-{name}", daemon=True)
        _threads[name] = thread
        thread.start()
    thread.join(seconds)
    if problem:
        raise problem[0]
    if not outcome:
        raise OverdueError
    return outcome[0]
