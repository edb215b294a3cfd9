"""Which other programs are told of a project's events, and whether that reached them."""

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
from annotation.services.webhooks.deliveries import resend
from annotation.services.webhooks.endpoints import (
    change_webhook,
    create_webhook,
    delete_webhook,
    rotate_secret,
    send_test,
)


class WebhookSerializer(serializers.ModelSerializer[WebhookEndpoint]):
    """An address that is told of events, without its secret."""

    events = serializers.ListField(child=serializers.ChoiceField(choices=WebhookEvent.choices))

    class Meta:
        model = WebhookEndpoint
        fields: tuple[str, ...] = (
            *("id", "url", "description", "events", "is_enabled", "why_disabled"),
            *("failures", "failing_since", "previous_secret_until", "created_at"),
        )


class MadeWebhookSerializer(WebhookSerializer):
    """A webhook with its secret, which nothing tells again."""

    secret = serializers.CharField(help_text="`whsec_…`, as the libraries of Standard Webhooks take it.")

    class Meta(WebhookSerializer.Meta):
        fields = (*WebhookSerializer.Meta.fields, "secret")


class NewWebhookSerializer(serializers.Serializer[Any]):
    """A webhook to be made."""

    url = serializers.CharField(max_length=500, help_text="Where messages are sent; https.")
    description = serializers.CharField(
        max_length=200, required=False, default="", allow_blank=True, help_text="What it is for."
    )
    events = serializers.MultipleChoiceField(choices=WebhookEvent.choices, allow_empty=False)


class WebhookSettingsSerializer(serializers.Serializer[Any]):
    """What of a webhook is to change."""

    url = serializers.CharField(max_length=500, required=False)
    description = serializers.CharField(max_length=200, required=False, allow_blank=True)
    events = serializers.MultipleChoiceField(choices=WebhookEvent.choices, allow_empty=False, required=False)
    is_enabled = serializers.BooleanField(
        required=False, help_text="What waits of one that is switched off is given up."
    )


class AttemptSerializer(serializers.ModelSerializer[WebhookAttempt]):
    """One time that a message was sent, and what came back."""

    class Meta:
        model = WebhookAttempt
        fields = ("started_at", "milliseconds", "status", "error", "answer")


class DeliverySerializer(serializers.ModelSerializer[WebhookDelivery]):
    """One message on its way to one address."""

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
    """A message with its body and every attempt at it, newest first."""

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

    # The answer to a POST holds a secret, which is kept nowhere in the clear.
    keeps_answers = False
    serializer_class = WebhookSerializer
    queryset = WebhookEndpoint.objects.none()

    def rows(self, asked: Mapping[str, Any]) -> QuerySet[Any]:
        """All of them."""
        return self.project.webhooks.all()

    @extend_schema(operation_id="webhooks_list", tags=["webhooks"], responses=WebhookSerializer(many=True))
    def get(self, request: Request, slug: str) -> Response:
        """List the addresses that are told of events, newest first."""
        return self.listed()

    @extend_schema(
        operation_id="webhooks_create",
        tags=["webhooks"],
        request=NewWebhookSerializer,
        responses={201: MadeWebhookSerializer},
    )
    def post(self, request: Request, slug: str) -> Response:
        """Have an address told of events from now on. Its secret is in this answer and never again."""
        told = read_body(NewWebhookSerializer, request)
        made = create_webhook(project=self.project, created_by=self.user, **_listed(told))
        made.endpoint.secret = made.secret
        return Response(MadeWebhookSerializer(made.endpoint).data, status=201)


class OfWebhook(ProjectView):
    """Something of the webhook in the address. For managers."""

    def webhook(self, pk: int) -> WebhookEndpoint:
        """The webhook in the address."""
        found: WebhookEndpoint = get_object_or_404(self.project.webhooks.select_related("project"), pk=pk)
        return found


