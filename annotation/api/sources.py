"""Watched folders and buckets."""

from typing import Any

from rest_framework import serializers

from annotation.api import fields
from annotation.api.base import ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from annotation.exchange.sources import add_source, remove_source, set_source
from annotation.models import ImportSource, SourceFile


@fields.of(ImportSource, "id address skip_bad is_active next_check_at checked_at message error created_at")
class SourceSerializer(serializers.ModelSerializer[ImportSource]):
    """A watched folder or bucket."""


class NewSourceSerializer(serializers.Serializer[Any]):
    """A folder or bucket to watch."""

    address = fields.text("A folder on the server, or a URL such as s3://bucket/prompts.", most=500)
    skip_bad = fields.flag("Leave bad rows out, in place of refusing a file.", default=False)


class SourceActivitySerializer(serializers.Serializer[Any]):
    """Whether it is watched."""

    is_active = fields.flag("True checks it now.", required=False)


@fields.of(SourceFile, "id path version file_import error taken_at")
class SourceFileSerializer(serializers.ModelSerializer[SourceFile]):
    """A file of a source, with its import or why there is none."""

    file_import = fields.integer("Id of the import.", source="file_import_id", allow_null=True)


sources = Resource(
    ProjectView,
    f"{PROJECT}sources/",
    tag="transfers",
    rows=lambda view: view.project.import_sources.select_related("project"),
)
source = sources.item("<int:pk>/")

sources.add_list("sources_list", SourceSerializer, "List the watched folders and buckets, newest first.")
source.add_read("sources_read", SourceSerializer, "Read a source with the result of its last check.")


@sources.post(takes=NewSourceSerializer, returns=SourceSerializer, status=201)
def sources_add(view: ProjectView, values: Values) -> ImportSource:
    """Watch a folder or bucket: its new and changed files are imported."""
    return add_source(project=view.project, added_by=view.user, **values)


@source.patch(takes=SourceActivitySerializer, returns=SourceSerializer)
def sources_set(view: ProjectView, source: ImportSource, values: Values) -> ImportSource:
    """Pause a source, or let it go on, which checks it now."""
    if values:
        set_source(source=source, active=values["is_active"], changed_by=view.user)
    return source


@source.delete()
def sources_remove(view: ProjectView, source: ImportSource) -> None:
    """Watch a source no longer. What was imported stays."""
    remove_source(source=source, removed_by=view.user)


@source.get("files/", returns=[SourceFileSerializer])
def sources_files(view: ProjectView, source: ImportSource) -> Any:
    """List the newest 1,000 files that were taken."""
    return source.files.all()[:1000]
