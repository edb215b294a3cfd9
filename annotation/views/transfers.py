"""Import of files: upload, preview, correct, import."""

from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from annotation.choices import ImportState, Role
from annotation.errors import Refusal
from annotation.exchange.formats.registry import READERS
from annotation.exchange.undo import request_undo
from annotation.exchange.uploads import (
    BUSY,
    accounts_of,
    correct_plan,
    discard_upload,
    preview_of,
    receive_upload,
    start_import,
)
from annotation.models import FileImport, Project
from annotation.selectors.jobs import imports_ahead
from annotation.views.access import Request, project_page
from annotation.views.import_columns import ColumnChoices, shown_columns

_LISTED = 50


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def transfers(request: Request, project: Project) -> HttpResponse:
    """List file imports, with an upload form and the way to the export. For managers."""
    error = ""
    if request.method == "POST":
        upload = request.FILES.get("file")
        if upload is None:
            error = _("Choose a file.")
        else:
            try:
                record = receive_upload(project=project, upload=upload, user=request.user)
                return redirect("transfer", project.slug, record.pk)
            except Refusal as refusal:
                error = refusal.message
    context = {
        "project": project,
        "imports": project.file_imports.select_related("created_by")[:_LISTED],
        "error": error,
    }
    return render(request, "annotation/transfers/transfers.html", context, status=422 if error else 200)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def transfer(request: Request, project: Project, pk: int) -> HttpResponse:
    """Show an import: its plan, its first rows and its progress. For managers."""
    record = get_object_or_404(FileImport.objects.select_related("project"), pk=pk, project=project)
    error = ""
    if request.method == "POST":
        try:
            if (to := _execute(request, record)) is not None:
                return to
            error = _("Choose what to do with the file.")
        except Refusal as refusal:
            error = refusal.message
    if request.htmx and request.method == "GET":
        return render(request, "annotation/transfers/progress.html", _progress(project, record))
    try:
        preview = _preview_context(record)
    except Refusal as refusal:
        preview, error = {"readable": False}, error or refusal.message
    context = {**_progress(project, record), **preview, "error": error}
    return render(request, "annotation/transfers/transfer.html", context, status=422 if error else 200)


def _execute(request: Request, record: FileImport) -> HttpResponse | None:
    """Execute the action of the form; return None without one."""
    action = request.POST.get("action", "")
    slug = record.project.slug
    if action == "discard":
        discard_upload(record=record, user=request.user)
        messages.success(request, _("The file is deleted."))
        return redirect("transfers", slug)
    if action in ("correct", "start"):
        choices = ColumnChoices(request.POST, accounts_of(record.account), record.format)
        correct_plan(
            record=record,
            format_name=choices.format_name,
            mapping=choices.mapping,
            leave_out=choices.leave_out,
            meanings=choices.meanings,
            user=request.user,
        )
        record.refresh_from_db()
    if action == "undo":
        request_undo(record=record, user=request.user)
        return redirect("transfer", slug, record.pk)
    if action == "start":
        start_import(record=record, skip_bad="skip_bad" in request.POST, user=request.user)
    return redirect("transfer", slug, record.pk) if action in ("correct", "start") else None


def _progress(project: Project, record: FileImport) -> dict[str, Any]:
    return {
        "project": project,
        "record": record,
        "goes_on": record.state in BUSY,
        "ahead": imports_ahead(record),
        "finished": record.state == ImportState.FINISHED,
        "undoable": record.state in (ImportState.FINISHED, ImportState.FAILED) and record.rows_done > 0,
    }


def _preview_context(record: FileImport) -> dict[str, Any]:
    """Return the first rows, raw and as read, and the columns to choose from."""
    preview = preview_of(record)
    if preview is None:
        return {"readable": False, "columns": accounts_of(record.account)}
    return {
        "readable": True,
        "formats": [(name, reader.sentence) for name, reader in READERS.items()],
        "columns": shown_columns(preview),
        "questions": [column for column in preview.account if column.kind == "question"],
        "faults": preview.faults,
        "checked_rows": preview.checked_rows,
    }
