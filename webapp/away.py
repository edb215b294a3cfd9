"""What people and programs are told while the database does not answer: come back in a moment.

Such a failure may come from anywhere, the session's look-up among them, so it is told where Django tells all
others: in place of the page for errors of the program. What was sent is not lost with it: the page holds it,
and sends it again.
"""

import sqlite3
import sys
from http import HTTPStatus

from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, UnreadablePostError
from django.template.loader import render_to_string
from django.utils.translation import gettext as _
from django.views.defaults import server_error as failed

from webapp.problems import for_programs

RETRY_AFTER_SECONDS = 2
_KEPT_BELOW = "/projects/"
"""Where people enter what must not be lost. Forms elsewhere may bear passwords, which no page repeats."""
_PASSES = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
    }
)


def server_error(request: HttpRequest) -> HttpResponse:
    """The page for a failure: 503 and what was sent where the database is away, else 500. For everyone."""
    if not database_is_away(sys.exception()):
        return failed(request)
    response = _answer(request)
    response["Retry-After"] = str(RETRY_AFTER_SECONDS)
    response["Cache-Control"] = "no-store"
    return response


def database_is_away(error: BaseException | None) -> bool:
    """Whether a failure is the database's, and of a kind that passes."""
    if not isinstance(error, OperationalError | InterfaceError):
        return False
    cause = error.__cause__
    # SQLite says in the same way that a table is not there, which no patience mends.
    return not isinstance(cause, sqlite3.Error) or cause.sqlite_errorcode & 0xFF in _PASSES


def _answer(request: HttpRequest) -> HttpResponse:
    told = _("The database does not answer. Try again in a moment.")
    status = HTTPStatus.SERVICE_UNAVAILABLE
    if answer := for_programs(request, status=status, detail=told, code="database_unavailable"):
        return answer
    # Without the request: what a template may ask of it stands in the database.
    page = render_to_string("503.html", {"address": request.get_full_path(), "sent": _sent(request)})
    return HttpResponse(page, status=503)


def _sent(request: HttpRequest) -> list[tuple[str, str]]:
    """The fields of a form of people's work; none of other requests, nor of those that bring files."""
    if request.method != "POST" or not request.path_info.startswith(_KEPT_BELOW):
        return []
    try:
        fields = [] if request.FILES else request.POST.lists()
    except (UnreadablePostError, RequestDataTooBig, SuspiciousOperation):
        return []
    return [(name, value) for name, values in fields for value in values]
