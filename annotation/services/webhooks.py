"""Webhooks: send events of a project to other programs, signed, until they accept them.

An event is recorded in the transaction in which it happens; a worker sends what is due and records the
result.
"""

import asyncio
import base64
import binascii
import functools
import hashlib
import hmac
import json
import random
import secrets
import ssl
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import httpx
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import DeliveryState, TaskName, WebhookEvent, WhyDisabled
from annotation.errors import Refusal
from annotation.models import (
    Comparison,
    Judgment,
    Project,
    User,
    WebhookAttempt,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookMessage,
)
from annotation.models.webhooks import (
    LONGEST_DESCRIPTION,
    LONGEST_URL,
    MOST_TRIES,
    SEALED_FOR,
    SealBrokenError,
    seal,
)
from annotation.selectors import access
from annotation.services import audit
from annotation.services.addresses import AddressPolicy, AddressRefusedError, AsyncGuardedTransport
from annotation.services.jobs import (
    ClaimLostError,
    claim,
    claimable,
    release,
    send,
    send_after_commit,
    still_held,
    write,
)

# ── Messages ────────────────────────────────────────────────────────────────────────────


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
    if project.calibration_seals and Comparison.objects.filter(pk=comparison.pk, is_sealed=True).exists():
        # A verdict is no secret to a receiver: the reveal tells of it.
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


# ── Signatures ──────────────────────────────────────────────────────────────────────────


PREFIX = "whsec_"
"""With which a secret begins, so that people and scanners tell it from others."""

_SECRET_BYTES = 32


