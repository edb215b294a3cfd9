"""Delivery of messages until they arrive: claimed, sent, recorded, tried again later, given up."""

import random
import time
from contextlib import suppress
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import DeliveryState, Role, TaskName, WhyDisabled
from annotation.errors import NotAllowed, Refusal
from annotation.models import User, WebhookAttempt, WebhookDelivery, WebhookEndpoint, WebhookMessage
from annotation.models.encryption import SealBrokenError
from annotation.models.webhooks import MOST_TRIES
from annotation.selectors import access
from annotation.services import audit
from annotation.services.jobs.claims import ClaimLostError, claim, claimable, release, still_held, write
from annotation.services.jobs.messages import send, send_after_commit
from annotation.services.webhooks.endpoints import disable_failing
from annotation.services.webhooks.sending import Outcome, post
from annotation.services.webhooks.signing import headers_of

PAUSES = tuple(
    timedelta(seconds=seconds)
    for seconds in (5, 300, 1_800, *(3_600 * hours for hours in (2, 5, 10, 14, 20, 24)))
)
"""Pauses between attempts, as the Standard Webhooks specification proposes: three days in total."""
JITTER = 0.2
"""Share by which a pause is drawn longer or shorter, so that retries do not all come at one moment."""
FAILING_DAYS = 5
"""Days without an arrival before a webhook is switched off."""
REST = timedelta(seconds=2)
"""Pause of an address after its first failure; twice as long after each further failure, so that one that
takes fifteen seconds to time out does not hold up the others."""
LONGEST_REST = timedelta(minutes=5)
KEPT_DAYS = 30
"""Days for which messages and attempts are kept."""

_GONE = 410
_AT_A_TIME_SECONDS = 30.0


def deliver_due() -> int:
    """Send what is due, the oldest first, until nothing is; return the number of attempts.

    Safe to call at any time, by several at once: a message is sent by who claims it. Ends after half a
    minute even when more is due: the sweep calls it again.
    """
    ends_at, sent = time.monotonic() + _AT_A_TIME_SECONDS, 0
    while time.monotonic() < ends_at and (delivery := _claim_due()) is not None:
        _attempt(delivery)
        sent += 1
    return sent


def sweep_webhooks() -> None:
    """Queue the task where anything is due: a pause is over, a message was lost, a worker died."""
    if claimable(_due(timezone.now())).exists():
        send(TaskName.DELIVER_WEBHOOKS)


def resend(*, delivery: WebhookDelivery, sent_by: User) -> None:
    """Have a message sent again at once, with all its tries, under the same `webhook-id`.

    Refuses one that waits already, and a webhook that is switched off.
    """
    endpoint = delivery.endpoint
    if not access.may(sent_by, endpoint.project, Role.MANAGER):
        raise NotAllowed(
            "manager_changes_webhooks", _("Only a manager of the project has to do with its webhooks.")
        )
    with transaction.atomic():
        # Locked, so that it is not switched off between the look and the write.
        held = WebhookEndpoint.objects.select_for_update(of=("self",)).get(pk=endpoint.pk)
        if not held.is_enabled:
            raise Refusal("webhook_off", _("This webhook is switched off. Switch it on first."))
        again = WebhookDelivery.objects.filter(pk=delivery.pk).exclude(state=DeliveryState.WAITING)
        if not again.update(
            state=DeliveryState.WAITING,
            tries_left=MOST_TRIES,
            next_attempt_at=timezone.now(),
            finished_at=None,
            worker="",
        ):
            raise Refusal("delivery_under_way", _("This message is on its way already."))
        WebhookEndpoint.objects.filter(pk=held.pk).update(rests_until=None)
        audit.record(
            action="webhook.resend",
            subject=delivery,
            actor=sent_by,
            project=endpoint.project,
            details={"message": delivery.message.key},
        )
        send_after_commit(TaskName.DELIVER_WEBHOOKS)
    delivery.refresh_from_db()


def forget_messages(*, now: datetime | None = None) -> int:
    """Delete messages that are older than a month and no longer on their way; return the number of rows."""
    oldest = (now or timezone.now()) - timedelta(days=KEPT_DAYS)
    old = WebhookMessage.objects.filter(created_at__lt=oldest)
    return old.exclude(deliveries__state=DeliveryState.WAITING).delete()[0]


