"""Calibration sessions: comparisons that several people answer blind and then look at together."""

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone


class CalibrationSession(models.Model):
    """One session: its comparisons, who takes part, and when their annotations were revealed.

    Until the reveal `Comparison.is_sealed` hides every annotation of its comparisons from everyone but its
    annotator. Written by `annotation.services.calibration` alone.
    """

    project = models.ForeignKey("annotation.Project", on_delete=models.CASCADE, related_name="calibrations")
    name = models.CharField(max_length=100)
    participants = models.ManyToManyField(settings.AUTH_USER_MODEL, related_name="calibrations")
    retest_of = models.ForeignKey(
        "self",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="retests",
        help_text="The session whose lasting effect it measures; always the first one, never a retest.",
    )
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)
    revealed_at = models.DateTimeField(null=True, blank=True)
    revealed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    closed_at = models.DateTimeField(
        null=True, blank=True, help_text="Since when no change of an annotation counts as made in the talk."
    )

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(condition=~Q(name=""), name="calibration_has_name"),
            models.CheckConstraint(
                condition=Q(revealed_at__isnull=True, revealed_by__isnull=True)
                | Q(revealed_at__isnull=False, revealed_by__isnull=False),
                name="calibration_revealed_by_somebody",
            ),
            models.CheckConstraint(
                condition=Q(closed_at__isnull=True) | Q(revealed_at__isnull=False),
                name="calibration_closed_after_reveal",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class CalibrationItem(models.Model):
    """One comparison of a session."""

    session = models.ForeignKey(CalibrationSession, on_delete=models.CASCADE, related_name="items")
    comparison = models.ForeignKey(
        "annotation.Comparison", on_delete=models.CASCADE, related_name="calibration_items"
    )
    index = models.PositiveIntegerField(help_text="Its place in the session, from 0.")
    is_open = models.BooleanField(
        default=True, help_text="Whether its session is not closed: a comparison is in one such session."
    )

    class Meta:
        ordering = ["session", "index"]
        constraints = [
            models.UniqueConstraint(fields=["session", "comparison"], name="calibration_item_once"),
            models.UniqueConstraint(fields=["session", "index"], name="calibration_index_once"),
            models.UniqueConstraint(
                fields=["comparison"], condition=Q(is_open=True), name="calibration_in_one_open_session"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.comparison} in {self.session}"


class CalibrationAnswer(models.Model):
    """An assignment by which a participant answers an item, and the versions of their annotation.

    Where a lease ended and another began there are two rows; at most one of them has an annotation.
    """

    item = models.ForeignKey(CalibrationItem, on_delete=models.CASCADE, related_name="answers")
    assignment = models.OneToOneField(
        "annotation.Assignment", on_delete=models.CASCADE, related_name="calibration_answer"
    )
    before = models.ForeignKey(
        "annotation.Judgment",
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="+",
        help_text="The version at the reveal; none for who answered later, or not at all.",
    )
    after = models.ForeignKey(
        "annotation.Judgment",
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="+",
        help_text="The version at the close; none while the session is open.",
    )

    class Meta:
        ordering = ["item", "id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(after__isnull=True) | Q(before__isnull=False), name="calibration_after_has_before"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.assignment} in {self.item.session}"
