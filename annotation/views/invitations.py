"""Invitations into a project: creating and accepting them."""

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme, urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from annotation.choices import Role
from annotation.errors import Refusal
from annotation.models import Invitation, Project
from annotation.services.people.accounts import choose_language
from annotation.services.projects.invitations import (
    MOST_DAYS,
    MOST_USES,
    accept_invitation,
    create_invitation,
    find_invitation,
    revoke_invitation,
)
from annotation.views.access import Request, project_page

# Form of an invitation.


class InvitationForm(forms.Form):
    """Role, life and number of people of a link."""

    role = forms.ChoiceField(choices=Role.choices, label=gettext_lazy("They join as"), initial=Role.ANNOTATOR)
    days = forms.IntegerField(
        label=gettext_lazy("Expires after (days)"), initial=7, min_value=1, max_value=MOST_DAYS
    )
    most_uses = forms.IntegerField(
        label=gettext_lazy("Max. uses"), initial=1, min_value=1, max_value=MOST_USES
    )
    note = forms.CharField(
        max_length=100,
        required=False,
        label=gettext_lazy("Note"),
        help_text=gettext_lazy("Whom it is for. Only managers see it."),
    )
    email = forms.EmailField(
        max_length=254,
        required=False,
        label=gettext_lazy("E-mail address"),
        help_text=gettext_lazy(
            "The link is sent there and not shown here. Leave empty to copy the link yourself."
        ),
    )


INVITATION = "invitation"
"""Session key of an opened invitation while its visitor has no account yet."""

_LISTED = 100


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def invitations(request: Request, project: Project) -> HttpResponse:
    """List the project's invitations and create one, whose link is shown once. For managers."""
    form = InvitationForm(request.POST or None)
    form.fields["email"].disabled = not settings.RONDO_EMAIL
    link = ""
    if request.method == "POST" and form.is_valid():
        try:
            made = create_invitation(project=project, created_by=request.user, **form.cleaned_data)
        except Refusal as refusal:
            form.add_error(refusal.field, refusal.message)
        else:
            if not made.secret:
                messages.success(
                    request, _("The link will be sent to %(email)s.") % {"email": made.invitation.email}
                )
                return redirect("invitations", project.slug)
            link = request.build_absolute_uri(reverse("invitation", kwargs={"secret": made.secret}))
            form = InvitationForm()
            form.fields["email"].disabled = not settings.RONDO_EMAIL
    now = timezone.now()
    rows = project.invitations.select_related("created_by")[:_LISTED]
    return render(
        request,
        "annotation/invitations.html",
        {
            "project": project,
            "form": form,
            "link": link,
            "invitations": [(row, row.is_good(now)) for row in rows],
            "has_mail": settings.RONDO_EMAIL,
        },
        status=422 if form.is_bound and not link else 200,
    )


@require_POST
@project_page(role=Role.MANAGER)
def invitation_revoke(request: Request, project: Project, pk: int) -> HttpResponse:
    """Revoke an invitation. For managers."""
    revoke_invitation(invitation=get_object_or_404(Invitation, pk=pk, project=project), user=request.user)
    messages.success(request, _("The invitation is revoked. Who joined by it stays."))
    return redirect("invitations", project.slug)


@login_not_required
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def invitation(request: HttpRequest, secret: str) -> HttpResponse:
    """Show an invitation; accept it, or create an account first. For everyone who has the link."""
    opened = find_invitation(secret=secret)
    if opened is None:
        return render(request, "annotation/invitation_gone.html", status=410)
    if request.user.is_authenticated:
        if request.method == "POST":
            return _join(request, opened)
    else:
        # Only visitors with a link may create an account; the sign-up page checks the session.
        request.session[INVITATION] = opened.pk
    return render(
        request,
        "annotation/invitation.html",
        {"invitation": opened, "next": urlencode({"next": request.path})},
    )


def _join(request: HttpRequest, invitation: Invitation) -> HttpResponse:
    assert request.user.is_authenticated  # noqa: S101 - for the type checker; asked before
    try:
        accept_invitation(invitation=invitation, user=request.user)
    except Refusal as refusal:
        messages.error(request, refusal.message)
        return redirect("projects")
    return redirect("project", invitation.project.slug)


# Personal settings in the account menu.


@require_POST
def language(request: Request) -> HttpResponse:
    """Choose the language of the pages and return to the same page. For everyone who is signed in."""
    try:
        choose_language(user=request.user, language=request.POST.get("language", ""))
    except Refusal as refusal:
        raise BadRequest(refusal.message) from refusal
    came_from = request.headers.get("Referer", "")
    is_ours = url_has_allowed_host_and_scheme(
        came_from, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    return HttpResponseRedirect(came_from if is_ours else reverse("projects"))
