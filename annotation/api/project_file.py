"""A project as a file: read it, compare a file with it, apply one."""

from collections.abc import Sequence
from typing import Any

from rest_framework import serializers

from annotation.api import fields
from annotation.api.base import ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from annotation.exchange.project_file import MOST_BYTES, read, write
from annotation.models import Project
from annotation.selectors.project_file import Change


class ProjectFileSerializer(serializers.Serializer[Any]):
    """A project file."""

    text = fields.text("YAML; the guide describes it.", most=MOST_BYTES, trim_whitespace=False)


class AppliedFileSerializer(ProjectFileSerializer):
    """A project file to apply."""

    dry_run = fields.flag("Check whether it could be applied, and apply nothing.", default=False)


class ChangeSerializer(serializers.Serializer[Any]):
    """A difference between a project and a file."""

    kind = fields.choice(["added", "changed", "removed"])
    path = fields.text("The place in the file, entries by their key or name.")
    before = serializers.JSONField(help_text="What stands; null for nothing.", allow_null=True)
    after = serializers.JSONField(help_text="What the file says; null for nothing.", allow_null=True)


file = Resource(
    ProjectView,
    f"{PROJECT}file/",
    tag="projects",
    find=lambda view: view.project,
)


@file.get(returns=ProjectFileSerializer)
def projects_file_read(view: ProjectView, project: Project) -> Values:
    """Read the project as a file: questions, categories, rubrics, guidelines, settings and recipe."""
    return {"text": write(project)}


@file.put(takes=AppliedFileSerializer, returns=[ChangeSerializer])
def projects_file_apply(view: ProjectView, project: Project, values: Values) -> Sequence[Change]:
    """Apply a file, all or nothing, and return what changed. Honours `If-Match`."""
    return read(values["text"]).apply(project=project, by=view.user, rehearses=values["dry_run"])


@file.post("compare/", takes=ProjectFileSerializer, returns=[ChangeSerializer])
def projects_file_compare(view: ProjectView, project: Project, values: Values) -> Sequence[Change]:
    """List what applying a file would change."""
    return read(values["text"]).compare(project)
