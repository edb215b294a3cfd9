"""Panels: their links and participants for managers; beginning and ending for participants."""

import csv
from io import StringIO

from django import forms
from django.contrib import messages
from django.contrib.auth import login
from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from annotation.choices import ParticipantState, Role
from annotation.errors import Refusal
from annotation.models import PanelParticipant, Project
from annotation.selectors.access import client_address
from annotation.selectors.panels import code_of, participant_rows, return_address_of
from annotation.services.panels import (
    MOST_DAYS,
    MOST_ITEMS,
    MOST_PARTICIPANTS,
    PanelTooFast,
    begin,
    create_panel,
    find_panel,
    finish,
    revoke_panel,
)
from annotation.services.projects.projects import change_settings
from annotation.text.rendering import render_markdown
from annotation.views.access import Request, project_page, refusals_shown
from annotation.views.pay import plain

_IDS = {
    "participant": ("participant", "PROLIFIC_PID", "workerId"),
    "study": ("study", "STUDY_ID", "hitId"),
    "session": ("session", "SESSION_ID", "assignmentId"),
}
"""Parameters of a link, under the names of Rondo, Prolific and Mechanical Turk."""
_LISTED = 100


class PanelForm(forms.Form):
    """A link for participants."""

    name = forms.CharField(max_length=100, label=gettext_lazy("Name"))
    consent = forms.CharField(
        max_length=20_000,
        label=gettext_lazy("Instructions and consent"),
        help_text=gettext_lazy("Markdown. Participants read it and agree before they begin."),
        widget=forms.Textarea(attrs={"rows": 8}),
    )
    items = forms.IntegerField(
        label=gettext_lazy("Annotations per participant"), initial=20, min_value=1, max_value=MOST_ITEMS
    )
    most_participants = forms.IntegerField(
        label=gettext_lazy("Max. participants"), initial=50, min_value=1, max_value=MOST_PARTICIPANTS
    )
    days = forms.IntegerField(
        label=gettext_lazy("Closes after (days)"), initial=14, min_value=1, max_value=MOST_DAYS
    )
    code = forms.CharField(max_length=60, label=gettext_lazy("Completion code"))
    most_wrong = forms.IntegerField(
        required=False,
        min_value=0,
        max_value=MOST_ITEMS,
        label=gettext_lazy("Wrong gold items allowed"),
        help_text=gettext_lazy("With more of them attention is not passed. Empty for no check."),
    )
    failed_code = forms.CharField(
        required=False, max_length=60, label=gettext_lazy("Code if attention is not passed")
    )
    return_address = forms.URLField(
        required=False,
        max_length=500,
        assume_scheme="https",
        label=gettext_lazy("Return address"),
        help_text=gettext_lazy("Gets the code as the parameter cc. Its host must be allowed below."),
    )


class HostsForm(forms.Form):
    """The hosts that return addresses may have."""

    hosts = forms.CharField(
        required=False,
        max_length=5000,
        label=gettext_lazy("Allowed hosts of return addresses"),
        help_text=gettext_lazy("One per line, such as app.prolific.com."),
        widget=forms.Textarea(attrs={"rows": 3}),
    )

    def clean_hosts(self) -> list[str]:
        """Return the lines, each once."""
        return list(dict.fromkeys(self.cleaned_data["hosts"].lower().split()))


# ── For managers ──


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def panels(request: Request, project: Project) -> HttpResponse:
    """List the panels of a project and create one, whose link is shown once. For managers."""
    form, link = PanelForm(request.POST or None), ""
    if request.method == "POST" and form.is_valid():
        try:
            _panel, secret = create_panel(project=project, created_by=request.user, **form.cleaned_data)
        except Refusal as refusal:
            form.add_error(refusal.field, refusal.message)
        else:
            link = request.build_absolute_uri(reverse("panel", kwargs={"secret": secret}))
            form = PanelForm()
    return _panels(request, project, form, link=link)


@require_POST
@project_page(role=Role.MANAGER)
def panel_hosts(request: Request, project: Project) -> HttpResponse:
    """Set the hosts that return addresses may have. For managers."""
    form = HostsForm(request.POST)
    if form.is_valid():
        with refusals_shown(request):
            change_settings(
                project=project,
                settings={"panel_hosts": form.cleaned_data["hosts"]},
                changed_by=request.user,
            )
            messages.success(request, _("Saved."))
    return redirect("panels", project.slug)


