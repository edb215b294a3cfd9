"""Labelling requests take turns within one web process.

Python runs one thread of a process at a time, and at every question to the database a thread gives
its turn away and may wait 5 ms to get it back while another computes. A request asks thirty
questions, most of them while it holds a lock that everyone else waits for. So four requests at once
in one process take far longer than four one after the other: measured, 50 labels a second instead of
88. Other pages, some of which wait for the model server, go on beside them as before.

Whoever came first is first: Python's own lock goes to whichever thread happens to ask at the right moment,
and who is unlucky several times waits several times as long.
"""

from collections import deque
from collections.abc import Callable
from threading import Lock
from types import TracebackType

from django.http import HttpRequest, HttpResponse

_LABELLING = "/label/"


class Queue:
    """A lock that goes to those who wait for it in the order in which they came."""

    def __init__(self) -> None:
        self._guard = Lock()
        self._taken = False
        self._waiting: deque[Lock] = deque()

    def __enter__(self) -> None:
        with self._guard:
            if not self._taken:
                self._taken = True
                return
            turn = Lock()
            turn.acquire()
            self._waiting.append(turn)
        turn.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False


class LabellingTakesTurns:
    """Middleware: one labelling request at a time per process; nothing in them waits for anything else."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response
        self._turn = Queue()

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if _LABELLING not in request.path_info:
            return self.get_response(request)
        with self._turn:
            return self.get_response(request)
