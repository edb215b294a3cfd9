"""In which language a page answers: the one that the person chose, else the one that the browser asks for."""

from django.conf import settings
from django.http import HttpRequest
from django.middleware.locale import LocaleMiddleware
from django.utils import translation


class LanguageMiddleware(LocaleMiddleware):
    """Django's middleware with a person's choice before the browser's. Stands after authentication."""

    def process_request(self, request: HttpRequest) -> None:
        """Activate the language of this request."""
        chosen = getattr(request.user, "language", "")
        if chosen not in dict(settings.LANGUAGES):
            super().process_request(request)
            return
        translation.activate(chosen)
        request.LANGUAGE_CODE = chosen
