"""Messages of webhooks, written in the transaction of their event."""

import json
import uuid
from collections.abc import Mapping
from typing import Any

from django.utils import timezone

from annotation.choices import TaskName, WebhookEvent
from annotation.models import Comparison, Judgment, WebhookDelivery, WebhookEndpoint, WebhookMessage
from annotation.services.jobs.messages import send_after_commit

TEST_EVENT = "webhook.test"
"""Event of the message that a person sends to test an address."""


def tell(*, project_id: int, event: WebhookEvent, about: str, data: Mapping[str, Any]) -> None:
    """Record an event for every address that subscribes to it. A worker is notified after the commit.

    about: path of the details in the API, below /api/v1/. data: what happened to what, without names of
    people and without texts. Call it in the transaction of the event: what is rolled back is not sent.
    """
    enabled = WebhookEndpoint.objects.filter(project_id=project_id, is_enabled=True)
    wanting = [endpoint for endpoint in enabled.select_related("project") if event in endpoint.events]
    if wanting:
        whole = {"project": wanting[0].project.slug, **data, "path": f"/api/v1/{about}"}
        write_message(project_id=project_id, event=event, data=whole, endpoints=wanting)


def tell_of_judgment(*, judgment: Judgment, comparison: Comparison) -> None:
    """Record the event of a new judgment. Costs nothing where the comparison's project, which whoever
    writes judgments has at hand, has no webhook."""
    project = comparison.project
    if not project.has_webhooks:
        return
    changed = judgment.supersedes_id is not None
    tell(
        project_id=project.pk,
        event=WebhookEvent.JUDGMENT_CHANGED if changed else WebhookEvent.JUDGMENT_SUBMITTED,
        about=f"projects/{project.slug}/comparisons/{comparison.pk}/judgments/",
        data={
            "judgment": judgment.pk,
            "supersedes": judgment.supersedes_id,
            "comparison": comparison.pk,
            "prompt": comparison.prompt_id,
            "round": comparison.round_number,
            "purpose": comparison.purpose,
            "verdict": judgment.verdict,
        },
    )


def write_message(
    *, project_id: int, event: str, data: Mapping[str, Any], endpoints: list[WebhookEndpoint]
) -> list[WebhookDelivery]:
    """Write a message and its way to each address. Call it in a transaction."""
    now = timezone.now()
    body = {"type": event, "timestamp": now.isoformat(timespec="milliseconds"), "data": dict(data)}
    message = WebhookMessage.objects.create(
        project_id=project_id,
        key=f"msg_{uuid.uuid4().hex}",
        event=event,
        body=json.dumps(body, ensure_ascii=False, separators=(",", ":")),
        created_at=now,
    )
    deliveries = [
        WebhookDelivery(message=message, endpoint=endpoint, next_attempt_at=now, created_at=now)
        for endpoint in endpoints
    ]
    WebhookDelivery.objects.bulk_create(deliveries)
    send_after_commit(TaskName.DELIVER_WEBHOOKS)
    return deliveries
