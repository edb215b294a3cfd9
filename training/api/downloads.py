"""Files of runs and checkpoints, to be taken away."""

from django.http import Http404, HttpResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request

from annotation.api.downloads import FileView, attachment
from annotation.choices import JobState
from training.api.checkpoints import OfCheckpoint
from training.api.runs import OfRun
from training.files.shared import fetched
from training.selectors.evaluation_report import report_of
from training.services.registry.exports import archive_name
from training.services.runs.archives import zip_of_folder
from training.services.runs.run_downloads import archive_of, events_of
from training.views.evaluations import report_file

_ZIP = "application/zip"


class ArchiveView(FileView, OfRun):
    """The folder of a run. For managers."""

    @extend_schema(operation_id="runs_archive", tags=["runs"], responses={(200, _ZIP): OpenApiTypes.BINARY})
    def get(self, request: Request, pk: int) -> StreamingHttpResponse:
        """Download everything in a run's folder as a ZIP archive, without secrets."""
        name, pieces = archive_of(self.run(pk))
        return attachment(pieces, name=name, content_type=_ZIP)


class EventsView(FileView, OfRun):
    """The metrics of a run for TensorBoard. For managers."""

    @extend_schema(
        operation_id="runs_events",
        tags=["runs"],
        responses={(200, "application/octet-stream"): OpenApiTypes.BINARY},
    )
    def get(self, request: Request, pk: int) -> StreamingHttpResponse:
        """Download a run's metrics as an event file."""
        name, pieces = events_of(self.run(pk))
        return attachment(pieces, name=name, content_type="application/octet-stream")


class EvaluationView(FileView, OfCheckpoint):
    """The evaluation report of a checkpoint. For managers."""

    @extend_schema(
        operation_id="checkpoints_evaluation",
        tags=["checkpoints"],
        responses={(200, "text/html"): OpenApiTypes.BINARY},
    )
    def get(self, request: Request, name: str) -> HttpResponse:
        """Download the report as one HTML file without script. 404 before anything was evaluated."""
        report = report_of(self.checkpoint(name))
        if report is None:
            raise Http404
        answer = HttpResponse(report_file(report), content_type="text/html; charset=utf-8")
        answer["Content-Disposition"] = f'attachment; filename="{name}-evaluation.html"'
        return answer


class ExportArchiveView(FileView, OfCheckpoint):
    """An exported folder. For managers."""

    @extend_schema(
        operation_id="exports_archive",
        tags=["checkpoints"],
        responses={(200, _ZIP): OpenApiTypes.BINARY},
    )
    def get(self, request: Request, name: str, pk: int) -> StreamingHttpResponse:
        """Download a finished export of a checkpoint as a ZIP archive. 404 for one that is gone."""
        checkpoint = self.checkpoint(name)
        exported = get_object_or_404(checkpoint.exports, pk=pk, state=JobState.FINISHED)
        if not exported.folder or not fetched(exported.path).is_dir():
            raise Http404
        pieces = zip_of_folder(exported.path, name=checkpoint.name)
        return attachment(pieces, name=f"{archive_name(exported)}.zip", content_type=_ZIP)
