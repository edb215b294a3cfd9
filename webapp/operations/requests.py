"""The outermost middleware: each request gets an id, is counted and timed, and its lines in the log bear it.

The id comes from a proxy (X-Request-ID) where that is well formed, and goes back with the answer; the jobs
that a request causes bear it too (`webapp.operations.jobs`).
"""

import logging
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

from django.core.signals import request_finished
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse
from django.utils.functional import LazyObject, empty

from training import log_lines
from webapp.operations.figures import requests_of_this_process

logger = logging.getLogger(__name__)

HEADER = "X-Request-ID"
_SLOW_SECONDS = 1.0
"""A request that takes longer has a line of its own in the log."""


class RequestLine:
    """Middleware: the id of a request, its place in the figures, and a line where it was slow."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        began = perf_counter()
        asked = request.META.get("HTTP_X_REQUEST_ID", "")
        request_id = asked if asked and log_lines.is_request_id(asked) else log_lines.new_request_id()
        fields: log_lines.Fields = {
            "request_id": request_id,
            "user": partial(_user_of, request),
            "route": partial(route_of, request),
        }
        log_lines.enter(fields)
        response = self.get_response(request)
        seconds = perf_counter() - began
        requests_of_this_process.note(
            route=route_of(request), method=request.method, status=response.status_code, seconds=seconds
        )
        if seconds > _SLOW_SECONDS:
            logger.info("%s took %.1f s, status %s", request.method, seconds, response.status_code)
        response.headers[HEADER] = request_id
        return response


# Not at the middleware's end: Django writes its line about an error after that, and streams come later still.
@receiver(request_finished)
def _forget(**_: Any) -> None:
    log_lines.forget()


def route_of(request: HttpRequest) -> str:
    """The name of a request's route, such as `label`; never its path, which may hold anything."""
    match = request.resolver_match
    return match.view_name or "unnamed" if match else "none"


def _user_of(request: HttpRequest) -> int | None:
    """The number of who asks; None before that was looked up, which a line of a log is no reason to do."""
    user = request.__dict__.get("user")
    if isinstance(user, LazyObject) and user.__dict__.get("_wrapped") is empty:
        return None
    pk: int | None = getattr(user, "pk", None)
    return pk
