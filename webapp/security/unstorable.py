"""Refusal of NUL characters, which PostgreSQL can neither store nor compare."""

from collections.abc import Callable
from http import HTTPStatus

from django.core.exceptions import BadRequest
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _

from webapp.api.problems import for_programs

_NUL = "\0"


class RefuseNul:
    """Middleware: 404 for a NUL in the path, 400 for one in a parameter, before any view runs.

    Comes after the language and the user are known, for the error page.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if _NUL in request.path_info:
            detail = _("There is nothing here, or nothing that you may see.")
            answer = for_programs(request, status=HTTPStatus.NOT_FOUND, detail=detail, code="unknown_url")
            if answer is None:
                raise Http404(detail)
            return answer
        if _has_nul_in_query(request):
            detail = _("A parameter of the address holds the character NUL. Send it without.")
            answer = for_programs(request, status=HTTPStatus.BAD_REQUEST, detail=detail, code="invalid_value")
            if answer is None:
                raise BadRequest(detail)
            return answer
        return self.get_response(request)


def _has_nul_in_query(request: HttpRequest) -> bool:
    query = request.META.get("QUERY_STRING", "")
    # Few requests contain the escape; the others are not parsed here.
    if "%00" not in query and _NUL not in query:
        return False
    return any(_NUL in part for name, values in request.GET.lists() for part in (name, *values))
