"""Rounds, their states, and their steps."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q
from django.urls import reverse
from django.utils.translation import gettext as _

from annotation.choices import Cap
from annotation.models.jobs import Job
from training.choices import (
    TRAINS,
    RoundState,
    StepKind,
    StepState,
    Verdict,
)
from training.contract import ContractError
from training.models.checkpoints import Checkpoint, Run, Snapshot
from training.models.decision_reasons import reason_text
from training.recipe import Recipe, default_recipe

if TYPE_CHECKING:
    from annotation.models import User


def validate_recipe(value: Mapping[str, Any]) -> None:
    """Raise for a recipe that a trainer would refuse, naming the field."""
    try:
        Recipe.from_json(value)
    except ContractError as error:
        raise ValidationError(str(error)) from None


class Round(models.Model):
    """One pass through the loop for one project.

    Drafted by a manager, or opened by the verdict on the round before it. Its recipe may change until
    training starts, except for completions already sampled.
    """

    project = models.ForeignKey("annotation.Project", on_delete=models.PROTECT, related_name="rounds")
    number = models.PositiveIntegerField(default=1)
    state = models.CharField(max_length=24, choices=RoundState, default=RoundState.DRAFT)
    policy = models.ForeignKey(
        Checkpoint,
        on_delete=models.PROTECT,
        related_name="rounds",
        help_text="The checkpoint that answers this round's prompts and that its training continues.",
    )
    recipe = models.JSONField(default=default_recipe, validators=[validate_recipe])
    snapshot = models.ForeignKey(
        Snapshot, on_delete=models.PROTECT, null=True, blank=True, related_name="trained_rounds"
    )
    cancel_requested = models.BooleanField(default=False)
    pause_requested = models.BooleanField(default=False)
    starts_by_itself = models.BooleanField(
        default=True,
        help_text="Whether the recipe's triggers may start it; not once it was taken back to labelling.",
    )
    reasons = models.JSONField(
        default=list, blank=True, help_text="Every condition of the decision with its figure, held or not."
    )
    verdict = models.CharField(
        max_length=24,
        choices=Verdict,
        blank=True,
        default="",
        db_default="",
        help_text="What the evidence supports; empty before the evaluation.",
    )
    decision_note = models.TextField(
        blank=True,
        default="",
        db_default="",
        help_text="Why a person promoted or rejected the new policy; empty without a person.",
    )
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    started_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="+",
        help_text="None where its recipe's trigger started it.",
    )
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["project", "-number"]
        constraints = [
            models.UniqueConstraint(fields=["project", "number"], name="round_number_once"),
            models.UniqueConstraint(
                fields=["project"],
                condition=Q(state__in=TRAINS),
                name="round_trains_one_at_a_time",
            ),
            models.CheckConstraint(condition=Q(number__gte=1), name="round_number_from_one"),
            models.CheckConstraint(condition=Q(state__in=RoundState.values), name="round_state_known"),
        ]

    def __str__(self) -> str:
        return f"{self.project}, round {self.number}"

    def get_absolute_url(self) -> str:
        return reverse("round", args=[self.project.slug, self.number])

    @property
    def short_name(self) -> str:
        """Return the round without its project, for a page that names the project already."""
        return _("Round %(number)s") % {"number": self.number}

    @property
    def reason_texts(self) -> list[str]:
        """Return the reasons of its decision as sentences in the active language."""
        return [reason_text(reason) for reason in self.reasons]

    @property
    def names_trl(self) -> bool:
        """Return True for a round of 1.0 whose recipe has TRL train, until that is saved again."""
        return bool(self.recipe.get("trainer") == "trl")

    @property
    def parsed_recipe(self) -> Recipe:
        """Return the recipe as a checked dataclass.

        Without the trainer of 1.0, by which TRL trained: `dry_run` refuses to start such a round.
        """
        return Recipe.from_json({**self.recipe, "trainer": "rondo"})


class RoundStep(Job):
    """A step of a round, and its worker."""

    CAP = Cap.ROUNDS
    PROJECT = "round__project"

    round = models.ForeignKey(Round, on_delete=models.CASCADE, related_name="steps")
    kind = models.CharField(max_length=24, choices=StepKind)
    position = models.PositiveSmallIntegerField(
        help_text="0 answers the round's prompts; training counts from 1."
    )
    state = models.CharField(max_length=10, choices=StepState, default=StepState.WAITING)
    run = models.OneToOneField(
        Run, on_delete=models.PROTECT, null=True, blank=True, related_name="round_step"
    )
    seconds_worked = models.FloatField(
        default=0.0,
        help_text="How long workers were busy with it; the budget of hours counts it.",
    )

    class Meta:
        ordering = ["round", "position"]
        constraints = [
            models.UniqueConstraint(fields=["round", "position"], name="step_position_once"),
            models.CheckConstraint(condition=Q(state__in=StepState.values), name="step_state_known"),
            models.CheckConstraint(condition=Q(kind__in=StepKind.values), name="step_kind_known"),
            models.CheckConstraint(
                condition=~Q(state=StepState.RUNNING) | (~Q(worker="") & Q(heartbeat_at__isnull=False)),
                name="step_running_is_claimed",
            ),
        ]
        indexes = [models.Index(fields=["state", "heartbeat_at"], name="step_by_heartbeat")]

    def __str__(self) -> str:
        return f"{self.round}: {self.get_kind_display()}"

    @property
    def requester(self) -> "User | None":
        """The person who started the round, or else who created it."""
        return self.round.started_by or self.round.created_by
