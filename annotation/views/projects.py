"""The list of projects, a project's home, its guidelines and its colours."""

import re
from datetime import datetime, time, timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db import transaction
from django.db.models import BigIntegerField, Q, QuerySet
from django.http import Http404, HttpResponse, HttpResponseBadRequest
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from annotation.acquisition.gain import gain_of_strategy
from annotation.choices import AcquisitionStrategy, Role
from annotation.errors import Refusal
from annotation.exchange.uploads import create_with_upload
from annotation.forms.projects import GuidelinesForm, MemberForm, NewProjectForm, ProjectSettingsForm
from annotation.models import AuditEntry, Membership, Project
from annotation.selectors import access
from annotation.selectors import access as selectors
from annotation.selectors.annotator_work import announced_guideline, progress_and_pace
from annotation.selectors.configuration import configuration_of
from annotation.selectors.saved_views import count_assigned
from annotation.services.bulk import raise_open_overlap
from annotation.services.projects.invitations import change_allotment, change_role, remove_member
from annotation.services.projects.projects import (
    acknowledge_guideline,
    archive_project,
    change_settings,
    publish_guideline,
)
from annotation.services.projects.removal import (
    IN_BIN,
    bin_for,
    contents_of,
    delete_project,
    is_on_record,
    restore_project,
)
from annotation.services.projects.templates import TEMPLATES
from annotation.statistics.home import home_rows
from annotation.text.rendering import render_markdown
from annotation.views.access import Request, project_page, refusals_shown

_COLOUR = re.compile(r"#[0-9a-fA-F]{6}")


@require_safe
def projects(request: Request) -> HttpResponse:
    """List the user's projects with their work in each; the archived ones by `?archived=1`. For everyone."""
    archived = request.GET.get("archived") == "1"
    context = {
        "rows": home_rows(request.user, archived=archived),
        "archived": archived,
        "has_archived": selectors.projects_for(request.user).filter(archived_at__isnull=False).exists(),
        "has_deleted": bin_for(request.user).exists(),
        "may_create": selectors.may_create_projects(request.user),
    }
    return render(request, "annotation/projects.html", context)


@require_safe
@project_page(role=Role.ANNOTATOR)
def project(request: Request, project: Project) -> HttpResponse:
    """Show a project's home: progress and the way to the work. For members."""
    round_number = selectors.round_of_work(project, request.user)
    is_manager = selectors.may(request.user, project, Role.MANAGER)
    progress, pace = progress_and_pace(project, request.user, round_number)
    follows_strategy = project.acquisition != AcquisitionStrategy.AGE
    context = {
        "project": project,
        "round_number": round_number,
        "progress": progress,
        "guideline": selectors.current_guideline(project),
        "last": selectors.last_submitted(request.user, project),
        "pace": pace,
        "announced": announced_guideline(project, request.membership),
        "is_reviewer": selectors.may(request.user, project, Role.REVIEWER),
        "is_manager": is_manager,
        # Without the name of the view, which may name a model.
        "assigned": count_assigned(project, request.user) if project.has_queues else 0,
        "webhooks_off": is_manager and project.webhooks.exclude(why_disabled="").exists(),
        "arms": gain_of_strategy(project, round_number) if is_manager and follows_strategy else [],
    }
    return render(request, "annotation/project.html", context)


@require_safe
@project_page(role=Role.ANNOTATOR)
def guidelines(request: Request, project: Project) -> HttpResponse:
    """Show the guidelines: the newest version, or the one in `?version=`. For members."""
    versions = list(project.guidelines.order_by("-version"))
    requested = request.GET.get("version", "")
    chosen = next((g for g in versions if not requested or str(g.version) == requested), None)
    if requested and chosen is None:
        raise Http404
    context = {
        "project": project,
        "guideline": chosen,
        "announced": announced_guideline(project, request.membership),
        "may_edit": selectors.may(request.user, project, Role.MANAGER),
        "versions": versions,
        "markup": render_markdown(chosen.text, heading_level=2) if chosen else "",
        "categories": configuration_of(project).asked_categories,
    }
    return render(request, "annotation/guidelines.html", context)


