"""Webhooks of a project and their deliveries."""

from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.base import Filters, ListView, ProjectView, read_body
from annotation.choices import DeliveryState, WebhookEvent
from annotation.models import WebhookAttempt, WebhookDelivery, WebhookEndpoint
from annotation.services.webhooks import (
    change_webhook,
    create_webhook,
    delete_webhook,
    resend,
    rotate_secret,
    send_test,
)


class WebhookSerializer(serializers.ModelSerializer[WebhookEndpoint]):
    """A webhook, without its secret."""

    events = serializers.ListField(child=serializers.ChoiceField(choices=WebhookEvent.choices))

    class Meta:
        model = WebhookEndpoint
        fields: tuple[str, ...] = (
            *("id", "url", "description", "events", "is_enabled", "why_disabled"),
            *("failures", "failing_since", "previous_secret_until", "created_at"),
        )


class MadeWebhookSerializer(WebhookSerializer):
    """A webhook with its secret, which is shown only once."""

    secret = serializers.CharField(help_text="`whsec_…`, as the libraries of Standard Webhooks take it.")

    class Meta(WebhookSerializer.Meta):
        fields = (*WebhookSerializer.Meta.fields, "secret")


class NewWebhookSerializer(serializers.Serializer[Any]):
    """A webhook to create."""

    url = serializers.CharField(max_length=500, help_text="Where messages are sent; https.")
    description = serializers.CharField(
        max_length=200, required=False, default="", allow_blank=True, help_text="What it is for."
    )
    events = serializers.ListField(child=serializers.ChoiceField(choices=WebhookEvent.choices), min_length=1)


class WebhookSettingsSerializer(serializers.Serializer[Any]):
    """The fields of a webhook to change."""

    url = serializers.CharField(max_length=500, required=False)
    description = serializers.CharField(max_length=200, required=False, allow_blank=True)
    events = serializers.ListField(
        child=serializers.ChoiceField(choices=WebhookEvent.choices), min_length=1, required=False
    )
    is_enabled = serializers.BooleanField(
        required=False, help_text="What waits of one that is switched off is given up."
    )


class AttemptSerializer(serializers.ModelSerializer[WebhookAttempt]):
    """One attempt to send a message, and the response."""

    class Meta:
        model = WebhookAttempt
        fields = ("started_at", "milliseconds", "status", "error", "answer")


class DeliverySerializer(serializers.ModelSerializer[WebhookDelivery]):
    """A message to one webhook."""

    webhook = serializers.IntegerField(source="endpoint_id")
    message = serializers.CharField(source="message.key", help_text="`webhook-id`.")
    event = serializers.CharField(source="message.event")

    class Meta:
        model = WebhookDelivery
        fields: tuple[str, ...] = (
            *("id", "webhook", "message", "event", "state", "tries_left"),
            *("next_attempt_at", "created_at", "finished_at"),
        )


class WholeDeliverySerializer(DeliverySerializer):
    """A message with its body and all attempts, newest first."""

    body = serializers.CharField(source="message.body", help_text="JSON, as it is signed and sent.")
    attempts = AttemptSerializer(many=True)

    class Meta(DeliverySerializer.Meta):
        fields = (*DeliverySerializer.Meta.fields, "body", "attempts")


class DeliveryFilters(Filters):
    """Filters of deliveries."""

    webhook = serializers.IntegerField(required=False, min_value=1, max_value=2**63 - 1)
    state = serializers.ChoiceField(choices=DeliveryState.choices, required=False)


class WebhooksView(ListView, ProjectView):
    """The webhooks of a project. For managers."""

    # The answer to a POST holds a secret, which is not stored in plain text.
    keeps_answers = False
    serializer_class = WebhookSerializer
    queryset = WebhookEndpoint.objects.none()

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        return self.project.webhooks.all()

    @extend_schema(operation_id="webhooks_list", tags=["webhooks"], responses=WebhookSerializer(many=True))
    def get(self, request: Request, slug: str) -> Response:
        """List the webhooks, newest first."""
        return self.listed()

    @extend_schema(
        operation_id="webhooks_create",
        tags=["webhooks"],
        request=NewWebhookSerializer,
        responses={201: MadeWebhookSerializer},
    )
    def post(self, request: Request, slug: str) -> Response:
        """Create a webhook. Only this response holds its secret."""
        values = read_body(NewWebhookSerializer, request)
        made = create_webhook(project=self.project, created_by=self.user, **values)
        made.endpoint.secret = made.secret
        return Response(MadeWebhookSerializer(made.endpoint).data, status=201)


class OfWebhook(ProjectView):
    """An operation on the webhook in the address. For managers."""

    def webhook(self, pk: int) -> WebhookEndpoint:
        endpoint: WebhookEndpoint = get_object_or_404(self.project.webhooks.select_related("project"), pk=pk)
        return endpoint


