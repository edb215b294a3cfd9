"""The audit log: of one project for its managers, of everything for superusers."""

from rest_framework import serializers

from annotation.api import fields
from annotation.api.base import ApiView, Filters, ProjectView
from annotation.api.operations import PROJECT, Resource, superusers
from annotation.models import AuditEntry


@fields.of(AuditEntry, "id created_at actor action subject details")
class AuditSerializer(serializers.ModelSerializer[AuditEntry]):
    """An entry of the audit log."""

    actor = fields.text("Empty where Rondo did it by itself.", source="actor.username", default="")
    details = serializers.DictField()


@fields.more("project")
class AnyAuditSerializer(AuditSerializer):
    """An entry of the audit log with its project."""

    project = serializers.SlugField(source="project.slug", default=None, allow_null=True)


class AuditFilters(Filters):
    """Filters of the audit log."""

    action = fields.text("What was done, as `round.start`.", required=False)
    actor = fields.text("A username.", source="actor__username", required=False)
    subject = fields.text("Part of what it was done to.", source="subject__icontains", required=False)
    since = fields.time("At this time or later.", source="created_at__gte", required=False)
    until = fields.time("Before this time.", source="created_at__lt", required=False)


class AnyAuditFilters(AuditFilters):
    """Filters of the whole audit log."""

    project = serializers.SlugField(source="project__slug", required=False)


log = Resource(
    ProjectView,
    f"{PROJECT}audit/",
    tag="projects",
    rows=lambda view: AuditEntry.objects.filter(project=view.project).select_related("actor"),
)
whole_log = Resource(
    ApiView,
    "audit/",
    tag="operations",
    rows=lambda _view: AuditEntry.objects.select_related("project", "actor"),
)
log.add_list(
    "audit_list", AuditSerializer, "List the project's audit log, newest first.", filters=AuditFilters
)
whole_log.add_list(
    "audit_list_all",
    AnyAuditSerializer,
    "List the audit log of all projects and of Rondo itself, newest first. For superusers.",
    filters=AnyAuditFilters,
    requires=superusers,
)
