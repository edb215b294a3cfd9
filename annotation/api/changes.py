"""Bulk changes of a project's data, each of which can be undone for a day: for managers."""

from typing import Any

from rest_framework import serializers

from annotation.api import fields
from annotation.api.base import ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from annotation.models import BulkChange
from annotation.selectors.changes import changes_of
from annotation.services.changes import undo_change


@fields.of(BulkChange, "id action value changed actor created_at undone_at can_be_undone")
class BulkChangeSerializer(serializers.ModelSerializer[BulkChange]):
    """A bulk change."""

    actor = fields.text(
        "A username; null where Rondo did it.", source="actor.username", default=None, allow_null=True
    )
    changed = fields.integer("Rows.")
    can_be_undone = fields.flag("For a day, and once.")


class UndoneSerializer(serializers.Serializer[Any]):
    """The effect of an undo."""

    restored = fields.integer("Rows that are as before. Others were changed meanwhile and stay.")


changes = Resource(ProjectView, f"{PROJECT}changes/", tag="texts", rows=lambda view: changes_of(view.project))
change = changes.item("<int:pk>/")

changes.add_list("changes_list", BulkChangeSerializer, "List the bulk changes, newest first.")


@change.post("undo/", returns=UndoneSerializer)
def changes_undo(view: ProjectView, change: BulkChange) -> Values:
    """Undo a bulk change of the last day. What was changed again meanwhile stays."""
    return {"restored": undo_change(change=change, undone_by=view.user)}
