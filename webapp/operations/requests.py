"""The outermost middleware: request ids, metrics, and fields of log lines.

The id is that of the proxy (X-Request-ID) if well formed, and is returned in the response; jobs caused by the
request log it too (`webapp.operations.jobs`).
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

from training.contract import log_lines
from webapp.operations.request_counts import requests_of_this_process

logger = logging.getLogger(__name__)

HEADER = "X-Request-ID"
_SLOW_SECONDS = 1.0
"""Slower requests get a log line."""


class RequestLine:
    """Middleware: assigns the id, measures the request, and logs it if it was slow."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        began = perf_counter()
        header = request.META.get("HTTP_X_REQUEST_ID", "")
        request_id = header if header and log_lines.is_request_id(header) else log_lines.new_request_id()
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


# Not at the middleware's end: Django logs errors, and streams run, after that.
@receiver(request_finished)
def _forget(**_: Any) -> None:
    log_lines.forget()


def route_of(request: HttpRequest) -> str:
    """Return the name of the route, such as `label`; never the path, which may hold anything."""
    match = request.resolver_match
    return match.view_name or "unnamed" if match else "none"


def _user_of(request: HttpRequest) -> int | None:
    """Return the user's id; None if the user was not loaded, since logging must not query."""
    user = request.__dict__.get("user")
    if isinstance(user, LazyObject) and user.__dict__.get("_wrapped") is empty:
        return None
    pk: int | None = getattr(user, "pk", None)
    return pk
