"""Webhooks of a project and their deliveries."""

from typing import Any

from rest_framework import serializers

from annotation.api import fields
from annotation.api.base import Filters, ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from annotation.choices import DeliveryState, WebhookEvent
from annotation.models import WebhookAttempt, WebhookDelivery, WebhookEndpoint
from annotation.services.webhooks import (
    NewSecret,
    change_webhook,
    create_webhook,
    delete_webhook,
    resend,
    rotate_secret,
    send_test,
)


@fields.of(
    WebhookEndpoint,
    "id url description events is_enabled why_disabled failures failing_since previous_secret_until",
    "created_at",
)
class WebhookSerializer(serializers.ModelSerializer[WebhookEndpoint]):
    """A webhook, without its secret."""

    events = fields.several(fields.choice(WebhookEvent.choices))


@fields.more("secret")
class MadeWebhookSerializer(WebhookSerializer):
    """A webhook with its secret, which is shown only once."""

    secret = fields.text("`whsec_…`, as the libraries of Standard Webhooks take it.")


class NewWebhookSerializer(serializers.Serializer[Any]):
    """A webhook to create."""

    url = fields.text("Where messages are sent; https.", most=500)
    description = fields.text("What it is for.", most=200, default="")
    events = fields.several(fields.choice(WebhookEvent.choices), least=1)


class WebhookSettingsSerializer(serializers.Serializer[Any]):
    """The fields of a webhook to change."""

    url = fields.text(most=500, required=False)
    description = fields.text(most=200, required=False, allow_blank=True)
    events = fields.several(fields.choice(WebhookEvent.choices), least=1, required=False)
    is_enabled = fields.flag("What waits of one that is switched off is given up.", required=False)


@fields.of(WebhookAttempt, "started_at milliseconds status error answer")
class AttemptSerializer(serializers.ModelSerializer[WebhookAttempt]):
    """One attempt to send a message, and the response."""


@fields.of(
    WebhookDelivery, "id webhook message event state tries_left next_attempt_at created_at finished_at"
)
class DeliverySerializer(serializers.ModelSerializer[WebhookDelivery]):
    """A message to one webhook."""

    webhook = fields.integer(source="endpoint_id")
    message = fields.text("`webhook-id`.", source="message.key")
    event = fields.text(source="message.event")


@fields.more("body attempts")
class WholeDeliverySerializer(DeliverySerializer):
    """A message with its body and all attempts, newest first."""

    body = fields.text("JSON, as it is signed and sent.", source="message.body")
    attempts = AttemptSerializer(many=True)


class DeliveryFilters(Filters):
    """Filters of deliveries."""

    webhook = fields.key(source="endpoint", required=False)
    state = fields.choice(DeliveryState.choices, required=False)


webhooks = Resource(
    ProjectView,
    f"{PROJECT}webhooks/",
    tag="webhooks",
    rows=lambda view: view.project.webhooks.select_related("project"),
)
webhook = webhooks.item("<int:pk>/")

webhooks.add_list("webhooks_list", WebhookSerializer, "List the webhooks, newest first.")
webhook.add_read("webhooks_read", WebhookSerializer, "Read a webhook with its events and its failures.")


# A response with a secret is not stored in plain text.
@webhooks.post(takes=NewWebhookSerializer, returns=MadeWebhookSerializer, status=201, keeps_answers=False)
def webhooks_create(view: ProjectView, values: Values) -> WebhookEndpoint:
    """Create a webhook. Only this response holds its secret."""
    return _with_secret(create_webhook(project=view.project, created_by=view.user, **values))


@webhook.patch(takes=WebhookSettingsSerializer, returns=WebhookSerializer, locks=True)
def webhooks_change(view: ProjectView, webhook: WebhookEndpoint, values: Values) -> WebhookEndpoint:
    """Change the fields that are sent. Honours `If-Match`."""
    names = ("url", "description", "events", "is_enabled")
    changes = {name: values.get(name, getattr(webhook, name)) for name in names}
    change_webhook(endpoint=webhook, changed_by=view.user, **changes)
    return webhook


@webhook.delete()
def webhooks_delete(view: ProjectView, webhook: WebhookEndpoint) -> None:
    """Delete a webhook with its sent and pending messages."""
    delete_webhook(endpoint=webhook, deleted_by=view.user)


@webhook.post("secret/", returns=MadeWebhookSerializer, status=201, keeps_answers=False)
def webhooks_rotate(view: ProjectView, webhook: WebhookEndpoint) -> WebhookEndpoint:
    """Create a new secret; only this response holds it. The previous one keeps signing for a day."""
    return _with_secret(rotate_secret(endpoint=webhook, rotated_by=view.user))


@webhook.post("test/", returns=DeliverySerializer, status=202)
def webhooks_test(view: ProjectView, webhook: WebhookEndpoint) -> WebhookDelivery:
    """Send the empty message `webhook.test` from a worker."""
    return send_test(endpoint=webhook, sent_by=view.user)


deliveries = Resource(
    ProjectView,
    f"{PROJECT}deliveries/",
    tag="webhooks",
    rows=lambda view: WebhookDelivery.objects.filter(endpoint__project=view.project).select_related(
        "endpoint__project", "message"
    ),
)
delivery = deliveries.item("<int:pk>/")

deliveries.add_list(
    "deliveries_list",
    DeliverySerializer,
    "List the deliveries of the last month, newest first.",
    filters=DeliveryFilters,
)
delivery.add_read("deliveries_read", WholeDeliverySerializer, "Read a message with all its attempts.")


@delivery.post("resend/", returns=DeliverySerializer, status=202)
def deliveries_resend(view: ProjectView, delivery: WebhookDelivery) -> WebhookDelivery:
    """Send a message again, with all retries and the same `webhook-id`."""
    resend(delivery=delivery, sent_by=view.user)
    return delivery


def _with_secret(made: NewSecret) -> WebhookEndpoint:
    made.endpoint.secret = made.secret
    return made.endpoint
