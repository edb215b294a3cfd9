"""Helpers of the tests of webhooks: a webhook that receives events, and time that passes."""

from datetime import timedelta

from django.db.models import F

from annotation.choices import WebhookEvent
from annotation.models import Project, User, WebhookDelivery, WebhookEndpoint
from annotation.services.webhooks import NewSecret, create_webhook
from tests import factories

SUBMITTED = WebhookEvent.JUDGMENT_SUBMITTED


def make_webhook(
    project: Project, manager: User, url: str = "https://example.org/hook", *events: str
) -> NewSecret:
    """A webhook of judgments, or of other events."""
    made = create_webhook(
        project=project, url=url, events=events or (SUBMITTED,), created_by=manager, description="Tests"
    )
    project.refresh_from_db()
    return made


def let_pass(**time: float) -> None:
    """Everything that was to come later comes so much earlier (`hours=2`)."""
    moved = timedelta(**time)
    for name in ("next_attempt_at", "heartbeat_at"):
        WebhookDelivery.objects.filter(**{f"{name}__isnull": False}).update(**{name: F(name) - moved})
    for name in ("rests_until", "failing_since", "previous_secret_until"):
        rows = WebhookEndpoint.objects.filter(**{f"{name}__isnull": False})
        rows.update(**{name: F(name) - moved})


def judge(project: Project, annotator: User) -> int:
    return factories.make_judgment(factories.make_comparison(project), annotator).pk


def state_of(delivery: WebhookDelivery | None = None) -> tuple[str, int]:
    row = WebhookDelivery.objects.get() if delivery is None else delivery
    row.refresh_from_db()
    return row.state, row.tries_left
