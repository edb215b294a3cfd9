"""Runs of lessons."""

from django.conf import settings
from django.db import models
from django.db.models import Q

from annotation.choices import JobState
from training.models.jobs import BackgroundJob


class LessonRun(BackgroundJob):
    """A run of a lesson by one learner: its curve, its figures, and whether they keep the lesson's claim.

    Written by `services.course`. A learner has passed a lesson with a run that is not broken and keeps it.
    """

    # Lessons belong to no project.
    CAP = ""

    # A learner's progress goes with their account.
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="lesson_runs", db_index=False
    )
    lesson = models.CharField(max_length=40, help_text="Slug, as training.contract.course declares it.")
    broken = models.BooleanField(default=False, help_text="With the one setting changed that it names.")
    seed = models.PositiveIntegerField(default=0)
    points = models.JSONField(default=list, help_text="The curve: [step, {line: value}].")
    figures = models.JSONField(default=dict, help_text="Figures at the end, by name.")
    is_kept = models.BooleanField(null=True, help_text="Whether the claim holds; null before the end.")
    cancel_requested = models.BooleanField(default=False)

    class Meta(BackgroundJob.Meta):
        indexes = [models.Index(fields=["created_by", "lesson", "broken"], name="lesson_run_of_learner")]
        constraints = [
            models.UniqueConstraint(
                fields=["created_by", "lesson", "broken"],
                condition=Q(state__in=(JobState.WAITING, JobState.RUNNING)),
                name="lesson_run_going_on_once",
            ),
            models.CheckConstraint(condition=Q(state__in=JobState.values), name="lesson_run_state_known"),
        ]

    def __str__(self) -> str:
        return f"{self.lesson}, {self.created_by}"
