"""Signing out, and pages of other sites that are not set up; the rest of signing in is allauth's."""

from collections.abc import Callable

from allauth.account.views import logout as allauth_logout
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_POST

Page = Callable[[HttpRequest], HttpResponseBase]


@login_not_required
@require_POST
def logout(request: HttpRequest) -> HttpResponse:
    """For everyone, those too who are half signed in: end this session. Never by following a link."""
    answer: HttpResponse = allauth_logout(request)
    return answer


def provider_page(provider: str, view: Callable[[HttpRequest], HttpResponseBase]) -> Page:
    """A page of allauth for signing in with another site; 404 where that site is not set up here."""

    @login_not_required
    def page(request: HttpRequest) -> HttpResponseBase:
        """For everyone: sign in with another site."""
        if provider not in settings.SOCIALACCOUNT_PROVIDERS:
            raise Http404
        return view(request)

    return page
