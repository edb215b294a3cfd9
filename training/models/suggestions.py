"""Sources of a project's suggestions, and the job that computes them ahead."""

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from annotation.choices import JobState
from training.models.checkpoints import Checkpoint
from training.models.jobs import BackgroundJob


class SuggestionSource(BackgroundJob):
    """The model whose suggestions a project's annotators see after their first pass, and its work.

    A checkpoint that writes text is asked as an AI annotator; a reward model scores segments and responses.
    The state is that of its work: finished means that every comparison has its suggestions for now. Written
    by `services.suggestions` alone.
    """

    PAGE = "suggestions"

    project = models.OneToOneField(
        "annotation.Project", on_delete=models.PROTECT, related_name="suggestion_source"
    )
    checkpoint = models.ForeignKey(Checkpoint, on_delete=models.PROTECT, related_name="+")
    template = models.TextField(
        blank=True, help_text="What an AI annotator is asked; unused for a reward model."
    )
    least_confidence = models.FloatField(
        default=0.5,
        validators=[MinValueValidator(0.0), MaxValueValidator(1.0)],
        help_text="Suggestions of a lower confidence are left out, 0 to 1.",
    )
    is_active = models.BooleanField(default=True, help_text="Whether it goes on when there are comparisons.")
    compared = models.PositiveBigIntegerField(default=0, help_text="Comparisons that have their suggestions.")
    suggested = models.PositiveBigIntegerField(default=0, help_text="Suggestions stored.")
    planted = models.PositiveBigIntegerField(default=0, help_text="Of them planted wrong.")

    class Meta(BackgroundJob.Meta):
        constraints = [
            models.CheckConstraint(condition=Q(state__in=JobState.values), name="suggestions_state_known"),
            models.CheckConstraint(
                condition=Q(least_confidence__range=(0, 1)), name="suggestions_confidence_in_range"
            ),
        ]

    def __str__(self) -> str:
        return f"Suggestions by {self.checkpoint}"
