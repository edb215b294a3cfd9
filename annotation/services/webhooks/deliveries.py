"""Messages are sent until they arrive: claimed, sent, noted, tried again later, given up."""

import os
import random
import socket
import time
import uuid
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation import selectors
from annotation.choices import DeliveryState, Role, WhyDisabled
from annotation.doorbell import DELIVER_WEBHOOKS, send
from annotation.errors import NotAllowed, Refusal
from annotation.models import User, WebhookAttempt, WebhookDelivery, WebhookEndpoint, WebhookMessage
from annotation.models.webhooks import MOST_TRIES
from annotation.sealed import SealBrokenError
from annotation.services import audit
from annotation.services.webhooks.endpoints import disable_failing
from annotation.services.webhooks.sending import Outcome, post
from annotation.webhook_signing import headers_of

PAUSES = tuple(
    timedelta(seconds=seconds)
    for seconds in (5, 300, 1_800, *(3_600 * hours for hours in (2, 5, 10, 14, 20, 24)))
)
"""What lies between one attempt and the next, as the Standard Webhooks specification proposes: in all
three days."""
JITTER = 0.2
"""By which share a pause is drawn longer or shorter, so that not everything comes back at one moment."""
FAILING_DAYS = 5
"""For how long nothing may arrive before a webhook is switched off."""
CLAIM = timedelta(seconds=60)
"""For how long a worker has a delivery to itself; longer than an attempt may take."""
REST = timedelta(seconds=2)
"""For how long an address that failed once is left alone; twice as long after each further failure, so that
one that takes fifteen seconds to say nothing does not hold up what others wait for."""
LONGEST_REST = timedelta(minutes=5)
KEPT_DAYS = 30
"""For how long messages and attempts are kept."""

_GONE = 410
_AT_A_TIME_SECONDS = 30.0


def deliver_due() -> int:
    """Send what is due, the oldest first, until nothing is; how many attempts that were.

    Safe to call at any time, by several at once: a message is sent by who claims it. Ends after half a
    minute even when more is due, for the sweep rings again.
    """
    ends_at, sent = time.monotonic() + _AT_A_TIME_SECONDS, 0
    while time.monotonic() < ends_at and (delivery := _claimed()) is not None:
        _attempt(delivery)
        sent += 1
    return sent


def sweep_webhooks() -> None:
    """Ring where anything is due: a pause is over, a message was lost, a worker died."""
    if WebhookDelivery.objects.filter(_due(timezone.now())).exists():
        send(DELIVER_WEBHOOKS)


def resend(*, delivery: WebhookDelivery, sent_by: User) -> None:
    """Have a message sent again at once, with all its tries, under the same `webhook-id`.

    Refuses one that waits already, and a webhook that is switched off.
    """
    endpoint = delivery.endpoint
    if not selectors.may(sent_by, endpoint.project, Role.MANAGER):
        raise NotAllowed(_("Only a manager of the project has to do with its webhooks."))
    with transaction.atomic():
        # Locked, so that it is not switched off between the look and the write.
        held = WebhookEndpoint.objects.select_for_update(of=("self",)).get(pk=endpoint.pk)
        if not held.is_enabled:
            raise Refusal(_("This webhook is switched off. Switch it on first."))
        again = WebhookDelivery.objects.filter(pk=delivery.pk).exclude(state=DeliveryState.WAITING)
        if not again.update(
            state=DeliveryState.WAITING,
            tries_left=MOST_TRIES,
            next_attempt_at=timezone.now(),
            finished_at=None,
            worker="",
        ):
            raise Refusal(_("This message is on its way already."))
        WebhookEndpoint.objects.filter(pk=held.pk).update(rests_until=None)
        audit.record(
            action="webhook.resend",
            subject=delivery,
            actor=sent_by,
            project=endpoint.project,
            details={"message": delivery.message.key},
        )
        transaction.on_commit(lambda: send(DELIVER_WEBHOOKS))
    delivery.refresh_from_db()


