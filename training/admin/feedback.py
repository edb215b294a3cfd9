"""Requests of applications and feedback, in the admin: to be searched and read."""

from django.contrib import admin

from annotation.admin.base import WrittenOnceAdmin
from training.models import (
    ApplicationRequest,
    Feedback,
    FeedbackComparison,
    FeedbackIncident,
    FeedbackKey,
    FeedbackRule,
    FeedbackSettings,
    RequestOptIn,
)


@admin.register(FeedbackSettings)
class FeedbackSettingsAdmin(WrittenOnceAdmin):
    list_display = ["project", "stores_requests", "retention_days", "state", "updated_at"]
    list_filter = ["stores_requests", "state", "project"]
    list_select_related = ["project"]
    search_fields = ["project__name"]


@admin.register(RequestOptIn)
class RequestOptInAdmin(WrittenOnceAdmin):
    list_display = ["token", "project", "created_by", "created_at"]
    list_filter = ["project", "created_at"]
    list_select_related = ["token", "project", "created_by"]
    search_fields = ["token__name", "project__name"]


@admin.register(FeedbackKey)
class FeedbackKeyAdmin(WrittenOnceAdmin):
    list_display = ["name", "project", "created_by", "created_at", "revoked_at"]
    list_filter = ["project", "created_at"]
    list_select_related = ["project", "created_by"]
    search_fields = ["name", "key", "project__name"]


@admin.register(FeedbackRule)
class FeedbackRuleAdmin(WrittenOnceAdmin):
    list_display = ["reason", "project", "is_on", "share", "most_per_day"]
    list_filter = ["reason", "is_on", "project"]
    list_select_related = ["project"]
    search_fields = ["project__name"]


@admin.register(ApplicationRequest)
class ApplicationRequestAdmin(WrittenOnceAdmin):
    list_display = ["key", "project", "checkpoint", "token_name", "created_at"]
    list_filter = ["project", "is_streamed", "created_at"]
    list_select_related = ["project", "checkpoint"]
    search_fields = ["key", "token_name", "pseudonym"]


@admin.register(Feedback)
class FeedbackAdmin(WrittenOnceAdmin):
    list_display = ["request", "kind", "value", "source_name", "changes", "created_at"]
    list_filter = ["kind", "project", "created_at"]
    list_select_related = ["request"]
    search_fields = ["request__key", "source_name", "author"]


@admin.register(FeedbackIncident)
class FeedbackIncidentAdmin(WrittenOnceAdmin):
    list_display = ["kind", "subject", "project", "started_at", "is_included"]
    list_filter = ["kind", "is_included", "project"]
    list_select_related = ["project"]
    search_fields = ["subject", "project__name"]


@admin.register(FeedbackComparison)
class FeedbackComparisonAdmin(WrittenOnceAdmin):
    list_display = ["comparison", "reason", "figure", "project", "created_at"]
    list_filter = ["reason", "project", "created_at"]
    list_select_related = ["comparison", "project"]
    search_fields = ["comparison__id", "project__name"]
