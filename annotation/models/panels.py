"""Panels: links by which participants of a recruiting service annotate in one project, and who they are."""

import re
from datetime import datetime
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext as _

from annotation.choices import ParticipantState

MOST_HOSTS = 20
_HOST = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+")


def check_hosts(value: Any) -> None:
    """Refuse hosts that are not a list of different names in small letters, without port and path."""
    if (
        not isinstance(value, list)
        or len(value) > MOST_HOSTS
        or not all(isinstance(host, str) and len(host) <= 253 and _HOST.fullmatch(host) for host in value)
        or len(set(value)) != len(value)
    ):
        raise ValidationError(
            _("Name at most %(most)s hosts, each once and without port, such as app.prolific.com.")
            % {"most": MOST_HOSTS}
        )


class Panel(models.Model):
    """A link by which participants of a recruiting service annotate in a project, without an account.

    Written by `annotation.services.panels` alone. Only the SHA-256 of the link's secret is kept.
    """

    project = models.ForeignKey("annotation.Project", on_delete=models.CASCADE, related_name="panels")
    name = models.CharField(max_length=100)
    digest = models.CharField(max_length=64, unique=True, editable=False, help_text="SHA-256 of the secret.")
    consent = models.TextField(help_text="Markdown: instructions, and what a participant agrees to.")
    items = models.PositiveIntegerField(help_text="Annotations of one participant, gold items included.")
    most_wrong = models.PositiveIntegerField(
        null=True, blank=True, help_text="Wrong gold answers up to which attention is passed; empty for any."
    )
    code = models.CharField(max_length=60, help_text="Shown at the end.")
    failed_code = models.CharField(
        max_length=60, blank=True, default="", help_text="Shown instead where attention was not passed."
    )
    return_address = models.URLField(
        max_length=500, blank=True, default="", help_text="Where a participant goes at the end."
    )
    most_participants = models.PositiveIntegerField()
    closes_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(items__gte=1, most_participants__gte=1), name="panel_numbers_positive"
            ),
            models.CheckConstraint(condition=~Q(code=""), name="panel_has_a_code"),
            models.CheckConstraint(
                condition=Q(most_wrong__isnull=True) | ~Q(failed_code=""), name="panel_check_has_a_code"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def is_open(self, now: datetime) -> bool:
        """Return True where participants may begin and go on."""
        return self.revoked_at is None and self.closes_at > now


class PanelParticipant(models.Model):
    """One participant of a panel: the ids of the recruiting service, and the account that annotates."""

    panel = models.ForeignKey(Panel, on_delete=models.CASCADE, related_name="participants")
    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="participation"
    )
    participant = models.CharField(max_length=100, help_text="Its id at the recruiting service.")
    study = models.CharField(max_length=100, blank=True, default="")
    session = models.CharField(max_length=100, blank=True, default="")
    state = models.CharField(
        max_length=10, choices=ParticipantState, default=ParticipantState.WORKING, help_text="How it ended."
    )
    began_at = models.DateTimeField(auto_now_add=True, help_text="When they agreed and began.")
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["panel", "participant"], name="panel_participant_once"),
            models.CheckConstraint(condition=~Q(participant=""), name="panel_participant_has_id"),
            models.CheckConstraint(
                condition=Q(state=ParticipantState.WORKING, finished_at__isnull=True)
                | Q(
                    state__in=[ParticipantState.COMPLETED, ParticipantState.FAILED], finished_at__isnull=False
                ),
                name="panel_participant_finished_at",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.participant} of {self.panel}"
