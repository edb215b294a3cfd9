"""Labelling requests take turns within one web process.

Python runs one thread of a process at a time, and at every question to the database a thread gives
its turn away and may wait 5 ms to get it back while another computes. A request asks thirty
questions, most of them while it holds a lock that everyone else waits for. So four requests at once
in one process take far longer than four one after the other: measured, 50 labels a second instead of
88. Other pages, some of which wait for the model server, go on beside them as before.
"""

from collections.abc import Callable
from threading import Lock

from django.http import HttpRequest, HttpResponse

_LABELLING = "/label/"


class LabellingTakesTurns:
    """Middleware: one labelling request at a time per process; nothing in them waits for anything else."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response
        self._turn = Lock()

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if _LABELLING not in request.path_info:
            return self.get_response(request)
        with self._turn:
            return self.get_response(request)