def _due(now: datetime) -> QuerySet[WebhookDelivery]:
    rested = Q(endpoint__rests_until__isnull=True) | Q(endpoint__rests_until__lte=now)
    return WebhookDelivery.objects.filter(rested, state=DeliveryState.WAITING, next_attempt_at__lte=now)


def _claim_due() -> WebhookDelivery | None:
    """Claim the delivery that has been due for longest, and count the attempt; None where nothing is due."""
    while True:
        due = _due(timezone.now())
        pk = claimable(due).order_by("next_attempt_at", "pk").values_list("pk", flat=True).first()
        if pk is None:
            return None
        delivery = claim(due.select_related("endpoint__project", "message"), pk)
        if delivery is None:
            continue
        if delivery.tries_left:
            # Counted before it is sent: a message on which workers die is given up like any other.
            delivery.tries_left -= 1
            write(delivery, tries_left=delivery.tries_left)
            return delivery
        _end(delivery, DeliveryState.GIVEN_UP)


def _end(delivery: WebhookDelivery, state: DeliveryState) -> None:
    release(delivery, state=state, next_attempt_at=None, finished_at=timezone.now())


def _attempt(delivery: WebhookDelivery) -> None:
    endpoint, message = delivery.endpoint, delivery.message
    began = timezone.now()
    if not endpoint.is_enabled:
        # It was switched off while the message was being written.
        _end(delivery, DeliveryState.GIVEN_UP)
        return
    body = message.body.encode()
    try:
        secrets_ = endpoint.open_secrets(began)
    except SealBrokenError:
        outcome = Outcome(error="Its secret cannot be read any more: draw a new one for this webhook.")
    else:
        headers = {
            "content-type": "application/json",
            "user-agent": "Rondo-Webhooks/1",
            # What comes back is kept as it is, so it had better not be packed.
            "accept-encoding": "identity",
            **headers_of(
                secrets_=secrets_, message_id=message.key, timestamp=int(began.timestamp()), body=body
            ),
        }
        outcome = post(endpoint.url, headers=headers, body=body)
    _note(delivery, outcome, began)


def _note(delivery: WebhookDelivery, outcome: Outcome, began: datetime) -> None:
    """Record an attempt and what follows; nothing where another worker has the message now."""
    with suppress(ClaimLostError, WebhookEndpoint.DoesNotExist), transaction.atomic():
        endpoint = (
            WebhookEndpoint.objects.select_for_update(of=("self",))
            .select_related("project")
            .get(pk=delivery.endpoint_id)
        )
        with still_held(delivery):
            WebhookAttempt.objects.create(
                delivery=delivery,
                started_at=began,
                milliseconds=outcome.milliseconds,
                status=outcome.status,
                error=outcome.error,
                answer=outcome.answer,
            )
            if outcome.error:
                _failed(delivery, endpoint, outcome)
                return
            _end(delivery, DeliveryState.DELIVERED)
        if endpoint.failures:
            endpoint.failures, endpoint.failing_since, endpoint.rests_until = 0, None, None
            endpoint.save(update_fields=["failures", "failing_since", "rests_until"])


def _failed(delivery: WebhookDelivery, endpoint: WebhookEndpoint, outcome: Outcome) -> None:
    now = timezone.now()
    if delivery.tries_left:
        release(delivery, next_attempt_at=now + _pause(delivery.tries_left, outcome.retry_after))
    else:
        _end(delivery, DeliveryState.GIVEN_UP)
    endpoint.failures += 1
    endpoint.failing_since = endpoint.failing_since or now
    rest = min(REST * 2 ** min(endpoint.failures - 1, 16), LONGEST_REST)
    endpoint.rests_until = now + max(rest, timedelta(seconds=outcome.retry_after or 0))
    endpoint.save(update_fields=["failures", "failing_since", "rests_until"])
    if not endpoint.is_enabled:
        return
    if outcome.status == _GONE:
        disable_failing(endpoint=endpoint, why=WhyDisabled.GONE)
    elif now - endpoint.failing_since >= timedelta(days=FAILING_DAYS):
        disable_failing(endpoint=endpoint, why=WhyDisabled.FAILING)


def _pause(tries_left: int, retry_after: int | None) -> timedelta:
    """Return the time before the next attempt: by the table, and never less than the receiver asks."""
    base = PAUSES[min(MOST_TRIES - 1 - tries_left, len(PAUSES) - 1)]
    drawn = base * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - nothing is kept secret by it
    return max(drawn, timedelta(seconds=retry_after or 0))
