"""Live learning: its settings, and the updates that it has made."""

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from annotation.choices import JobState
from training.choices import LiveState
from training.contract import ContractError
from training.models.checkpoints import Checkpoint, Run, Snapshot
from training.models.jobs import BackgroundJob
from training.models.rounds import Round
from training.recipe.live import default_live_policy, live_policy

LEAST_JUDGMENTS, MOST_JUDGMENTS = 2, 200
"""Bounds of the number of judgments after which the policy is updated."""
LEAST_AHEAD, MOST_AHEAD = 2, 100
"""Bounds of the number of comparisons that wait."""


def validate_live_policy(value: Mapping[str, Any]) -> None:
    """Raise for settings that a trainer would refuse, naming the field."""
    try:
        live_policy(value)
    except ContractError as error:
        raise ValidationError(str(error)) from None


class LiveLearning(BackgroundJob):
    """The settings by which a project's policy learns while people label, and the work for it.

    The state is that of the work: finished means that nothing is to be done for now. Written by
    `services.live` alone.
    """

    PAGE = "live"

    project = models.OneToOneField(
        "annotation.Project", on_delete=models.PROTECT, related_name="live_learning"
    )
    is_active = models.BooleanField(default=True, help_text="Whether the policy is updated and sampled.")
    every = models.PositiveSmallIntegerField(
        default=10,
        validators=[MinValueValidator(LEAST_JUDGMENTS), MaxValueValidator(MOST_JUDGMENTS)],
        help_text="Judgments that prefer a response after which the policy is updated.",
    )
    ahead = models.PositiveSmallIntegerField(
        default=10,
        validators=[MinValueValidator(LEAST_AHEAD), MaxValueValidator(MOST_AHEAD)],
        help_text="Comparisons of fresh responses that wait at most.",
    )
    policy = models.JSONField(
        default=default_live_policy,
        validators=[validate_live_policy],
        help_text="Settings of an update: direct preference optimisation on people's pairs.",
    )
    stopped_because = models.TextField(
        blank=True, help_text="Why it switched itself off; empty where a person did or it is on."
    )

    class Meta(BackgroundJob.Meta):
        constraints = [
            models.CheckConstraint(condition=Q(state__in=JobState.values), name="live_state_known"),
            models.CheckConstraint(
                condition=Q(every__range=(LEAST_JUDGMENTS, MOST_JUDGMENTS)), name="live_every_in_range"
            ),
            models.CheckConstraint(
                condition=Q(ahead__range=(LEAST_AHEAD, MOST_AHEAD)), name="live_ahead_in_range"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.project}, live learning"


class LiveUpdate(models.Model):
    """An update of the policy while people label: one snapshot, one run, one checkpoint.

    Written by the worker that holds the claim on the project's `LiveLearning`. What it learns from is decided
    when it begins and never changes.
    """

    # No separate index: `live_update_number_once` begins with it.
    project = models.ForeignKey(
        "annotation.Project", on_delete=models.PROTECT, related_name="live_updates", db_index=False
    )
    number = models.PositiveIntegerField(help_text="Counted from 1, in the project.")
    round = models.ForeignKey(Round, on_delete=models.PROTECT, related_name="live_updates")
    state = models.CharField(max_length=10, choices=LiveState, default=LiveState.TRAINING)
    judgments = models.PositiveIntegerField(help_text="New judgments that it learns from.")
    last_judgment = models.PositiveBigIntegerField(
        help_text="Id of the last judgment that was there when it began; later ones count to the next."
    )
    judged_at = models.DateTimeField(help_text="When the judgment was given that made it due.")
    behind = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="Newer judgments when its policy began to answer; null before.",
    )
    snapshot = models.ForeignKey(
        Snapshot, on_delete=models.PROTECT, null=True, blank=True, related_name="live_updates"
    )
    run = models.OneToOneField(
        Run, on_delete=models.PROTECT, null=True, blank=True, related_name="live_update"
    )
    error = models.TextField(blank=True, help_text="Why it failed, and what to do.")
    begun_at = models.DateTimeField(auto_now_add=True)
    served_at = models.DateTimeField(
        null=True, blank=True, help_text="When its policy was there to answer prompts."
    )
    answered_at = models.DateTimeField(
        null=True, blank=True, help_text="When the first comparison of its responses was there to be judged."
    )

    class Meta:
        ordering = ["-number"]
        constraints = [
            models.UniqueConstraint(fields=["project", "number"], name="live_update_number_once"),
            models.UniqueConstraint(
                fields=["project"], condition=Q(state=LiveState.TRAINING), name="live_update_one_at_a_time"
            ),
            models.CheckConstraint(condition=Q(state__in=LiveState.values), name="live_update_state_known"),
            models.CheckConstraint(
                condition=~Q(state__in=(LiveState.SERVED, LiveState.WITHDRAWN))
                | Q(snapshot__isnull=False, run__isnull=False, served_at__isnull=False),
                name="live_update_served_has_run",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.project}, live update {self.number}"

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint that it made; None before."""
        return getattr(self.run, "checkpoint", None) if self.run else None

    @property
    def seconds(self) -> float | None:
        """Seconds from the judgment that made it due to the first comparison of its responses."""
        return (self.answered_at - self.judged_at).total_seconds() if self.answered_at else None