class WebhookView(OfWebhook):
    """One webhook. For managers."""

    @extend_schema(operation_id="webhooks_read", tags=["webhooks"], responses=WebhookSerializer)
    def get(self, request: Request, slug: str, pk: int) -> Response:
        """Read a webhook with its events and its failures."""
        return Response(WebhookSerializer(self.webhook(pk)).data)

    @extend_schema(
        operation_id="webhooks_change",
        tags=["webhooks"],
        request=WebhookSettingsSerializer,
        responses=WebhookSerializer,
    )
    def patch(self, request: Request, slug: str, pk: int) -> Response:
        """Change the fields that are sent. Honours `If-Match`."""
        changes = read_body(WebhookSettingsSerializer, request)
        with transaction.atomic():
            self.project.webhooks.select_for_update().filter(pk=pk).first()
            held = self.webhook(pk)
            self.require_match(WebhookSerializer(held).data)
            names = ("url", "description", "events", "is_enabled")
            values = {name: changes.get(name, getattr(held, name)) for name in names}
            change_webhook(endpoint=held, changed_by=self.user, **values)
        return Response(WebhookSerializer(held).data)

    @extend_schema(operation_id="webhooks_delete", tags=["webhooks"], responses={204: None})
    def delete(self, request: Request, slug: str, pk: int) -> Response:
        """Delete a webhook with its sent and pending messages."""
        delete_webhook(endpoint=self.webhook(pk), deleted_by=self.user)
        return Response(status=204)


class SecretView(OfWebhook):
    """The secret of a webhook. For managers."""

    keeps_answers = False

    @extend_schema(
        operation_id="webhooks_rotate",
        tags=["webhooks"],
        request=None,
        responses={201: MadeWebhookSerializer},
    )
    def post(self, request: Request, slug: str, pk: int) -> Response:
        """Create a new secret; only this response holds it. The previous one keeps signing for a day."""
        made = rotate_secret(endpoint=self.webhook(pk), rotated_by=self.user)
        made.endpoint.secret = made.secret
        return Response(MadeWebhookSerializer(made.endpoint).data, status=201)


class TestView(OfWebhook):
    """A test message of a webhook. For managers."""

    @extend_schema(
        operation_id="webhooks_test", tags=["webhooks"], request=None, responses={202: DeliverySerializer}
    )
    def post(self, request: Request, slug: str, pk: int) -> Response:
        """Send the empty message `webhook.test` from a worker."""
        delivery = send_test(endpoint=self.webhook(pk), sent_by=self.user)
        return Response(DeliverySerializer(delivery).data, status=202)


class DeliveriesView(ListView, ProjectView):
    """The webhook deliveries of a project. For managers."""

    serializer_class = DeliverySerializer
    queryset = WebhookDelivery.objects.none()
    filters = DeliveryFilters

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        deliveries = WebhookDelivery.objects.filter(endpoint__project=self.project).select_related("message")
        if "webhook" in query:
            deliveries = deliveries.filter(endpoint=query["webhook"])
        return deliveries.filter(state=query["state"]) if "state" in query else deliveries

    @extend_schema(
        operation_id="deliveries_list",
        tags=["webhooks"],
        parameters=[DeliveryFilters],
        responses=DeliverySerializer(many=True),
    )
    def get(self, request: Request, slug: str) -> Response:
        """List the deliveries of the last month, newest first."""
        return self.listed()


class OfDelivery(ProjectView):
    """An operation on the delivery in the address. For managers."""

    def delivery(self, pk: int) -> WebhookDelivery:
        rows = WebhookDelivery.objects.select_related("endpoint__project", "message")
        return get_object_or_404(rows, pk=pk, endpoint__project=self.project)


class DeliveryView(OfDelivery):
    """One webhook delivery. For managers."""

    @extend_schema(operation_id="deliveries_read", tags=["webhooks"], responses=WholeDeliverySerializer)
    def get(self, request: Request, slug: str, pk: int) -> Response:
        """Read a message with all its attempts."""
        return Response(WholeDeliverySerializer(self.delivery(pk)).data)


class ResendView(OfDelivery):
    """A repeated delivery. For managers."""

    @extend_schema(
        operation_id="deliveries_resend",
        tags=["webhooks"],
        request=None,
        responses={202: DeliverySerializer},
    )
    def post(self, request: Request, slug: str, pk: int) -> Response:
        """Send a message again, with all retries and the same `webhook-id`."""
        delivery = self.delivery(pk)
        resend(delivery=delivery, sent_by=self.user)
        return Response(DeliverySerializer(delivery).data, status=202)
