"""Webhooks, and what was sent to them."""

from django.contrib import admin

from annotation.admin.base import WrittenOnceAdmin, WrittenOnceInline
from annotation.models import WebhookAttempt, WebhookDelivery, WebhookEndpoint, WebhookMessage


@admin.register(WebhookEndpoint)
class WebhookEndpointAdmin(WrittenOnceAdmin):
    """Addresses that are told of events, to be looked at: they are kept on a project's page."""

    list_display = ["__str__", "project", "url", "is_enabled", "why_disabled", "failures", "created_at"]
    list_filter = ["is_enabled", "why_disabled", "project", "created_at"]
    list_select_related = ["project"]
    search_fields = ["description", "url", "project__name", "project__slug"]
    exclude = ["secret", "previous_secret"]


@admin.register(WebhookMessage)
class WebhookMessageAdmin(WrittenOnceAdmin):
    """Messages to webhooks."""

    list_display = ["key", "event", "project", "created_at"]
    list_filter = ["event", "project", "created_at"]
    list_select_related = ["project"]
    search_fields = ["key", "event", "project__name", "project__slug"]


class AttemptInline(WrittenOnceInline):
    """Attempts of a delivery, on its page."""

    model = WebhookAttempt
    show_change_link = False


@admin.register(WebhookDelivery)
class WebhookDeliveryAdmin(WrittenOnceAdmin):
    """Messages on their way; one that was given up is sent again on its page in the project."""

    list_display = ["message", "endpoint", "state", "tries_left", "next_attempt_at", "created_at"]
    list_filter = ["state", "created_at"]
    list_select_related = ["message", "endpoint__project"]
    search_fields = ["message__key", "message__event", "endpoint__url"]
    inlines = [AttemptInline]


@admin.register(WebhookAttempt)
class WebhookAttemptAdmin(WrittenOnceAdmin):
    """Every time that something was sent, and what came back."""

    list_display = ["delivery", "started_at", "milliseconds", "status", "error"]
    list_filter = ["status", "started_at"]
    list_select_related = ["delivery__message", "delivery__endpoint__project"]
    search_fields = ["delivery__message__key", "error"]
