"""The user's account pages."""

from collections.abc import Callable

from allauth.account.decorators import reauthentication_required
from allauth.account.views import logout as allauth_logout
from allauth.account.views import password_reset as allauth_password_reset
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import logout as end_this_session
from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from annotation.errors import Refusal
from annotation.selectors.personal_data import personal_data
from annotation.services.inbox import choose_mail
from annotation.views.access import Request
from annotation.views.inbox import MailForm
from webapp.security.accounts import delete_account, end_other_sessions, end_session, open_sessions


@never_cache
@require_safe
def account(request: Request) -> HttpResponse:
    """Show the account's protection, its sessions and its actions. For everyone."""
    return render(
        request,
        "account/account.html",
        {
            "sessions": open_sessions(user=request.user),
            "current": request.session.session_key,
            "has_other_sites": bool(settings.SOCIALACCOUNT_PROVIDERS),
        },
    )


@require_POST
def session_end(request: Request, pk: int) -> HttpResponse:
    """End one of the user's sessions. For everyone."""
    try:
        end_session(user=request.user, pk=pk)
    except Refusal as refusal:
        messages.error(request, refusal.message)
    else:
        messages.success(request, _("The session is ended."))
    return redirect("account")


@require_POST
def sessions_end_others(request: Request) -> HttpResponse:
    """End all of the user's sessions except the current one. For everyone."""
    ended = end_other_sessions(user=request.user, current=str(request.session.session_key))
    messages.success(
        request,
        ngettext("%(count)d session is ended.", "%(count)d sessions are ended.", ended) % {"count": ended},
    )
    return redirect("account")


@require_POST
def mail_choice(request: Request) -> HttpResponse:
    """Choose the e-mails that the user gets; another address needs a recent sign-in. For everyone."""
    form = MailForm(request.POST)
    if not form.is_valid():
        messages.error(request, _("This is not an e-mail address. Nothing was saved."))
        return redirect("account")
    if form.cleaned_data["email"] != request.user.email:
        # Whoever has the address can set a new password.
        _require_recent_sign_in(request)
    try:
        choose_mail(user=request.user, **form.cleaned_data)
    except Refusal as refusal:
        messages.error(request, refusal.message)
    else:
        messages.success(request, _("Saved."))
    return redirect("account")


@reauthentication_required  # type: ignore[untyped-decorator]
def _require_recent_sign_in(request: HttpRequest) -> None:
    """Raise `ReauthenticationRequired` if the last proof is too old; allauth asks for one then."""


@never_cache
@require_safe
@reauthentication_required  # type: ignore[untyped-decorator]
def account_export(request: Request) -> StreamingHttpResponse:
    """Download the user's personal data as one file. For everyone."""
    answer = StreamingHttpResponse(personal_data(request.user), content_type="application/json")
    day = timezone.localdate().isoformat()
    answer["Content-Disposition"] = f'attachment; filename="rondo-my-data-{day}.json"'
    return answer


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@reauthentication_required  # type: ignore[untyped-decorator]
def account_delete(request: Request) -> HttpResponse:
    """Delete the user's account after its name is typed. For everyone."""
    problem = ""
    if request.method == "POST":
        if request.POST.get("username", "") != request.user.username:
            problem = _("This is not your user name. Type it exactly as it is written above.")
        else:
            try:
                delete_account(user=request.user)
            except Refusal as refusal:
                problem = refusal.message
            else:
                end_this_session(request)
                messages.success(request, _("Your account is deleted."))
                return redirect("login")
    return render(request, "account/delete.html", {"problem": problem}, status=422 if problem else 200)


# Sign-out, and pages of identity providers that are not configured; allauth does the rest.

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
