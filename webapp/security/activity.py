"""Last use and address of each open session, with one UPDATE every few minutes."""

import time
from collections.abc import Callable

from allauth.usersessions.models import UserSession
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils import timezone

from annotation.api.authentication import client_address

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
