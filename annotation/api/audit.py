"""The audit log: of one project for its managers, of everything for superusers."""

from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.base import ApiView, Filters, ListView, ProjectView
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
    actor = serializers.CharField(required=False, help_text="A username.")
    subject = serializers.CharField(required=False, help_text="Part of what it was done to.")
    since = serializers.DateTimeField(required=False, help_text="At this time or later.")
    until = serializers.DateTimeField(required=False, help_text="Before this time.")


class AnyAuditFilters(AuditFilters):
    """Filters of the whole audit log."""

    project = serializers.SlugField(required=False)


_LOOKUPS = {
    "action": "action",
    "actor": "actor__username",
    "subject": "subject__icontains",
    "since": "created_at__gte",
    "until": "created_at__lt",
    "project": "project__slug",
}


class AuditView(ListView, ProjectView):
    """The audit log of a project. For managers."""

    serializer_class = AuditSerializer
    queryset = AuditEntry.objects.none()
    filters = AuditFilters

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        return _filtered(AuditEntry.objects.filter(project=self.project), query)

    @extend_schema(
        operation_id="audit_list",
        tags=["projects"],
        parameters=[AuditFilters],
        responses=AuditSerializer(many=True),
    )
    def get(self, request: Request, slug: str) -> Response:
        """List the project's audit log, newest first."""
        return self.listed()


class AnyAuditView(ListView, ApiView):
    """The audit log of all projects. For superusers."""

    serializer_class = AnyAuditSerializer
    queryset = AuditEntry.objects.none()
    filters = AnyAuditFilters

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        return _filtered(AuditEntry.objects.select_related("project"), query)

    @extend_schema(
        operation_id="audit_list_all",
        tags=["operations"],
        parameters=[AnyAuditFilters],
        responses=AnyAuditSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """List the audit log of all projects and of Rondo itself, newest first. For superusers."""
        self.require_superuser()
        return self.listed()


def _filtered(entries: QuerySet[AuditEntry], query: Mapping[str, Any]) -> QuerySet[AuditEntry]:
    return entries.select_related("actor").filter(**{_LOOKUPS[name]: query[name] for name in query})
