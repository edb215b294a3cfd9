"""Questions to things that may never answer: asked on a thread of their own, and waited for so long."""

from collections.abc import Callable
from threading import Lock, Thread
from typing import TypeVar

Answer = TypeVar("Answer")

_asked: dict[str, Thread] = {}
_guard = Lock()


class OverdueError(Exception):
    """No answer came in time."""


def within(seconds: float, name: str, ask: Callable[[], Answer]) -> Answer:
    """What `ask` returns or raises, if it does so within `seconds`; else `OverdueError`.

    While an earlier question of the same name has no answer yet, no other is asked: a database that hangs for
    an hour costs one thread and not one for each look at it.
    """
    outcome: list[Answer] = []
    problem: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(ask())
        except Exception as error:
            problem.append(error)

    with _guard:
        earlier = _asked.get(name)
        if earlier is not None and earlier.is_alive():
            raise OverdueError
        thread = Thread(target=work, name=f"within-{name}", daemon=True)
        _asked[name] = thread
        thread.start()
    thread.join(seconds)
    if problem:
        raise problem[0]
    if not outcome:
        raise OverdueError
    return outcome[0]