@require_POST
@project_page(role=Role.ANNOTATOR)
def guidelines_read(request: Request, project: Project) -> HttpResponse:
    """Acknowledge a version of the guidelines and return to the work. For members."""
    version = request.POST.get("version", "")
    try:
        acknowledge_guideline(project=project, user=request.user, version=int(version))
    except (ValueError, Refusal):
        return HttpResponseBadRequest(
            _("Name an existing version of the guidelines."), content_type="text/plain; charset=utf-8"
        )
    if request.htmx:
        return render(request, "annotation/rules_changed.html", {"project": project, "announced": None})
    return redirect("label", project.slug)


@require_safe
@cache_control(private=True, max_age=300)
@project_page(role=Role.ANNOTATOR)
def category_colours(request: Request, project: Project) -> HttpResponse:
    """Return a stylesheet of the category colours, since the CSP forbids inline styles. For members."""
    rules = [
        f'[data-category="{category.key}"]{{--category:{category.colour}}}'
        for category in selectors.categories_of(project)
        if _COLOUR.fullmatch(category.colour)
    ]
    return HttpResponse("\n".join(rules), content_type="text/css; charset=utf-8")


# The page that creates a project.

_FIELDS_OF_REFUSALS = {"file": "upload"}


@require_http_methods(["GET", "HEAD", "POST"])
def project_new(request: Request) -> HttpResponse:
    """Create a project from a template. For administrators, and who has the permission to add projects."""
    if not access.may_create_projects(request.user):
        raise PermissionDenied
    template = request.GET.get("template", "")
    form = NewProjectForm(
        request.POST or None,
        request.FILES or None,
        initial={"template": template} if template in TEMPLATES else None,
    )
    if request.method == "POST" and form.is_valid():
        try:
            project, record = create_with_upload(**form.cleaned_data, created_by=request.user)
        except Refusal as refusal:
            field = _FIELDS_OF_REFUSALS.get(refusal.field or "", refusal.field)
            form.add_error(field if field in form.fields else None, refusal.message)
        else:
            if record is not None:
                messages.success(request, _("Project created. Check the preview, then import the file."))
                return redirect("transfer", project.slug, record.pk)
            messages.success(request, _("Project created. Import prompts next, then invite annotators."))
            return redirect("transfers", project.slug)
    # The radio buttons and their templates, in one order.
    choices = list(zip(form["template"], TEMPLATES.values(), strict=True))
    status = 422 if form.is_bound else 200
    return render(request, "annotation/settings/new.html", {"form": form, "choices": choices}, status=status)


# A project's settings, guidelines and members, for its managers.


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def project_settings(request: Request, project: Project) -> HttpResponse:
    """Show and change a project's settings. For managers."""
    # The form writes into its instance, and the service compares with what is stored.
    form = ProjectSettingsForm(request.POST or None, instance=Project.objects.get(pk=project.pk))
    if request.method == "POST" and form.is_valid():
        settings = dict(form.cleaned_data)
        raise_open = settings.pop("raise_open", False)
        try:
            with transaction.atomic():
                changed = change_settings(project=project, settings=settings, changed_by=request.user)
                if raise_open:
                    raise_open_overlap(project=changed, actor=request.user)
        except Refusal as refusal:
            form.add_error(refusal.field or None, refusal.message)
        else:
            messages.success(request, _("Saved."))
            return redirect("project-settings", project.slug)
    context = {"project": project, "form": form}
    status = 422 if form.is_bound else 200
    return render(request, "annotation/settings/settings.html", context, status=status)


@require_POST
@project_page(role=Role.MANAGER)
def archive(request: Request, project: Project) -> HttpResponse:
    """Archive a project, or restore it. For managers."""
    archived = "restore" not in request.POST
    archive_project(project=project, archived=archived, changed_by=request.user)
    messages.success(request, _("The project is archived.") if archived else _("The project is restored."))
    return redirect("project-settings", project.slug)


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def delete(request: Request, project: Project) -> HttpResponse:
    """Show what goes with a project, and put it into the bin once confirmed. For managers."""
    is_missing = request.method == "POST" and request.POST.get("exported") != "1"
    if request.method == "POST" and not is_missing:
        delete_project(project=project, deleted_by=request.user)
        messages.success(
            request,
            _("The project is in the bin. It can be brought back for %(days)s days.") % {"days": IN_BIN.days},
        )
        return redirect("bin")
    context = {
        "project": project,
        "contents": contents_of(project),
        "on_record": is_on_record(project),
        "days": IN_BIN.days,
        "is_missing": is_missing,
    }
    status = 422 if is_missing else 200
    return render(request, "annotation/settings/delete.html", context, status=status)


