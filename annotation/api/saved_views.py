"""Saved views of a project's tables, and queues of members that are made of them: for managers."""

from typing import Any

from django.shortcuts import get_object_or_404
from rest_framework import serializers

from annotation.api import fields
from annotation.api.base import ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from annotation.models import SavedView, User, ViewQueue
from annotation.selectors.saved_views import progress_of_queues, queues_of, views_for
from annotation.selectors.tables.data import TABLES
from annotation.services.saved_views import (
    LONGEST_NAME,
    LONGEST_QUERY,
    assign_view,
    change_view,
    delete_view,
    end_queue,
    save_view,
)

_QUERY = "What the address of the table holds after the question mark: filters, conditions, order, columns."


@fields.of(SavedView, "id name table query is_shared owner created_at")
class SavedViewSerializer(serializers.ModelSerializer[SavedView]):
    """A saved view of a table."""

    owner = fields.text("A username.", source="owner.username")


class NewSavedViewSerializer(serializers.Serializer[Any]):
    """A view to save."""

    name = fields.text(most=LONGEST_NAME)
    table = fields.choice(list(TABLES))
    query = fields.text(_QUERY, most=LONGEST_QUERY, default="")
    is_shared = fields.flag("All managers of the project see it.", default=False)


class SavedViewChangesSerializer(serializers.Serializer[Any]):
    """Fields of a view to change."""

    name = fields.text(most=LONGEST_NAME, required=False)
    query = fields.text(_QUERY, most=LONGEST_QUERY, required=False, allow_blank=True)
    is_shared = fields.flag("All managers of the project see it.", required=False)


class AssignViewSerializer(serializers.Serializer[Any]):
    """The member who gets a view as a queue."""

    member = fields.text("A username.", most=150)
    dry_run = fields.flag("Return the effect and assign nothing.", default=False)


class AssignedViewSerializer(serializers.Serializer[Any]):
    """The effect of assigning a view."""

    queue = fields.integer("Null where nothing was assigned.", allow_null=True)
    changed = fields.integer("Comparisons that the member gets.")
    skipped = serializers.DictField(child=fields.integer(), help_text="Reason → comparisons.")


class ViewQueueSerializer(serializers.Serializer[Any]):
    """A queue of a member, with its progress."""

    id = fields.integer(source="queue.pk")
    name = fields.text("That of the view when it was assigned.", source="queue.name")
    view = fields.integer("Null where it was deleted.", source="queue.view_id", allow_null=True)
    member = fields.text("A username.", source="queue.member.username")
    total = fields.integer("Comparisons.")
    done = fields.integer("Comparisons that the member submitted.")
    created_at = fields.time(source="queue.created_at")
    ended_at = fields.time(source="queue.ended_at", allow_null=True)


class EndedQueueSerializer(serializers.Serializer[Any]):
    """The effect of ending a queue."""

    closed = fields.integer("Places that it had opened and nobody took.")


views = Resource(
    ProjectView, f"{PROJECT}views/", tag="texts", rows=lambda view: views_for(view.user, view.project)
)
view_item = views.item("<int:pk>/")
queues = Resource(ProjectView, f"{PROJECT}queues/", tag="texts", rows=lambda view: queues_of(view.project))
queue_item = queues.item("<int:pk>/")

views.add_list("views_list", SavedViewSerializer, "List your views and shared ones, newest first.")
view_item.add_read("views_read", SavedViewSerializer, "Read a saved view.")


@views.post(takes=NewSavedViewSerializer, returns=SavedViewSerializer, status=201)
def views_save(view: ProjectView, values: Values) -> SavedView:
    """Save a view. One of yours with the same name is replaced."""
    return save_view(project=view.project, owner=view.user, **values)


@view_item.patch(takes=SavedViewChangesSerializer, returns=SavedViewSerializer, locks=True)
def views_change(view: ProjectView, saved: SavedView, values: Values) -> SavedView:
    """Change the fields that are sent. For the owner. Queues keep their comparisons. Honours `If-Match`."""
    names = ("name", "query", "is_shared")
    changes = {name: values.get(name, getattr(saved, name)) for name in names}
    return change_view(view=saved, changed_by=view.user, **changes)


@view_item.delete()
def views_delete(view: ProjectView, saved: SavedView) -> None:
    """Delete a view. For the owner. Queues that were made of it stay."""
    delete_view(view=saved, deleted_by=view.user)


@view_item.post("assign/", takes=AssignViewSerializer, returns=AssignedViewSerializer)
def views_assign(view: ProjectView, saved: SavedView, values: Values) -> Values:
    """Assign the comparisons that a view has now to a member, as a queue."""
    member = get_object_or_404(User, memberships__project=view.project, username=values["member"])
    queue, effect = assign_view(view=saved, member=member, assigned_by=view.user, dry_run=values["dry_run"])
    return {
        "queue": queue and queue.pk,
        "changed": effect.changed,
        "skipped": {str(why): number for why, number in effect.skipped.items()},
    }


@queues.get_list(ViewQueueSerializer, model=ViewQueue)
def queues_list(view: ProjectView) -> Any:
    """List the queues of members with their progress, newest first."""
    return queues_of(view.project), progress_of_queues


@queue_item.post("end/", returns=EndedQueueSerializer)
def queues_end(view: ProjectView, queue: ViewQueue) -> Values:
    """End a queue. Annotations stay, and what its member labels now stays theirs."""
    return {"closed": end_queue(queue=queue, ended_by=view.user)}
