"""The audit log, searchable: of one project for its managers, of everything for administrators."""

from datetime import datetime, time, timedelta
from typing import Any

from django import forms
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Q, QuerySet
from django.http import HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_safe

from annotation.choices import Role
from annotation.models import AuditEntry, Project
from annotation.views.access import Request, project_page

_PER_PAGE = 50


class AuditFilter(forms.Form):
    """A search of the audit log. Days are those of the server's time zone."""

    person = forms.CharField(required=False, max_length=150, label=_("Person"))
    action = forms.CharField(required=False, max_length=60, label=_("Action begins with"))
    words = forms.CharField(required=False, max_length=200, label=_("What it was done to"))
    since = forms.DateField(
        required=False, label=_("From"), widget=forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d")
    )
    until = forms.DateField(
        required=False, label=_("To"), widget=forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d")
    )

    def apply(self, entries: QuerySet[AuditEntry]) -> QuerySet[AuditEntry]:
        """Return the matching entries; none while a field has an error."""
        if not self.is_valid():
            return entries.none()
        values: dict[str, Any] = self.cleaned_data
        if person := values["person"]:
            entries = entries.filter(
                Q(actor__username__icontains=person)
                | Q(actor__first_name__icontains=person)
                | Q(actor__last_name__icontains=person)
            )
        if values["action"]:
            entries = entries.filter(action__startswith=values["action"])
        if values["words"]:
            entries = entries.filter(subject__icontains=values["words"])
        if values["since"]:
            entries = entries.filter(created_at__gte=_midnight(values["since"]))
        if values["until"]:
            entries = entries.filter(created_at__lt=_midnight(values["until"] + timedelta(days=1)))
        return entries


@require_safe
@project_page(role=Role.MANAGER)
def project_audit(request: Request, project: Project) -> HttpResponse:
    """Show the audit log of a project, newest first. For managers."""
    return _page(request, AuditEntry.objects.filter(project=project), project=project)


@require_safe
def audit(request: Request) -> HttpResponse:
    """Show the audit log of everything, newest first. For administrators."""
    if not request.user.is_superuser:
        raise PermissionDenied
    return _page(request, AuditEntry.objects.all(), project=None)


def _page(request: Request, entries: QuerySet[AuditEntry], *, project: Project | None) -> HttpResponse:
    form = AuditFilter(request.GET)
    rows = form.apply(entries.select_related("actor", "project"))
    query = request.GET.copy()
    query.pop("page", None)
    return render(
        request,
        "annotation/audit.html",
        {
            "project": project,
            "form": form,
            "page": Paginator(rows, _PER_PAGE).get_page(request.GET.get("page")),
            "asked": query.urlencode(),
        },
    )


def _midnight(day: Any) -> datetime:
    return timezone.make_aware(datetime.combine(day, time()))
