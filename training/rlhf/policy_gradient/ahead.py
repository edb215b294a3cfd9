"""Batches drawn ahead: servers sample the next ones while the trainer learns from this one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

Request = TypeVar("Request")
Drawn = TypeVar("Drawn")

_LOOK_SECONDS = 0.1
"""Between two looks at whether the run is to stop."""


class Ahead(Generic[Request, Drawn]):
    """Draws batches one after the other in a thread of its own, each by the newest policy there is.

    A batch is numbered by the step that learns from it, a policy by the steps that it has taken. A batch is
    asked for `most` steps before its own at the earliest, when the policy of that step is there already: so
    batch − policy is never more than `most`. With 0 nothing is drawn ahead. Close it after use.
    """

    def __init__(self, draw: Callable[[Request, int], Drawn], *, most: int) -> None:
        """draw: takes what is asked for and the number of the policy; called in the thread."""
        self._draw = draw
        self._most = most
        self._newest = 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        self._futures: dict[int, Future[Drawn]] = {}

    def take(
        self,
        step: int,
        make_request: Callable[[int], Request],
        *,
        policy: int,
        last: int,
        stopped: Callable[[], bool],
    ) -> Drawn | None:
        """Return the batch of a step, and have the next ones drawn meanwhile; None once `stopped` holds.

        policy: number of the newest one. last: number of steps of the run. Raises what `draw` raised.
        """
        with self._lock:
            self._newest = policy
        for number in range(step, min(step + self._most + 1, last)):
            if number not in self._futures:
                self._futures[number] = self._pool.submit(self._draw_newest, make_request(number))
        future = self._futures[step]
        while not wait([future], timeout=_LOOK_SECONDS).done:
            if stopped():
                return None
        del self._futures[step]
        return future.result()

    def give_up(self) -> None:
        """Begin no further batch; the one that is being drawn goes on until its servers are let go."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Wait until the thread has ended."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _draw_newest(self, request: Request) -> Drawn:
        with self._lock:
            policy = self._newest
        return self._draw(request, policy)
