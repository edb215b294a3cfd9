"""Files that were brought in."""

from django.contrib import admin

from annotation.admin.base import WrittenOnceAdmin
from annotation.models import FileImport


@admin.register(FileImport)
class FileImportAdmin(WrittenOnceAdmin):
    """Imported files, read only: imports are started on a project's page."""

    list_display = [
        "name",
        "project",
        "format",
        "state",
        "rows_done",
        "errors_total",
        "created_by",
        "created_at",
    ]
    list_filter = ["state", "format", "project", "created_at"]
    list_select_related = ["project", "created_by"]
    search_fields = ["name", "digest", "project__name", "project__slug", "created_by__username"]
