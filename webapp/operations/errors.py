"""Errors outside of any view: a database that is away, as a page or as problem details."""

import sqlite3
import sys
from http import HTTPStatus

from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse, UnreadablePostError
from django.template.loader import render_to_string
from django.utils.translation import gettext as _
from django.views.defaults import server_error as failed

from annotation.services.job_runs import free_bytes

# Errors that are answered outside of views, in the form of the interface that was asked.


def for_programs(request: HttpRequest, *, status: HTTPStatus, detail: str, code: str) -> JsonResponse | None:
    """Return problem details below /api/, OpenAI's error object below /v1/, and None for pages.

    code: the error's name for programs.
    """
    if request.path_info.startswith("/api/"):
        body = {
            "type": "about:blank",
            "title": status.phrase,
            "status": int(status),
            "detail": detail,
            "code": code,
        }
        return JsonResponse(body, status=status, content_type="application/problem+json")
    if request.path_info.startswith("/v1/"):
        kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
        error = {"message": detail, "type": kind, "param": None, "code": code}
        return JsonResponse({"error": error}, status=status)
    return None


# Responses while the database is unavailable: retry in a moment.
#
# The failure may come from anywhere, including the session's query, so it is handled in Django's view for
# server errors. A submitted form is not lost: the page contains it and sends it again.

RETRY_AFTER_SECONDS = 2
_REPEATED_BELOW = "/projects/"
"""Forms below this path are repeated. Others may contain passwords, which no page repeats."""
_PASSES = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
    }
)


_WRITES_FAIL = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})
_POSTGRESQL_DISK_FULL = "53100"


def server_error(request: HttpRequest) -> HttpResponse:
    """Return 503 with the submitted form if the database is unavailable, else 500. For everyone."""
    error = sys.exception()
    if not database_is_away(error):
        return _internal_error(request)
    response = _answer(request, disk_full=is_disk_full(error))
    response["Retry-After"] = str(RETRY_AFTER_SECONDS)
    response["Cache-Control"] = "no-store"
    return response


def _internal_error(request: HttpRequest) -> HttpResponse:
    detail = _("An error in Rondo ended this request. The log of the server says more.")
    status = HTTPStatus.INTERNAL_SERVER_ERROR
    return for_programs(request, status=status, detail=detail, code="internal_error") or failed(request)


def database_is_away(error: BaseException | None) -> bool:
    """Return True for a temporary failure of the database."""
    if not isinstance(error, OperationalError | InterfaceError):
        return False
    cause = error.__cause__
    # SQLite raises the same error for a missing table, which is not temporary.
    return not isinstance(cause, sqlite3.Error) or cause.sqlite_errorcode & 0xFF in _PASSES


def is_disk_full(error: BaseException | None) -> bool:
    """Return True where the database could not write for lack of room."""
    cause = error.__cause__ if error is not None else None
    if isinstance(cause, sqlite3.Error):
        code = cause.sqlite_errorcode & 0xFF
        # SQLite's own files beside the database fail as input and output.
        has_room = bool(free_bytes())
        return code == sqlite3.SQLITE_FULL or (code in _WRITES_FAIL and not has_room)
    return getattr(cause, "sqlstate", None) == _POSTGRESQL_DISK_FULL


def _answer(request: HttpRequest, *, disk_full: bool) -> HttpResponse:
    code = "disk_full" if disk_full else "database_unavailable"
    detail = (
        _("The disk of the database is full. Nothing was stored. Tell an administrator, and try again.")
        if disk_full
        else _("The database is unavailable. Try again in a moment.")
    )
    if answer := for_programs(request, status=HTTPStatus.SERVICE_UNAVAILABLE, detail=detail, code=code):
        return answer
    # Without the request, because context processors would query the database.
    values = {"address": request.get_full_path(), "sent": _sent(request), "disk_full": disk_full}
    page = render_to_string("503.html", values)
    return HttpResponse(page, status=503)


def _sent(request: HttpRequest) -> list[tuple[str, str]]:
    """Return the fields of a submitted labelling form; none of other requests or of file uploads."""
    if request.method != "POST" or not request.path_info.startswith(_REPEATED_BELOW):
        return []
    try:
        fields = [] if request.FILES else request.POST.lists()
    except (UnreadablePostError, RequestDataTooBig, SuspiciousOperation):
        return []
    return [(name, value) for name, values in fields for value in values]