class WebhookView(OfWebhook):
    """One webhook. For managers."""

    @extend_schema(operation_id="webhooks_read", tags=["webhooks"], responses=WebhookSerializer)
    def get(self, request: Request, slug: str, pk: int) -> Response:
        """Read what an address is told of, and whether messages arrive there."""
        return Response(WebhookSerializer(self.webhook(pk)).data)

    @extend_schema(
        operation_id="webhooks_change",
        tags=["webhooks"],
        request=WebhookSettingsSerializer,
        responses=WebhookSerializer,
    )
    def patch(self, request: Request, slug: str, pk: int) -> Response:
        """Change what is sent and leave the rest. Honours `If-Match`."""
        with transaction.atomic():
            self.project.webhooks.select_for_update().filter(pk=pk).first()
            held = self.webhook(pk)
            self.require_match(WebhookSerializer(held).data)
            told = _listed(read_body(WebhookSettingsSerializer, request))
            names = ("url", "description", "events", "is_enabled")
            values = {name: told.get(name, getattr(held, name)) for name in names}
            change_webhook(endpoint=held, changed_by=self.user, **values)
        return Response(WebhookSerializer(held).data)

    @extend_schema(operation_id="webhooks_delete", tags=["webhooks"], responses={204: None})
    def delete(self, request: Request, slug: str, pk: int) -> Response:
        """Forget an address, with what was sent to it and what was to be."""
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
        """Draw a new secret, in this answer and never again. For a day the one before signs beside it."""
        made = rotate_secret(endpoint=self.webhook(pk), rotated_by=self.user)
        made.endpoint.secret = made.secret
        return Response(MadeWebhookSerializer(made.endpoint).data, status=201)


class TestView(OfWebhook):
    """Whether a webhook reaches its receiver. For managers."""

    @extend_schema(
        operation_id="webhooks_test", tags=["webhooks"], request=None, responses={202: DeliverySerializer}
    )
    def post(self, request: Request, slug: str, pk: int) -> Response:
        """Have the message `webhook.test` sent, which says nothing. A worker sends it."""
        delivery = send_test(endpoint=self.webhook(pk), sent_by=self.user)
        return Response(DeliverySerializer(delivery).data, status=202)


class DeliveriesView(ListView, ProjectView):
    """Messages of a project on their way. For managers."""

    serializer_class = DeliverySerializer
    queryset = WebhookDelivery.objects.none()
    filters = DeliveryFilters

    def rows(self, asked: Mapping[str, Any]) -> QuerySet[Any]:
        """By webhook and by state."""
        found = WebhookDelivery.objects.filter(endpoint__project=self.project).select_related("message")
        if "webhook" in asked:
            found = found.filter(endpoint=asked["webhook"])
        return found.filter(state=asked["state"]) if "state" in asked else found

    @extend_schema(
        operation_id="deliveries_list",
        tags=["webhooks"],
        parameters=[DeliveryFilters],
        responses=DeliverySerializer(many=True),
    )
    def get(self, request: Request, slug: str) -> Response:
        """List what was told to whom, newest first; kept for a month."""
        return self.listed()


class OfDelivery(ProjectView):
    """Something of the delivery in the address. For managers."""

    def delivery(self, pk: int) -> WebhookDelivery:
        """The delivery in the address."""
        rows = WebhookDelivery.objects.select_related("endpoint__project", "message")
        return get_object_or_404(rows, pk=pk, endpoint__project=self.project)


class DeliveryView(OfDelivery):
    """One message on its way. For managers."""

    @extend_schema(operation_id="deliveries_read", tags=["webhooks"], responses=WholeDeliverySerializer)
    def get(self, request: Request, slug: str, pk: int) -> Response:
        """Read a message with every attempt at it."""
        return Response(WholeDeliverySerializer(self.delivery(pk)).data)


class ResendView(OfDelivery):
    """A message that is sent again. For managers."""

    @extend_schema(
        operation_id="deliveries_resend",
        tags=["webhooks"],
        request=None,
        responses={202: DeliverySerializer},
    )
    def post(self, request: Request, slug: str, pk: int) -> Response:
        """Have a message sent again, with all its tries and under the same `webhook-id`."""
        delivery = self.delivery(pk)
        resend(delivery=delivery, sent_by=self.user)
        return Response(DeliverySerializer(delivery).data, status=202)


def _listed(told: dict[str, Any]) -> dict[str, Any]:
    """With the events as a list, which the serializer gives as a set."""
    return {**told, "events": sorted(told["events"])} if "events" in told else told
