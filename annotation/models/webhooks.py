"""Webhook endpoints: addresses of other programs, the messages sent to them, and their outcomes."""

import base64
import hashlib
from datetime import datetime

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from annotation.choices import DeliveryState, WhyDisabled
from annotation.models.jobs import Claimable

# Secrets that must be read again: encrypted with a key drawn from the secret key of this Rondo.


class SealBrokenError(Exception):
    """A sealed value cannot be read: the secret key is another one now, and the old one is not kept."""


def seal(text: str, *, purpose: str) -> str:
    """A text as it may stand in the database. What is sealed for one purpose opens for no other."""
    return _cipher(purpose).encrypt(text.encode()).decode()


def unseal(sealed: str, *, purpose: str) -> str:
    """The text again, also under a key of `SECRET_KEY_FALLBACKS`. Raises `SealBrokenError`."""
    try:
        return _cipher(purpose).decrypt(sealed.encode()).decode()
    except InvalidToken as error:
        raise SealBrokenError(f"The {purpose} cannot be read with this secret key.") from error


def _cipher(purpose: str) -> MultiFernet:
    keys = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    digests = (hashlib.sha256(f"rondo {purpose}:".encode() + str(key).encode()).digest() for key in keys)
    return MultiFernet([Fernet(base64.urlsafe_b64encode(digest)) for digest in digests])


# ── Webhooks ──

SEALED_FOR = "webhook secret"
LONGEST_URL = 500
LONGEST_DESCRIPTION = 200
MOST_TRIES = 10
"""Attempts to send a message before it is given up: at once, and after each of nine pauses."""


class WebhookEndpoint(models.Model):
    """One address that receives a project's events. Written by `annotation.services.webhooks` alone.

    Its secrets are needed to sign, so they are kept, sealed with a key derived from this Rondo's secret key.
    """

    project = models.ForeignKey("annotation.Project", on_delete=models.CASCADE, related_name="webhooks")
    url = models.CharField(max_length=LONGEST_URL, help_text="Where messages are sent.")
    description = models.CharField(max_length=LONGEST_DESCRIPTION, blank=True, help_text="What it is for.")
    events = models.JSONField(default=list, help_text="What it is told of: names of `WebhookEvent`.")
    is_enabled = models.BooleanField(default=True)
    why_disabled = models.CharField(
        max_length=10,
        choices=WhyDisabled,
        blank=True,
        help_text="Why Rondo switched it off; empty where a person did.",
    )
    secret = models.TextField(editable=False, help_text="Sealed. Signs every message.")
    previous_secret = models.TextField(
        blank=True, editable=False, help_text="Sealed. Signs beside the new one until receivers know that."
    )
    previous_secret_until = models.DateTimeField(null=True, blank=True)
    failures = models.PositiveIntegerField(default=0, help_text="Attempts that failed since one succeeded.")
    failing_since = models.DateTimeField(null=True, blank=True, help_text="When the first of them failed.")
    rests_until = models.DateTimeField(
        null=True, blank=True, help_text="Until then nothing is sent, so that others need not wait for it."
    )
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="webhooks"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(why_disabled__in=["", *WhyDisabled.values]), name="webhook_why_disabled_known"
            ),
            models.CheckConstraint(
                condition=Q(is_enabled=False) | Q(why_disabled=""), name="webhook_enabled_has_no_reason"
            ),
            models.CheckConstraint(
                condition=Q(previous_secret="") | Q(previous_secret_until__isnull=False),
                name="webhook_previous_secret_ends",
            ),
        ]

    def __str__(self) -> str:
        return self.description or f"webhook {self.pk} of {self.project}"

    def open_secrets(self, now: datetime) -> list[str]:
        """The secrets that sign at this moment, the newest first. Raises `SealBrokenError`."""
        sealed = [self.secret]
        if self.previous_secret and self.previous_secret_until and self.previous_secret_until > now:
            sealed.append(self.previous_secret)
        return [unseal(secret, purpose=SEALED_FOR) for secret in sealed]


class WebhookMessage(models.Model):
    """One event, as the bytes that are sent. Written once, in the transaction of the event.

    It names no person: a receiver reads what it may know of people from the API, with a person's token.
    """

    project = models.ForeignKey(
        "annotation.Project", on_delete=models.CASCADE, related_name="webhook_messages"
    )
    key = models.CharField(
        max_length=40, unique=True, help_text="`webhook-id`: the same however often it is sent."
    )
    event = models.CharField(max_length=40, help_text="A name of `WebhookEvent`, or `webhook.test`.")
    body = models.TextField(help_text="JSON, as it is signed and sent.")
    created_at = models.DateTimeField(default=timezone.now, db_index=True)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.event} {self.key}"


class WebhookDelivery(Claimable):
    """One message on its way to one address. A delivery that a dead worker held is sent again under the
    same `webhook-id`."""

    UNFINISHED = Q(state=DeliveryState.WAITING)
    # Longer than an attempt may take, during which there is no heartbeat.
    MIN_STALE_SECONDS = 60.0

    message = models.ForeignKey(WebhookMessage, on_delete=models.CASCADE, related_name="deliveries")
    # No index of its own: one below begins with it.
    endpoint = models.ForeignKey(
        WebhookEndpoint, on_delete=models.CASCADE, related_name="deliveries", db_index=False
    )
    state = models.CharField(max_length=10, choices=DeliveryState, default=DeliveryState.WAITING)
    tries_left = models.PositiveSmallIntegerField(default=MOST_TRIES)
    next_attempt_at = models.DateTimeField(null=True, blank=True, help_text="When it is due.")
    created_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "webhook deliveries"
        constraints = [
            models.UniqueConstraint(fields=["message", "endpoint"], name="webhook_delivery_once"),
            models.CheckConstraint(
                condition=Q(state__in=DeliveryState.values), name="webhook_delivery_state_known"
            ),
            models.CheckConstraint(
                condition=Q(state=DeliveryState.WAITING, next_attempt_at__isnull=False)
                | (~Q(state=DeliveryState.WAITING) & Q(next_attempt_at__isnull=True)),
                name="webhook_delivery_waiting_is_due",
            ),
        ]
        indexes = [
            models.Index(fields=["endpoint", "-id"], name="webhook_delivery_by_endpoint"),
            models.Index(
                fields=["next_attempt_at"],
                condition=Q(state=DeliveryState.WAITING),
                name="webhook_delivery_due",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.message} to {self.endpoint}"


class WebhookAttempt(models.Model):
    """One attempt to send a message, and its outcome. Written once."""

    delivery = models.ForeignKey(WebhookDelivery, on_delete=models.CASCADE, related_name="attempts")
    started_at = models.DateTimeField()
    milliseconds = models.PositiveIntegerField(help_text="From the first look at the name to the answer.")
    status = models.PositiveSmallIntegerField(null=True, blank=True, help_text="HTTP; none where none came.")
    error = models.TextField(blank=True, help_text="Why it failed; empty where it succeeded.")
    answer = models.TextField(
        blank=True, help_text="The beginning of what the receiver answered, as untrusted as any such text."
    )

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.delivery}: {self.status or self.error}"

    @property
    def succeeded(self) -> bool:
        """Return True where the receiver accepted the message."""
        return not self.error
