"""Files in and out of a project: upload, look through, correct, import; and download."""

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from annotation.choices import ImportState, Role
from annotation.errors import Refusal
from annotation.formats.columns import TARGETS
from annotation.formats.registry import READERS
from annotation.models import FileImport, Project
from annotation.services.export_files import TYPES, file_name, pieces_of
from annotation.services.file_exports import WRITERS, Export
from annotation.services.previews import preview_of
from annotation.services.uploads import (
    BUSY,
    correct_plan,
    discard_upload,
    receive_upload,
    start_import,
)
from annotation.views.access import Request, project_page

_LISTED = 50


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def transfers(request: Request, project: Project) -> HttpResponse:
    """What came in from files, a form for another, and every format that goes out. For managers."""
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
        "writers": WRITERS.values(),
        "error": error,
    }
    return render(request, "annotation/transfers/transfers.html", context, status=422 if error else 200)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def transfer(request: Request, project: Project, pk: int) -> HttpResponse:
    """One file: what it seems to be, its first rows, and how far it has come. For managers."""
    record = get_object_or_404(FileImport.objects.select_related("project"), pk=pk, project=project)
    error = ""
    if request.method == "POST":
        try:
            if (to := _done(request, record)) is not None:
                return to
            error = _("Choose what to do with the file.")
        except Refusal as refusal:
            error = refusal.message
    if request.htmx and request.method == "GET":
        return render(request, "annotation/transfers/progress.html", _progress(project, record))
    try:
        preview = _looked_through(record)
    except Refusal as refusal:
        preview, error = {"readable": False}, error or refusal.message
    context = {**_progress(project, record), **preview, "error": error}
    return render(request, "annotation/transfers/transfer.html", context, status=422 if error else 200)


def _done(request: Request, record: FileImport) -> HttpResponse | None:
    """Do what the form asks for; None where it asks for nothing."""
    action = request.POST.get("action", "")
    slug = record.project.slug
    if action == "discard":
        discard_upload(record=record, user=request.user)
        messages.success(request, _("The file is deleted."))
        return redirect("transfers", slug)
    if action in ("correct", "start"):
        mapping = {ours: theirs for ours in TARGETS if (theirs := request.POST.get(f"map_{ours}", ""))}
        correct_plan(
            record=record, format_name=request.POST.get("format", ""), mapping=mapping, user=request.user
        )
    if action == "start":
        start_import(record=record, skip_bad="skip_bad" in request.POST, user=request.user)
    return redirect("transfer", slug, record.pk) if action in ("correct", "start") else None


def _progress(project: Project, record: FileImport) -> dict[str, Any]:
    return {
        "project": project,
        "record": record,
        "goes_on": record.state in BUSY,
        "finished": record.state == ImportState.FINISHED,
    }


def _looked_through(record: FileImport) -> dict[str, Any]:
    """The first rows as they are and as they are read, and the columns to choose from."""
    preview = preview_of(record)
    if preview is None:
        return {"readable": False}
    return {
        "readable": True,
        "formats": [(name, reader.sentence) for name, reader in READERS.items()],
        "targets": [(ours, record.mapping.get(ours, "")) for ours in TARGETS],
        "columns": preview.columns,
        "shown": preview.names,
        "rows": preview.shortened,
        "faults": preview.faults,
        "checked_rows": preview.checked_rows,
    }


@never_cache
@require_safe
@project_page(role=Role.MANAGER)
def export(request: Request, project: Project, format_name: str) -> HttpResponseBase:
    """The current judgments in one format, written while they are sent. For managers."""
    writer = WRITERS.get(format_name)
    if writer is None:
        raise Http404
    made = Export(project=project, writer=writer)
    answer = StreamingHttpResponse(pieces_of(made), content_type=TYPES[writer.container][0])
    answer["Content-Disposition"] = f'attachment; filename="{file_name(made)}"'
    return answer
