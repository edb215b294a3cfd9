"""The audit log: of one project for its managers, of everything for superusers."""

from rest_framework import serializers

from annotation.api.base import ApiView, Filters, ProjectView
from annotation.api.operations import PROJECT, Resource, superusers
from annotation.models import AuditEntry


class AuditSerializer(serializers.ModelSerializer[AuditEntry]):
    """An entry of the audit log."""

    actor = serializers.CharField(
        source="actor.username", default="", help_text="Empty where Rondo did it by itself."
    )
    details = serializers.DictField()

    class Meta:
        model = AuditEntry
        fields: tuple[str, ...] = ("id", "created_at", "actor", "action", "subject", "details")


class AnyAuditSerializer(AuditSerializer):
    """An entry of the audit log with its project."""

    project = serializers.SlugField(source="project.slug", default=None, allow_null=True)

    class Meta(AuditSerializer.Meta):
        fields = (*AuditSerializer.Meta.fields, "project")


class AuditFilters(Filters):
    """Filters of the audit log."""

    action = serializers.CharField(required=False, help_text="What was done, as `round.start`.")
    actor = serializers.CharField(source="actor__username", required=False, help_text="A username.")
    subject = serializers.CharField(
        source="subject__icontains", required=False, help_text="Part of what it was done to."
    )
    since = serializers.DateTimeField(
        source="created_at__gte", required=False, help_text="At this time or later."
    )
    until = serializers.DateTimeField(source="created_at__lt", required=False, help_text="Before this time.")


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
