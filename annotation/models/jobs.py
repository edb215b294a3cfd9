"""Background work: rows that one worker at a time claims."""

from typing import TYPE_CHECKING, Any, ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Coalesce, Now

from annotation.choices import Cap, JobState

if TYPE_CHECKING:
    from annotation.models.people import User


class Claimable(models.Model):
    """A row that one worker at a time works on.

    `worker` is the claim and `heartbeat_at` keeps it alive. Both are written by
    `annotation.services.jobs` alone; only the holder of the claim writes progress and the end.
    """

    UNFINISHED: ClassVar[Q]
    """Rows that a worker has something to do for, claimed or not."""
    PAGE: ClassVar[str] = "project"
    """URL name of the project's page on which the job is."""
    CAP: ClassVar[str] = ""
    """The `Cap` that the kind counts for; empty: any number may be at work."""
    PROJECT: ClassVar[str] = "project"
    """Lookup of the project, for kinds with a cap."""
    MIN_STALE_SECONDS: ClassVar[float] = 0.0
    """For this long a worker may be silent even where `RONDO_STALE_SECONDS` is less."""

    worker = models.CharField(max_length=120, blank=True, help_text="Who holds the claim.")
    heartbeat_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        abstract = True

    @property
    def requester(self) -> "User | None":
        """The person who asked for the job; None where nobody did."""
        return getattr(self, "created_by", None)

    @classmethod
    def claim_values(cls) -> dict[str, Any]:
        """Return the columns that change, besides the claim, when a worker begins."""
        return {}

    def end_values(self, state: str, text: str) -> dict[str, Any]:
        """Return the columns that change when a worker ends: waiting again, finished or failed, and why."""
        raise NotImplementedError


class Job(Claimable):
    """Background work with a state and progress."""

    UNFINISHED = Q(state__in=(JobState.WAITING, JobState.RUNNING))
    CAP: ClassVar[str] = Cap.LONG

    state = models.CharField(max_length=10, choices=JobState, default=JobState.WAITING)
    current = models.PositiveBigIntegerField(default=0)
    total = models.PositiveBigIntegerField(default=0)
    message = models.TextField(blank=True, help_text="What is being done, for people.")
    error = models.TextField(blank=True, help_text="Why it failed, and what to do.")
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        abstract = True

    @classmethod
    def claim_values(cls) -> dict[str, Any]:
        """Return the columns of a job that runs; a job that is claimed again keeps its first start."""
        return {"state": JobState.RUNNING, "started_at": Coalesce("started_at", Now()), "error": ""}

    def end_values(self, state: str, text: str) -> dict[str, Any]:
        """Return the columns of a job that ended: `text` is the error where it failed, else the message."""
        values = {"state": state, "error" if state == JobState.FAILED else "message": text}
        return values if state == JobState.WAITING else {**values, "finished_at": Now()}