@require_safe
def bin_of_projects(request: Request) -> HttpResponse:
    """List the deleted projects that the user may bring back. For everyone."""
    rows = [(project, project.deleted_at + IN_BIN) for project in bin_for(request.user) if project.deleted_at]
    return render(request, "annotation/bin.html", {"rows": rows})


@require_POST
def restore(request: Request, pk: int) -> HttpResponse:
    """Bring a project back from the bin. For managers of it."""
    if pk > BigIntegerField.MAX_BIGINT:
        raise Http404
    deleted = get_object_or_404(bin_for(request.user), pk=pk)
    try:
        restored = restore_project(project=deleted, restored_by=request.user)
    except Refusal as refusal:
        messages.error(request, refusal.message)
        return redirect("bin")
    messages.success(request, _("The project is back."))
    return redirect("project", restored.slug)


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def guidelines_edit(request: Request, project: Project) -> HttpResponse:
    """Publish a new version of the guidelines. For managers."""
    current = access.current_guideline(project)
    form = GuidelinesForm(request.POST or None, initial={"text": current.text if current else ""})
    if request.method == "POST" and form.is_valid():
        try:
            publish_guideline(
                project=project, text=form.cleaned_data["text"].replace("\r\n", "\n"), author=request.user
            )
        except Refusal as refusal:
            form.add_error(refusal.field or None, refusal.message)
        else:
            messages.success(request, _("Published."))
            return redirect("guidelines", project.slug)
    context = {"project": project, "form": form, "guideline": current}
    status = 422 if form.is_bound else 200
    return render(request, "annotation/settings/guidelines.html", context, status=status)


@require_safe
@project_page(role=Role.MANAGER)
def members(request: Request, project: Project) -> HttpResponse:
    """List the members with their roles. For managers."""
    rows = project.memberships.select_related("user").order_by("user__username")
    context = {"project": project, "members": rows, "roles": Role.choices}
    return render(request, "annotation/settings/members.html", context)


@require_POST
@project_page(role=Role.MANAGER)
def member(request: Request, project: Project, pk: int) -> HttpResponse:
    """Change a member's role and daily limit, or remove the member. For managers."""
    membership = get_object_or_404(
        Membership.objects.select_related("user", "project"), pk=pk, project=project
    )
    form = MemberForm(request.POST)
    with refusals_shown(request):
        if "remove" in request.POST:
            remove_member(membership=membership, removed_by=request.user)
            messages.success(request, _("Removed. Annotations of this member are kept."))
        elif form.is_valid():
            _change(membership, form, request)
            messages.success(request, _("Saved."))
        elif "daily_limit" in form.errors:
            messages.error(request, _("A daily limit is 1 or more. Leave it empty for the project's."))
        else:
            messages.error(request, _("Choose one of the roles."))
    return redirect("members", project.slug)


@transaction.atomic
def _change(membership: Membership, form: MemberForm, request: Request) -> None:
    change_role(membership=membership, role=Role(form.cleaned_data["role"]), changed_by=request.user)
    # A form without the field leaves the limit as it is.
    if "daily_limit" in form.data:
        changes = {"daily_limit": form.cleaned_data["daily_limit"]}
        change_allotment(membership=membership, changes=changes, changed_by=request.user)


# The audit log, searchable: of one project for its managers, of everything for administrators.

_PER_PAGE = 50


class AuditFilter(forms.Form):
    """A search of the audit log. Days are those of the server's time zone."""

    person = forms.CharField(required=False, max_length=150, label=gettext_lazy("Person"))
    action = forms.CharField(required=False, max_length=60, label=gettext_lazy("Action begins with"))
    words = forms.CharField(required=False, max_length=200, label=gettext_lazy("What it was done to"))
    since = forms.DateField(
        required=False,
        label=gettext_lazy("From"),
        widget=forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d"),
    )
    until = forms.DateField(
        required=False,
        label=gettext_lazy("To"),
        widget=forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d"),
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
