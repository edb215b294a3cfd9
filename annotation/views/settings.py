"""A project's settings, guidelines and members, for its managers."""

from django.contrib import messages
from django.db import transaction
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from annotation.choices import Role
from annotation.errors import Refusal
from annotation.forms.projects import GuidelinesForm, MemberForm, ProjectSettingsForm
from annotation.models import Membership, Project
from annotation.selectors import access
from annotation.services.bulk import raise_open_overlap
from annotation.services.projects.invitations import change_allotment, change_role, remove_member
from annotation.services.projects.projects import archive_project, change_settings, publish_guideline
from annotation.views.access import Request, project_page


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
    try:
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
    except Refusal as refusal:
        messages.error(request, refusal.message)
    return redirect("members", project.slug)


@transaction.atomic
def _change(membership: Membership, form: MemberForm, request: Request) -> None:
    change_role(membership=membership, role=Role(form.cleaned_data["role"]), changed_by=request.user)
    # A form without the field leaves the limit as it is.
    if "daily_limit" in form.data:
        changes = {"daily_limit": form.cleaned_data["daily_limit"]}
        change_allotment(membership=membership, changes=changes, changed_by=request.user)
