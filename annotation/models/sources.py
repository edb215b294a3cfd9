"""Folders and buckets that are watched, and the files of them that were imported."""

from datetime import timedelta
from typing import Any, ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from annotation.choices import JobState
from annotation.models.jobs import Claimable


class ImportSource(Claimable):
    """A folder or bucket whose new and changed files are imported into a project, as long as it is active.

    Written by `annotation.exchange.sources`. What was imported stays when it is removed.
    """

    PAGE: ClassVar[str] = "sources"
    MIN_STALE_SECONDS: ClassVar[float] = 600.0
    """A large file may take minutes to arrive, without a heartbeat."""
    UNFINISHED = Q(is_active=True, next_check_at__lte=Now())

    # No index of its own: the constraint below begins with it.
    project = models.ForeignKey(
        "annotation.Project", on_delete=models.CASCADE, related_name="import_sources", db_index=False
    )
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.PROTECT,
        related_name="+",
        help_text="In whose name files are imported; stays a manager, or nothing is.",
    )
    address = models.CharField(max_length=500, help_text="A folder, or a URL such as s3://bucket/prompts.")
    skip_bad = models.BooleanField(default=False, help_text="Leave bad rows out instead of refusing a file.")
    is_active = models.BooleanField(default=True)
    next_check_at = models.DateTimeField(help_text="When it is looked through next.")
    checked_at = models.DateTimeField(null=True, blank=True)
    message = models.TextField(blank=True, help_text="What the last check did.")
    error = models.TextField(blank=True, help_text="Why the last check failed; empty if it did not.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["project", "address"], name="import_source_once")]

    def __str__(self) -> str:
        return self.address

    def end_values(self, state: str, text: str) -> dict[str, Any]:
        """Return the columns of a check that ended; the next one follows after `RONDO_SOURCE_SECONDS`."""
        if state == JobState.WAITING:
            return {"error": text}
        later = Now() + timedelta(seconds=settings.RONDO_SOURCE_SECONDS)
        ended = "error" if state == JobState.FAILED else "message"
        return {"checked_at": Now(), "next_check_at": later, ended: text}


class SourceFile(models.Model):
    """A version of a file of a source that was taken, with its import or why there is none."""

    # No index of its own: the constraint below begins with it.
    source = models.ForeignKey(ImportSource, on_delete=models.CASCADE, related_name="files", db_index=False)
    path = models.CharField(max_length=1000)
    version = models.CharField(max_length=200, help_text="Size and digest or time: another one is imported.")
    file_import = models.ForeignKey(
        "annotation.FileImport", on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    error = models.TextField(blank=True, help_text="Why it could not be imported; empty if it could.")
    taken_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["source", "path"], name="source_file_once")]

    def __str__(self) -> str:
        return self.path
