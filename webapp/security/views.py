"""Sign-out, and pages of identity providers that are not configured; allauth does the rest."""

from collections.abc import Callable

from allauth.account.views import logout as allauth_logout
from allauth.account.views import password_reset as allauth_password_reset
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_POST

Page = Callable[[HttpRequest], HttpResponseBase]


@login_not_required
@require_POST
def logout(request: HttpRequest) -> HttpResponse:
    """End this session, also a half signed-in one; only by POST. For everyone."""
    answer: HttpResponse = allauth_logout(request)
    return answer


@login_not_required
def password_reset(request: HttpRequest) -> HttpResponseBase:
    """Ask for a link to a new password, where e-mail is set up. For everyone."""
    if settings.RONDO_EMAIL:
        page: HttpResponseBase = allauth_password_reset(request)
        return page
    return render(request, "account/password_reset_off.html")


def provider_page(provider: str, view: Callable[[HttpRequest], HttpResponseBase]) -> Page:
    """Return a page of allauth for an identity provider; 404 if the provider is not configured."""

    @login_not_required
    def page(request: HttpRequest) -> HttpResponseBase:
        """Sign in with an identity provider. For everyone."""
        if provider not in settings.SOCIALACCOUNT_PROVIDERS:
            raise Http404
        return view(request)

    return page
