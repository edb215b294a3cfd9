"""What comes into a project from files."""

from django.conf import settings
from django.db import models

from annotation.choices import ImportState


class FileImport(models.Model):
    """One file that is brought into one project, and how far that has come.

    Written by `annotation.services.file_imports` alone. The same content in the same project is one row, so
    that an import that was cut off goes on where it stopped, and a second one adds nothing.
    """

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
    mapping = models.JSONField(
        default=dict, blank=True, help_text="Column of the format → column of the file."
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
    worker = models.CharField(max_length=120, blank=True)
    heartbeat_at = models.DateTimeField(null=True, blank=True)
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

    @property
    def percent(self) -> int:
        """How much of it is in the database, 0 to 100."""
        return 100 * self.rows_done // self.rows_total if self.rows_total else 0