def draw_secret() -> str:
    """A new secret: `whsec_` and 32 random bytes in base64."""
    return PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def signature_of(*, secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """`v1,` and the HMAC-SHA256 of `id.timestamp.body` in base64.

    timestamp: seconds since 1970. Raises `ValueError` where the secret is none of `draw_secret`.
    """
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError("A webhook's secret is whsec_ and base64.") from error
    signed = b".".join((message_id.encode(), str(timestamp).encode(), body))
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def headers_of(*, secrets_: Sequence[str], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers by which a receiver verifies a message. While a secret is rotated, both sign."""
    signatures = [
        signature_of(secret=secret, message_id=message_id, timestamp=timestamp, body=body)
        for secret in secrets_
    ]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signatures),
    }


# ── One request ─────────────────────────────────────────────────────────────────────────


RECEIVERS = AddressPolicy(setting="RONDO_WEBHOOK_HOSTS", what="webhook", allows_query=True, only_https=True)
"""Rule for the addresses that may receive messages."""

SECONDS = 15.0
"""Longest duration of an attempt, however slow its receiver."""
KEPT_CHARACTERS = 1_000
"""Characters of an answer that are kept for people to read."""

_READ_BYTES = 4 * KEPT_CHARACTERS
_LONGEST_WAIT = 24 * 3600
_TELLS_A_TIME = (429, 503)


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptOutcome:
    status: int | None = None
    error: str = ""
    """Reason for the failure, for people; empty where it succeeded."""
    answer: str = ""
    milliseconds: int = 0
    retry_after: int | None = None
    """Seconds that the receiver asks to wait; None where it does not ask."""


def post(url: str, *, headers: Mapping[str, str], body: bytes) -> AttemptOutcome:
    """Send a message once. Never raises: what went wrong is in the outcome.

    Only a status of 200 to 299 is success. No redirect is followed, and no cookie is kept. The address is
    looked at again here, where it is connected to.
    """
    began = time.monotonic()
    try:
        status, answer, retry_after = asyncio.run(_post(url, headers, body))
    except TimeoutError:
        outcome = AttemptOutcome(error=f"There was no answer within {SECONDS:g} seconds.")
    except AddressRefusedError as refusal:
        outcome = AttemptOutcome(error=str(refusal))
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        outcome = AttemptOutcome(error=f"It could not be sent: {str(error) or type(error).__name__}.")
    else:
        outcome = AttemptOutcome(
            status=status, answer=answer, retry_after=retry_after, error=_fault_of(status)
        )
    return AttemptOutcome(
        status=outcome.status,
        error=outcome.error,
        answer=outcome.answer,
        retry_after=outcome.retry_after,
        milliseconds=int((time.monotonic() - began) * 1000),
    )


async def _post(url: str, headers: Mapping[str, str], body: bytes) -> tuple[int, str, int | None]:
    RECEIVERS.check_url(url)
    inner = httpx.AsyncHTTPTransport(verify=_trusted(), trust_env=False)
    transport = AsyncGuardedTransport(RECEIVERS, inner=inner)
    async with asyncio.timeout(SECONDS) as deadline:
        async with (
            httpx.AsyncClient(transport=transport, trust_env=False, timeout=SECONDS) as client,
            client.stream("POST", url, content=body, headers=dict(headers)) as answer,
        ):
            # The status is known: from here on only the text of the answer is missing.
            deadline.reschedule(None)
            return answer.status_code, await _beginning(answer), _retry_after(answer)


async def _beginning(answer: httpx.Response) -> str:
    """The first characters of an answer, as they came over the line: nothing is unpacked."""
    content = bytearray()
    try:
        async with asyncio.timeout(SECONDS / 3):
            async for part in answer.aiter_raw():
                content += part
                if len(content) >= _READ_BYTES:
                    break
    except (TimeoutError, httpx.HTTPError):
        # What came is shown, and what did not come changes nothing.
        pass
    # PostgreSQL takes no NUL.
    return bytes(content[:_READ_BYTES]).decode("utf-8", "replace").replace("\x00", "\ufffd")[:KEPT_CHARACTERS]


def _retry_after(answer: httpx.Response) -> int | None:
    value = answer.headers.get("Retry-After", "")
    if answer.status_code not in _TELLS_A_TIME or not (value.isascii() and value.isdecimal()):
        return None
    return min(int(value[:9]), _LONGEST_WAIT)


def _fault_of(status: int) -> str:
    if 200 <= status < 300:
        return ""
    if 300 <= status < 400:
        return f"It answered {status}, and redirects are not followed: enter the address that it leads to."
    return f"It answered {status}, which is no success."


@functools.cache
def _trusted() -> ssl.SSLContext:
    """Return the trusted certificates; read once, for that takes longer than most requests."""
    return httpx.create_ssl_context(trust_env=False)


# ── What is due ─────────────────────────────────────────────────────────────────────────


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
    access.refuse_unless_manager(sent_by, endpoint.project, "manager_changes_webhooks")
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
        outcome = AttemptOutcome(error="Its secret cannot be read any more: draw a new one for this webhook.")
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


def _note(delivery: WebhookDelivery, outcome: AttemptOutcome, began: datetime) -> None:
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


def _failed(delivery: WebhookDelivery, endpoint: WebhookEndpoint, outcome: AttemptOutcome) -> None:
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


# ── Endpoints ─────────────────────────────────────────────────────────────


MOST_WEBHOOKS = 20
"""So many addresses may one project have."""
ROTATION = timedelta(hours=24)
"""For how long the secret before a new one signs beside it."""


@dataclass(frozen=True, slots=True)
class NewSecret:
    """A webhook and its secret, which nothing tells again."""

    endpoint: WebhookEndpoint
    secret: str


def create_webhook(
    *, project: Project, url: str, events: Sequence[str], description: str = "", created_by: User
) -> NewSecret:
    """Subscribe an address to a project's events from now on; its secret is returned once, here.

    Refuses an address that Rondo does not ask, no event or an unknown one, and the twenty-first.
    """
    access.refuse_unless_manager(created_by, project, "manager_changes_webhooks")
    values = _checked(url, events, description)
    secret = draw_secret()
    with transaction.atomic():
        # Two at once wait here for each other, so that neither misses the other in counts and flag.
        Project.objects.select_for_update(no_key=True).get(pk=project.pk)
        if project.webhooks.count() >= MOST_WEBHOOKS:
            raise Refusal(
                "too_many_webhooks",
                _("This project has %(most)d webhooks. Delete one first."),
                most=MOST_WEBHOOKS,
            )
        endpoint = WebhookEndpoint.objects.create(
            project=project, secret=seal(secret, purpose=SEALED_FOR), created_by=created_by, **values
        )
        _note_on_project(project)
        _write_down("webhook.create", endpoint, created_by)
    return NewSecret(endpoint, secret)


def change_webhook(
    *,
    endpoint: WebhookEndpoint,
    url: str,
    events: Sequence[str],
    description: str,
    is_enabled: bool,
    changed_by: User,
) -> None:
    """Give a webhook other values. What waits of one that is switched off is given up.

    Switched on again it begins afresh: what failed before counts no more. Refuses as `create_webhook` does.
    """
    access.refuse_unless_manager(changed_by, endpoint.project, "manager_changes_webhooks")
    values = _checked(url, events, description)
    with transaction.atomic():
        Project.objects.select_for_update(no_key=True).get(pk=endpoint.project_id)
        held = WebhookEndpoint.objects.select_for_update(of=("self",)).get(pk=endpoint.pk)
        switched = held.is_enabled != is_enabled
        for name, value in values.items():
            setattr(held, name, value)
        held.is_enabled = is_enabled
        if switched:
            held.why_disabled, held.failures = "", 0
            held.failing_since = held.rests_until = None
        held.save()
        if not is_enabled:
            _give_up(held)
        _note_on_project(held.project)
        _write_down("webhook.change", held, changed_by)
    endpoint.refresh_from_db()


def rotate_secret(*, endpoint: WebhookEndpoint, rotated_by: User) -> NewSecret:
    """Draw a new secret, returned only here. For a day the one before signs beside it."""
    access.refuse_unless_manager(rotated_by, endpoint.project, "manager_changes_webhooks")
    secret = draw_secret()
    with transaction.atomic():
        held = WebhookEndpoint.objects.select_for_update(of=("self",)).get(pk=endpoint.pk)
        held.previous_secret, held.previous_secret_until = held.secret, timezone.now() + ROTATION
        held.secret = seal(secret, purpose=SEALED_FOR)
        held.save(update_fields=["secret", "previous_secret", "previous_secret_until"])
        _write_down("webhook.rotate", held, rotated_by)
    endpoint.refresh_from_db()
    return NewSecret(endpoint, secret)


def delete_webhook(*, endpoint: WebhookEndpoint, deleted_by: User) -> None:
    """Forget an address, with what was sent to it and what was to be."""
    access.refuse_unless_manager(deleted_by, endpoint.project, "manager_changes_webhooks")
    with transaction.atomic():
        Project.objects.select_for_update(no_key=True).get(pk=endpoint.project_id)
        _write_down("webhook.delete", endpoint, deleted_by)
        endpoint.delete()
        _note_on_project(endpoint.project)


def send_test(*, endpoint: WebhookEndpoint, sent_by: User) -> WebhookDelivery:
    """Have a message sent that says nothing, so that a person sees whether it arrives.

    Refuses a webhook that is switched off: nothing is sent to it.
    """
    access.refuse_unless_manager(sent_by, endpoint.project, "manager_changes_webhooks")
    _require_enabled(endpoint)
    data = {"project": endpoint.project.slug, "path": f"/api/v1/projects/{endpoint.project.slug}/"}
    with transaction.atomic():
        [delivery] = write_message(
            project_id=endpoint.project_id, event=TEST_EVENT, data=data, endpoints=[endpoint]
        )
    return delivery


def disable_failing(*, endpoint: WebhookEndpoint, why: WhyDisabled) -> None:
    """Switch a webhook off because nothing arrives, and give up what waits. Call it in a transaction, with
    the webhook's row locked."""
    endpoint.is_enabled, endpoint.why_disabled = False, why
    endpoint.save(update_fields=["is_enabled", "why_disabled"])
    _give_up(endpoint)
    _note_on_project(endpoint.project)
    _write_down("webhook.disable", endpoint, None, why=str(why))


def _require_enabled(endpoint: WebhookEndpoint) -> None:
    if not endpoint.is_enabled:
        raise Refusal("webhook_off", _("This webhook is switched off. Switch it on first."))


def _checked(url: str, events: Sequence[str], description: str) -> dict[str, object]:
    url = url.strip()
    try:
        RECEIVERS.check_url(url)
    except AddressRefusedError as refusal:
        raise Refusal("webhook_address_refused", str(refusal), field="url") from None
    if len(url) > LONGEST_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise Refusal(
            "invalid_webhook_address",
            _("An address has at most %(most)d characters, none of them a space."),
            field="url",
            most=LONGEST_URL,
        )
    description = description.strip()
    if len(description) > LONGEST_DESCRIPTION or not description.isprintable():
        raise Refusal(
            "webhook_description_missing", _("Describe its purpose in one line."), field="description"
        )
    known_events = [event for event in WebhookEvent.values if event in events]
    if not known_events or set(events) - set(known_events):
        raise Refusal("webhook_events_missing", _("Choose at least one event."), field="events")
    return {"url": url, "events": known_events, "description": description}


def _note_on_project(project: Project) -> None:
    """Keep the flag that spares projects without webhooks the question."""
    has = WebhookEndpoint.objects.filter(project=project, is_enabled=True).exists()
    Project.objects.filter(pk=project.pk).exclude(has_webhooks=has).update(has_webhooks=has)
    project.has_webhooks = has


def _give_up(endpoint: WebhookEndpoint) -> None:
    endpoint.deliveries.filter(state=DeliveryState.WAITING).update(
        state=DeliveryState.GIVEN_UP,
        next_attempt_at=None,
        worker="",
        heartbeat_at=None,
        finished_at=timezone.now(),
    )


def _write_down(action: str, endpoint: WebhookEndpoint, actor: User | None, **details: object) -> None:
    audit.record(
        action=action,
        subject=endpoint,
        actor=actor,
        project=endpoint.project,
        # Path and query may hold a key of the receiver's.
        details={"host": urlsplit(endpoint.url).netloc, "events": endpoint.events, **details},
    )
