"""Background jobs: exports of checkpoints, measurements of drift."""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q

from annotation.choices import JobState
from annotation.models.jobs import Job
from training.models.checkpoints import Checkpoint


class BackgroundJob(Job):
    """A job requested by a person."""

    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        abstract = True
        ordering = ["-id"]

    @classmethod
    def claim_values(cls) -> dict[str, Any]:
        """Return the columns of a running job, its progress reset."""
        return {**super().claim_values(), "current": 0}

    @property
    def goes_on(self) -> bool:
        """Return whether it has not ended yet."""
        return self.state in (JobState.WAITING, JobState.RUNNING)


class CheckpointExport(BackgroundJob):
    """A checkpoint as a folder that loads without Rondo, for download or a push to a hub.

    Written by `services.exports`. A download's folder is deleted after some days.
    """

    PROJECT = "checkpoint__project"

    checkpoint = models.ForeignKey(Checkpoint, on_delete=models.PROTECT, related_name="exports")
    merged = models.BooleanField(default=False, help_text="A whole model instead of the adapter alone.")
    repository = models.CharField(
        max_length=200, blank=True, help_text="Where on the hub it is pushed to; empty: it is fetched here."
    )
    private = models.BooleanField(default=True, help_text="Whether a new repository is private.")
    folder = models.CharField(max_length=200, blank=True, help_text="Where it lies; empty before and after.")
    url = models.CharField(max_length=300, blank=True, help_text="Where it was pushed to.")

    class Meta(BackgroundJob.Meta):
        constraints = [
            models.UniqueConstraint(
                fields=["checkpoint", "merged", "repository"],
                condition=Q(state__in=(JobState.WAITING, JobState.RUNNING)),
                name="export_going_on_once",
            ),
            models.CheckConstraint(condition=Q(state__in=JobState.values), name="export_state_known"),
        ]

    def __str__(self) -> str:
        return f"{self.checkpoint}, {'merged' if self.merged else 'adapter'}"

    @property
    def path(self) -> Path:
        """Return the folder on this machine."""
        return Path(settings.RONDO_HOME) / self.folder


class DriftMeasurement(BackgroundJob):
    """A measurement of the agreement of reward models with people. Written by `services.drift`."""

    PAGE = "drift"

    project = models.ForeignKey(
        "annotation.Project", on_delete=models.PROTECT, related_name="drift_measurements"
    )

    class Meta(BackgroundJob.Meta):
        constraints = [
            models.UniqueConstraint(
                fields=["project"],
                condition=Q(state__in=(JobState.WAITING, JobState.RUNNING)),
                name="drift_going_on_once",
            ),
            models.CheckConstraint(condition=Q(state__in=JobState.values), name="drift_state_known"),
        ]

    def __str__(self) -> str:
        return f"{self.project}, drift"


class DriftFigure(models.Model):
    """Agreement of one reward model with one round's judgments that it was not trained on.

    Replaced by each measurement. A pair that the model scores equal counts half.
    """

    checkpoint = models.ForeignKey(Checkpoint, on_delete=models.CASCADE, related_name="drift")
    round_number = models.PositiveIntegerField(help_text="Of the judgments.")
    pairs = models.PositiveIntegerField(help_text="Decided pairs that both answers have a score in.")
    held_out_pairs = models.PositiveIntegerField(help_text="Those of them on held-out prompts.")
    agreeing = models.FloatField(help_text="Pairs that it orders as people do.")
    prompts = models.PositiveIntegerField(help_text="How many prompts they are of.")
    unscored = models.PositiveIntegerField(help_text="Pairs left out because a score is missing.")
    trained_on = models.PositiveIntegerField(help_text="Pairs left out because it learned from them.")
    low = models.FloatField(null=True, blank=True, help_text="Lower end of the 95 % interval of the share.")
    high = models.FloatField(null=True, blank=True)
    measured_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["checkpoint", "round_number"]
        constraints = [
            models.UniqueConstraint(fields=["checkpoint", "round_number"], name="drift_figure_once"),
            models.CheckConstraint(
                condition=Q(agreeing__gte=0) & Q(agreeing__lte=models.F("pairs")),
                name="drift_agreeing_of_pairs",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.checkpoint} on round {self.round_number}"

    @property
    def share(self) -> float | None:
        """Return the share of pairs that it orders as people do; None without pairs."""
        return self.agreeing / self.pairs if self.pairs else None


# Workers and their last heartbeats.


class Worker(models.Model):
    """A process that does jobs, with its last heartbeat. Deleted on a regular end.

    Written by `services.workers` alone, by the worker itself. Job assignment does not depend on it: claims
    have their own heartbeats.
    """

    name = models.CharField(max_length=120, unique=True, help_text="Host, process and a mark of its own.")
    queues = models.JSONField(help_text="Names of the queues that it takes messages from.")
    concurrency = models.PositiveIntegerField(help_text="How many jobs it does at once.")
    version = models.CharField(max_length=60, blank=True, help_text="The commit of Rondo that it runs.")
    machine = models.JSONField(
        default=dict, blank=True, help_text="Its processors' load, memory and GPUs, as it last told them."
    )
    clock_ahead = models.FloatField(
        default=0.0, help_text="Seconds that its clock is ahead of the database's; negative: behind."
    )
    started_at = models.DateTimeField()
    heartbeat_at = models.DateTimeField(db_index=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name
