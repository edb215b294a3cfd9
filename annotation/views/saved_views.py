"""Saved views of a project's tables, and queues of members that are made of them. For managers."""

from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from annotation.choices import Role
from annotation.errors import Refusal
from annotation.models import Project, SavedView, User
from annotation.selectors.saved_views import MOST_SHOWN, progress_of_queues, queues_of, views_for
from annotation.selectors.tables.data import TABLES
from annotation.services.saved_views import assign_view, change_view, delete_view, end_queue, save_view
from annotation.views.access import Request, project_page, refusals_shown


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@project_page(role=Role.MANAGER)
def saved_views(request: Request, project: Project) -> HttpResponse:
    """List views and queues; save a view, and go on to assign it where a member is named. For managers."""
    if request.method == "POST":
        return _save(request, project)
    queues = list(queues_of(project)[:MOST_SHOWN])
    context = {
        "project": project,
        "views": [
            (view, TABLES[view.table].title, _address(view))
            for view in views_for(request.user, project)[:MOST_SHOWN]
        ],
        "queues": progress_of_queues(queues),
        "members": list(
            User.objects.filter(memberships__project=project, is_machine=False).order_by("username")
        ),
    }
    return render(request, "annotation/saved_views/list.html", context)


def _save(request: Request, project: Project) -> HttpResponse:
    table, query = request.POST.get("table", ""), request.POST.get("query", "")
    try:
        view = save_view(
            project=project,
            owner=request.user,
            name=request.POST.get("name", ""),
            table=table,
            query=query,
            is_shared=request.POST.get("is_shared") == "1",
        )
    except Refusal as refusal:
        messages.error(request, refusal.message)
        known = f"data-{table}" if table in TABLES else "saved-views"
        return redirect(f"{reverse(known, args=[project.slug])}?{query}")
    member = request.POST.get("member", "")
    if member:
        address = reverse("saved-view-assign", args=[project.slug, view.pk])
        return redirect(f"{address}?{urlencode({'member': member})}")
    messages.success(request, _("The view “%(name)s” was saved.") % {"name": view.name})
    return redirect(_address(view))


@require_POST
@project_page(role=Role.MANAGER)
def saved_view(request: Request, project: Project, pk: int) -> HttpResponse:
    """Rename, share or delete a view. For who owns it."""
    view = get_object_or_404(views_for(request.user, project), pk=pk)
    with refusals_shown(request):
        if request.POST.get("action") == "delete":
            delete_view(view=view, deleted_by=request.user)
            messages.success(request, _("The view was deleted. Its queues stay."))
        else:
            change_view(
                view=view,
                changed_by=request.user,
                name=request.POST.get("name", view.name),
                query=view.query,
                is_shared=request.POST.get("is_shared") == "1",
            )
            messages.success(request, _("Saved."))
    return redirect("saved-views", project.slug)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@project_page(role=Role.MANAGER)
def assign(request: Request, project: Project, pk: int) -> HttpResponse:
    """Show what a member would get of a view, and assign it once confirmed. For managers."""
    view = get_object_or_404(views_for(request.user, project), pk=pk)
    named = request.POST.get("member") or request.GET.get("member", "")
    members = User.objects.filter(memberships__project=project)
    member = members.filter(pk=named).first() if named.isdecimal() and len(named) < 19 else None
    if member is None:
        messages.error(request, _("Choose a member."))
        return redirect("saved-views", project.slug)
    is_confirmed = request.method == "POST"
    try:
        queue, effect = assign_view(
            view=view, member=member, assigned_by=request.user, dry_run=not is_confirmed
        )
    except Refusal as refusal:
        messages.error(request, refusal.message)
        return redirect("saved-views", project.slug)
    if is_confirmed:
        if queue is None:
            messages.error(request, _("No comparison of the view is left for this member."))
        else:
            done = ngettext(
                "%(number)s comparison was assigned to %(member)s.",
                "%(number)s comparisons were assigned to %(member)s.",
                effect.changed,
            )
            messages.success(request, done % {"number": effect.changed, "member": member.username})
        return redirect("saved-views", project.slug)
    context = {
        "project": project,
        "view": view,
        "member": member,
        "effect": effect,
        "address": _address(view),
    }
    return render(request, "annotation/saved_views/assign.html", context)


@require_POST
@project_page(role=Role.MANAGER)
def end(request: Request, project: Project, pk: int) -> HttpResponse:
    """End a queue: places that it opened and nobody took close again. For managers."""
    queue = get_object_or_404(queues_of(project), pk=pk)
    with refusals_shown(request):
        end_queue(queue=queue, ended_by=request.user)
        messages.success(request, _("The queue has ended. Annotations stay."))
    return redirect("saved-views", project.slug)


def _address(view: SavedView) -> str:
    return f"{reverse(f'data-{view.table}', args=[view.project.slug])}?{view.query}"