def forget_messages(*, now: datetime | None = None) -> int:
    """Delete messages that are older than a month and no longer on their way; how many rows that were."""
    oldest = (now or timezone.now()) - timedelta(days=KEPT_DAYS)
    old = WebhookMessage.objects.filter(created_at__lt=oldest)
    return old.exclude(deliveries__state=DeliveryState.WAITING).delete()[0]


def _due(now: datetime) -> Q:
    rested = Q(endpoint__rests_until__isnull=True) | Q(endpoint__rests_until__lte=now)
    return Q(state=DeliveryState.WAITING, next_attempt_at__lte=now) & rested


def _claimed() -> WebhookDelivery | None:
    """A delivery that is due and now this worker's for a minute; None where nothing is due."""
    worker = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:12]}"
    while True:
        now = timezone.now()
        rows = WebhookDelivery.objects.filter(_due(now)).order_by("next_attempt_at", "pk")
        pk = rows.values_list("pk", flat=True).first()
        if pk is None:
            return None
        due = WebhookDelivery.objects.filter(
            pk=pk, state=DeliveryState.WAITING, next_attempt_at__lte=now, tries_left__gt=0
        )
        # Counted before it is sent: a message on which workers die is given up like any other.
        for tries in due.values_list("tries_left", flat=True):
            if due.filter(tries_left=tries).update(
                worker=worker, next_attempt_at=now + CLAIM, tries_left=tries - 1
            ):
                return WebhookDelivery.objects.select_related("endpoint__project", "message").get(pk=pk)
        _give_up_spent(pk, now)


def _give_up_spent(pk: int, now: datetime) -> None:
    """A worker died on the last try."""
    WebhookDelivery.objects.filter(
        pk=pk, state=DeliveryState.WAITING, next_attempt_at__lte=now, tries_left=0
    ).update(state=DeliveryState.GIVEN_UP, next_attempt_at=None, worker="", finished_at=now)


def _attempt(delivery: WebhookDelivery) -> None:
    endpoint, message = delivery.endpoint, delivery.message
    began = timezone.now()
    if not endpoint.is_enabled:
        # It was switched off while the message was being written.
        WebhookDelivery.objects.filter(pk=delivery.pk, worker=delivery.worker).update(
            state=DeliveryState.GIVEN_UP, next_attempt_at=None, worker="", finished_at=began
        )
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
    """Write down how an attempt went, and what follows; nothing where another worker has the message now."""
    with transaction.atomic():
        endpoint = (
            WebhookEndpoint.objects.select_for_update(of=("self",))
            .select_related("project")
            .filter(pk=delivery.endpoint_id)
            .first()
        )
        mine = WebhookDelivery.objects.filter(pk=delivery.pk, worker=delivery.worker)
        if endpoint is None or not mine.exists():
            return
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
        else:
            mine.update(
                state=DeliveryState.DELIVERED, next_attempt_at=None, worker="", finished_at=timezone.now()
            )
            if endpoint.failures:
                endpoint.failures, endpoint.failing_since, endpoint.rests_until = 0, None, None
                endpoint.save(update_fields=["failures", "failing_since", "rests_until"])


def _failed(delivery: WebhookDelivery, endpoint: WebhookEndpoint, outcome: Outcome) -> None:
    now = timezone.now()
    mine = WebhookDelivery.objects.filter(pk=delivery.pk, worker=delivery.worker, state=DeliveryState.WAITING)
    if delivery.tries_left:
        mine.update(next_attempt_at=now + _pause(delivery.tries_left, outcome.retry_after), worker="")
    else:
        mine.update(state=DeliveryState.GIVEN_UP, next_attempt_at=None, worker="", finished_at=now)
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
    """How long to wait before the next try: by the table, and never less than the receiver asks."""
    base = PAUSES[min(MOST_TRIES - 1 - tries_left, len(PAUSES) - 1)]
    drawn = base * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - nothing is kept secret by it
    return max(drawn, timedelta(seconds=retry_after or 0))
