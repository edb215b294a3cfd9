"""Middlewares: language, headers, session activity, refusal of NUL characters."""

import time
from collections.abc import Callable
from http import HTTPStatus

from allauth.usersessions.models import UserSession
from django.conf import settings
from django.core.exceptions import BadRequest
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.middleware.locale import LocaleMiddleware
from django.shortcuts import redirect
from django.utils import timezone, translation
from django.utils.translation import gettext as _

from annotation.selectors.access import client_address
from annotation.selectors.panels import panel_is_open_for
from webapp.operations.errors import for_programs

# Last use and address of each open session, with one UPDATE every few minutes.

EVERY_SECONDS = 300
_MOST = 10_000


class SessionActivity:
    """Middleware for signed-in sessions, the only ones that are listed.

    Each process remembers its last write, so that labelling, with several requests a second, does not write
    on each of them.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response
        self._written: dict[str, float] = {}

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        answer = self.get_response(request)
        if request.user.is_authenticated and "account_authentication_methods" in request.session:
            self._note(request)
        return answer

    def _note(self, request: HttpRequest) -> None:
        key, now = str(request.session.session_key), time.monotonic()
        if now - self._written.get(key, -EVERY_SECONDS) < EVERY_SECONDS:
            return
        if len(self._written) >= _MOST:
            self._written.clear()
        self._written[key] = now
        seen = {
            "last_seen_at": timezone.now(),
            "user_agent": request.headers.get("User-Agent", "")[:200],
        }
        if address := client_address(request):
            seen["ip"] = address
        UserSession.objects.filter(session_key=key).update(**seen)


# Headers that neither Django nor django-csp sends.

# Pages use passkeys and the clipboard; every other feature is off.
_OURS = ("clipboard-write", "fullscreen", "publickey-credentials-create", "publickey-credentials-get")
_NOBODYS = (
    "accelerometer",
    "autoplay",
    "camera",
    "display-capture",
    "encrypted-media",
    "geolocation",
    "gyroscope",
    "magnetometer",
    "microphone",
    "midi",
    "payment",
    "serial",
    "usb",
    "xr-spatial-tracking",
)
PERMISSIONS = ", ".join([*(f"{power}=(self)" for power in _OURS), *(f"{power}=()" for power in _NOBODYS)])


class PermissionsPolicy:
    """Middleware that restricts the browser features available to pages."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        answer = self.get_response(request)
        answer.headers["Permissions-Policy"] = PERMISSIONS
        return answer


# Participants of panels reach the labelling pages of their project and nothing else.

FOR_PARTICIPANTS = frozenset(
    (
        *("label", "label-ahead", "label-step", "submit", "draft", "continuation", "skip", "flag", "renew"),
        *("revise", "final-pass", "final-pass-submit", "guidelines", "guidelines-read", "category-colours"),
        *("panel", "panel-done", "language", "my-work", "keys", "ask"),
    )
)
"""URL names; whatever is added elsewhere stays closed to them."""


class ParticipantsLabelOnly:
    """Middleware: 404 for a participant of a panel on every page but `FOR_PARTICIPANTS`.

    Once their panel is closed they are led to its end.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self.get_response(request)

    def process_view(self, request: HttpRequest, *_view: object) -> HttpResponseBase | None:
        """Refuse before any view runs."""
        user = request.user
        if not user.is_authenticated or not user.is_participant:
            return None
        match = request.resolver_match
        if match is None or match.url_name not in FOR_PARTICIPANTS or match.namespaces:
            raise Http404
        if match.url_name in ("panel", "panel-done"):
            return None
        return None if panel_is_open_for(user.pk) else redirect("panel-done")


# The language of a page: the user's choice, else the browser's.


class LanguageMiddleware(LocaleMiddleware):
    """Django's middleware, preferring the user's choice. Comes after authentication."""

    def process_request(self, request: HttpRequest) -> None:
        chosen = getattr(request.user, "language", "")
        if chosen not in dict(settings.LANGUAGES):
            super().process_request(request)
            return
        translation.activate(chosen)
        request.LANGUAGE_CODE = chosen


# Refusal of NUL characters, which PostgreSQL can neither store nor compare.

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