@require_safe
@project_page(role=Role.MANAGER)
def panel_participants(request: Request, project: Project, pk: int) -> HttpResponse:
    """Show the participants of a panel with their state and code. For managers."""
    panel = get_object_or_404(project.panels.select_related("project"), pk=pk)
    context = {
        "project": project,
        "panel": panel,
        "is_open": panel.is_open(timezone.now()),
        "rows": participant_rows(panel),
    }
    return render(request, "annotation/panels/participants.html", context)


@require_safe
@project_page(role=Role.MANAGER)
def panel_file(request: Request, project: Project, pk: int) -> HttpResponse:
    """Download the participants of a panel as CSV. For managers."""
    panel = get_object_or_404(project.panels.select_related("project"), pk=pk)
    out = StringIO()
    table = csv.writer(out)
    table.writerow(
        [
            *("participant", "study", "session", "annotator", "state", "annotations"),
            *("gold_right", "gold_wrong", "code", "began_at", "finished_at"),
        ]
    )
    for row in participant_rows(panel):
        one = row.participant
        finished = one.finished_at.isoformat() if one.finished_at else ""
        table.writerow(
            [
                *(plain(one.participant), plain(one.study), plain(one.session), one.user.pseudonym),
                *(one.state, row.annotations, row.right, row.wrong, plain(row.code)),
                *(one.began_at.isoformat(), finished),
            ]
        )
    answer = HttpResponse(out.getvalue(), content_type="text/csv; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="{project.slug}-panel-{panel.pk}.csv"'
    return answer


@require_POST
@project_page(role=Role.MANAGER)
def panel_revoke(request: Request, project: Project, pk: int) -> HttpResponse:
    """End a panel for good. For managers."""
    panel = get_object_or_404(project.panels.select_related("project"), pk=pk)
    revoke_panel(panel=panel, revoked_by=request.user)
    messages.success(request, _("The panel is closed. Its annotations stay."))
    return redirect("panels", project.slug)


def _panels(request: Request, project: Project, form: PanelForm, *, link: str) -> HttpResponse:
    now = timezone.now()
    context = {
        "project": project,
        "form": form,
        "link": link,
        "hosts_form": HostsForm(initial={"hosts": "\n".join(project.panel_hosts)}),
        "panels": [(panel, panel.is_open(now)) for panel in project.panels.all()[:_LISTED]],
    }
    status = 422 if form.is_bound and not link else 200
    return render(request, "annotation/panels/list.html", context, status=status)


# ── For participants ──


@login_not_required
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def panel(request: HttpRequest, secret: str) -> HttpResponse:
    """Show instructions and consent; begin, or go on. For everyone who has the link."""
    found = find_panel(secret=secret)
    if found is None:
        return render(request, "annotation/panels/gone.html", status=410)
    sent = request.POST if request.method == "POST" else request.GET
    ids = {
        name: next((sent[key].strip() for key in keys if sent.get(key)), "") for name, keys in _IDS.items()
    }
    is_somebody = request.user.is_authenticated and not request.user.is_participant
    context = {
        "panel": found,
        "ids": ids,
        "consent": render_markdown(found.consent),
        "is_somebody": is_somebody,
    }
    if request.method != "POST" or is_somebody:
        return render(request, "annotation/panels/begin.html", context)
    try:
        if "agreed" not in request.POST:
            raise Refusal("consent_missing", _("Agree to the conditions first."), field="agreed")
        participant = begin(panel=found, address=client_address(request) or "", **ids)
    except Refusal as refusal:
        status = 429 if isinstance(refusal, PanelTooFast) else 422
        return render(
            request, "annotation/panels/begin.html", {**context, "refusal": refusal.message}, status=status
        )
    login(request, participant.user, backend="django.contrib.auth.backends.ModelBackend")
    if participant.state != ParticipantState.WORKING:
        return redirect("panel-done")
    return redirect("label", found.project.slug)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def panel_done(request: Request) -> HttpResponse:
    """End one's work and show the code. For who takes part by a panel."""
    found = PanelParticipant.objects.select_related("panel__project", "user").filter(user=request.user)
    participant = found.first()
    if participant is None:
        raise Http404
    trouble = ""
    if request.method == "POST":
        try:
            participant = finish(participant=participant)
        except Refusal as refusal:
            trouble = refusal.message
    code = code_of(participant.panel, participant)
    context = {
        "panel": participant.panel,
        "code": code,
        "trouble": trouble,
        "return_address": return_address_of(participant.panel, code) if code else "",
    }
    return render(request, "annotation/panels/done.html", context, status=422 if trouble else 200)
