"""Background work: rows that one worker at a time claims."""

from typing import TYPE_CHECKING, Any, ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Case, Q, Value, When
from django.db.models.functions import Coalesce, Now

from annotation.choices import Cap, ImportState, JobState

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


# Imported files.


class FileImport(Claimable):
    """One file that is brought into one project, and how far that has come.

    Written by `annotation.exchange.file_imports` alone. The same content in the same project is one row, so
    that an import that was cut off goes on where it stopped, and a second one adds nothing.
    """

    PAGE = "transfers"
    CAP = Cap.IMPORTS

    # An import without a stored file is a command's, and no worker's.
    UNFINISHED = Q(state__in=(ImportState.WAITING, ImportState.RUNNING)) & ~Q(stored_as="") | Q(
        state=ImportState.UNDOING
    )

    # No index of its own: the constraint below begins with it.
    project = models.ForeignKey(
        "annotation.Project", on_delete=models.CASCADE, related_name="file_imports", db_index=False
    )
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="file_imports",
        help_text="Who brought it in; none for a command.",
    )
    name = models.CharField(max_length=255, help_text="What the file was called.")
    digest = models.CharField(max_length=64, help_text="SHA-256 of its content.")
    stored_as = models.CharField(
        max_length=80, blank=True, help_text="Its name in the folder of imports; empty where it is not kept."
    )
    size = models.PositiveBigIntegerField(default=0, help_text="In bytes.")
    format = models.CharField(max_length=40, blank=True)
    mapping = models.JSONField(default=dict, blank=True, help_text="Role → column of the file, or columns.")
    leave_out = models.JSONField(
        default=list,
        db_default=[],
        blank=True,
        help_text="Columns that are not read because somebody said so.",
    )
    meanings = models.JSONField(
        default=dict, db_default={}, blank=True, help_text="Value of the column of winners → what it means."
    )
    account = models.JSONField(
        default=list, db_default=[], blank=True, help_text="What becomes of each column, as `ColumnAccount`s."
    )
    preview = models.JSONField(
        default=dict,
        db_default={},
        blank=True,
        help_text="Its first rows and what is wrong with them, while it waits to be imported.",
    )
    made = models.JSONField(
        default=dict, db_default={}, blank=True, help_text="Ids of the categories and criteria that it made."
    )
    deletes_used = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Its undoing deletes, too, what people annotated or used; what a snapshot holds stays.",
    )
    skip_bad = models.BooleanField(
        default=False, help_text="Leave bad rows out and list them, in place of refusing the file."
    )
    state = models.CharField(max_length=10, choices=ImportState, default=ImportState.UPLOADED)
    rows_total = models.PositiveBigIntegerField(default=0, help_text="As far as it has been looked through.")
    rows_done = models.PositiveBigIntegerField(default=0, help_text="The last row that is in the database.")
    counts = models.JSONField(default=dict, blank=True, help_text="What was added.")
    errors = models.JSONField(
        default=list, blank=True, help_text="Rows that were left out, and why: the first."
    )
    errors_total = models.PositiveBigIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["project", "digest"], name="file_import_once"),
            models.CheckConstraint(
                condition=models.Q(state__in=ImportState.values), name="file_import_state_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} into {self.project}"

    @classmethod
    def claim_values(cls) -> dict[str, Any]:
        """Return the columns of an import that runs: errors of the try before it go."""
        undoing = When(state=ImportState.UNDOING, then=Value(ImportState.UNDOING))
        state = Case(undoing, default=Value(ImportState.RUNNING), output_field=models.CharField())
        return {"state": state, "errors": [], "errors_total": 0}

    def end_values(self, state: str, text: str) -> dict[str, Any]:
        """Return the columns of an import that ended; why it failed follows the errors of its rows."""
        match state:
            case JobState.FAILED:
                errors = [*self.errors, *filter(None, [text])]
                return {
                    "state": state,
                    "errors": errors,
                    "errors_total": max(len(errors), self.errors_total),
                }
            case JobState.FINISHED if self.state == ImportState.UNDOING:
                return {"state": ImportState.UNDONE, "finished_at": Now()}
            case JobState.FINISHED:
                return {"state": state, "finished_at": Now()}
            case _ if self.state == ImportState.UNDOING:
                return {"state": ImportState.UNDOING}
            case _:
                return {"state": state}

    @property
    def is_busy(self) -> bool:
        """Return True while a worker has it, or is about to."""
        return self.state in (ImportState.WAITING, ImportState.RUNNING, ImportState.UNDOING)

    @property
    def percent(self) -> int:
        """Return the imported share, 0 to 100."""
        return 100 * self.rows_done // self.rows_total if self.rows_total else 0
