"""Pages on which people look after their own account."""

from allauth.account.decorators import reauthentication_required
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import logout as end_this_session
from django.http import HttpResponse, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from annotation.errors import Refusal
from annotation.personal_data import personal_data
from annotation.views.access import Request
from webapp.security.accounts import delete_account, end_other_sessions, end_session, open_sessions


@never_cache
@require_safe
def account(request: Request) -> HttpResponse:
    """For everyone: what protects one's account, where it is open, and what can be done with it."""
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
    """For everyone: end one of one's own sessions."""
    try:
        end_session(user=request.user, pk=pk)
    except Refusal as refusal:
        messages.error(request, refusal.message)
    else:
        messages.success(request, _("The session is ended."))
    return redirect("account")


@require_POST
def sessions_end_others(request: Request) -> HttpResponse:
    """For everyone: end all of one's own sessions but this one."""
    ended = end_other_sessions(user=request.user, current=str(request.session.session_key))
    messages.success(
        request,
        ngettext("%(count)d session is ended.", "%(count)d sessions are ended.", ended) % {"count": ended},
    )
    return redirect("account")


@never_cache
@require_safe
@reauthentication_required  # type: ignore[untyped-decorator]
def account_export(request: Request) -> StreamingHttpResponse:
    """For everyone: all that Rondo keeps about oneself, as one file."""
    answer = StreamingHttpResponse(personal_data(request.user), content_type="application/json")
    day = timezone.localdate().isoformat()
    answer["Content-Disposition"] = f'attachment; filename="rondo-my-data-{day}.json"'
    return answer


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@reauthentication_required  # type: ignore[untyped-decorator]
def account_delete(request: Request) -> HttpResponse:
    """For everyone: delete one's own account, after typing its name."""
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
