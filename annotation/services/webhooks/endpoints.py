"""The addresses that a project's managers have told of events."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import DeliveryState, Role, WebhookEvent, WhyDisabled
from annotation.errors import NotAllowed, Refusal
from annotation.models import Project, User, WebhookDelivery, WebhookEndpoint
from annotation.models.encryption import seal
from annotation.models.webhooks import LONGEST_DESCRIPTION, LONGEST_URL, SEALED_FOR
from annotation.selectors import access
from annotation.services import audit
from annotation.services.webhooks.addresses import AddressRefusedError
from annotation.services.webhooks.messages import TEST_EVENT, write_message
from annotation.services.webhooks.sending import RECEIVERS
from annotation.services.webhooks.signing import draw_secret

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
    """Have an address told of a project's events from now on; its secret is told once, here.

    Refuses an address that Rondo does not ask, no event or an unknown one, and the twenty-first.
    """
    _require_manager(created_by, project)
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
    _require_manager(changed_by, endpoint.project)
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
    """Draw a new secret, told once, here. For a day the one before signs beside it."""
    _require_manager(rotated_by, endpoint.project)
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
    _require_manager(deleted_by, endpoint.project)
    with transaction.atomic():
        Project.objects.select_for_update(no_key=True).get(pk=endpoint.project_id)
        _write_down("webhook.delete", endpoint, deleted_by)
        endpoint.delete()
        _note_on_project(endpoint.project)


def send_test(*, endpoint: WebhookEndpoint, sent_by: User) -> WebhookDelivery:
    """Have a message sent that says nothing, so that a person sees whether it arrives.

    Refuses a webhook that is switched off: nothing is sent to it.
    """
    _require_manager(sent_by, endpoint.project)
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


def _require_manager(user: User, project: Project) -> None:
    if not access.may(user, project, Role.MANAGER):
        raise NotAllowed(
            "manager_changes_webhooks", _("Only a manager of the project has to do with its webhooks.")
        )


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
