"""The language of a page: the user's choice, else the browser's."""

from django.conf import settings
from django.http import HttpRequest
from django.middleware.locale import LocaleMiddleware
from django.utils import translation


class LanguageMiddleware(LocaleMiddleware):
    """Django's middleware, preferring the user's choice. Comes after authentication."""

    def process_request(self, request: HttpRequest) -> None:
        chosen = getattr(request.user, "language", "")
        if chosen not in dict(settings.LANGUAGES):
            super().process_request(request)
            return
        translation.activate(chosen)
        request.LANGUAGE_CODE = chosen
