"""Files of judgments that come in and go out."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from django.db.models import QuerySet
from django.http import Http404, StreamingHttpResponse
from django.shortcuts import get_object_or_404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.base import ApiView, Filters, ListView, ProjectView, read_body, read_filters, storable
from annotation.api.downloads import FileView, attachment
from annotation.choices import ImportState, Split
from annotation.formats.columns import TARGETS
from annotation.formats.registry import READERS
from annotation.models import FileImport
from annotation.services.export_files import (
    TYPES,
    dropped_lines,
    export_of,
    file_name,
    manifest_of,
    pieces_of,
)
from annotation.services.file_exports import WRITERS, Export
from annotation.services.previews import CHECKED_ROWS, SHOWN_ROWS, preview_of
from annotation.services.uploads import correct_plan, discard_upload, receive_upload, start_import


class InFormatSerializer(serializers.Serializer[Any]):
    """A format that comes in."""

    name = serializers.CharField()
    sentence = serializers.CharField(help_text="What it is.")


class OutFormatSerializer(InFormatSerializer):
    """A format that goes out."""

    container = serializers.ChoiceField(choices=list(TYPES))
    carries_context = serializers.BooleanField(help_text="Whether it has a place for context passages.")


class FormatsSerializer(serializers.Serializer[Any]):
    """All formats, and the columns that a mapping may name."""

    incoming = InFormatSerializer(many=True)
    outgoing = OutFormatSerializer(many=True)
    columns = serializers.ListField(child=serializers.CharField())


class ImportSerializer(serializers.ModelSerializer[FileImport]):
    """One file, and how far it has come."""

    mapping = serializers.DictField(
        child=serializers.CharField(), help_text="Column of the format → column of the file."
    )
    counts = serializers.DictField(child=serializers.IntegerField(), help_text="What was added.")
    errors = serializers.ListField(  # type: ignore[assignment]
        child=serializers.CharField(), help_text="The first, by row."
    )
    created_by = serializers.CharField(
        source="created_by.username", default="", help_text="Empty for a command's."
    )

    class Meta:
        model = FileImport
        fields = (
            *("id", "name", "size", "format", "mapping", "skip_bad", "state", "rows_total", "rows_done"),
            *("counts", "errors", "errors_total", "created_by", "created_at", "finished_at"),
        )


class UploadSerializer(serializers.Serializer[Any]):
    """A file to be brought in: JSON Lines, JSON or CSV."""

    file = serializers.FileField(max_length=255, allow_empty_file=True)


class PlanSerializer(serializers.Serializer[Any]):
    """How a file is to be read."""

    format = serializers.ChoiceField(
        choices=list(READERS), required=False, help_text="Left out, it is guessed."
    )
    mapping = serializers.DictField(
        child=serializers.CharField(max_length=500),
        required=False,
        help_text="Column of the format → column of the file, where the names differ.",
    )

    def validate_mapping(self, value: dict[str, str]) -> dict[str, str]:
        """Names that there are, of characters that every database takes."""
        if unknown := sorted(set(value) - set(TARGETS)):
            raise serializers.ValidationError(f"No format has a column {unknown[0][:60]!r}.")
        if not storable(value):
            raise serializers.ValidationError("A column's name holds a character that no text has.")
        return value


class StartSerializer(serializers.Serializer[Any]):
    """What becomes of bad rows."""

    skip_bad = serializers.BooleanField(
        required=False, default=False, help_text="Leave them out and list them; else one refuses the file."
    )


class PreviewSerializer(serializers.Serializer[Any]):
    """The beginning of a file as it would be read now."""

    columns = serializers.ListField(child=serializers.CharField(), help_text="Of the file.")
    rows = serializers.ListField(
        child=serializers.DictField(), help_text=f"The first {SHOWN_ROWS}, by the names of the format."
    )
    faults = serializers.ListField(
        child=serializers.CharField(), help_text="Rows that the import would refuse: row, field and remedy."
    )
    checked_rows = serializers.IntegerField(
        help_text=f"Rows that were checked for faults, {CHECKED_ROWS} at the most; the import checks all."
    )


class ImportFilters(Filters):
    """Filters of imports."""

    state = serializers.ChoiceField(choices=ImportState.choices, required=False)


class ExportFilters(Filters):
    """What of a project's judgments goes out."""

    rounds = serializers.RegexField(
        r"^\d{1,6}(,\d{1,6}){0,99}$", required=False, help_text="Numbers with commas; all when left out."
    )
    split = serializers.ChoiceField(choices=Split.choices, required=False, help_text="Both when left out.")
    machines = serializers.BooleanField(
        required=False, default=False, help_text="With the judgments of programs."
    )


class ManifestSerializer(serializers.Serializer[Any]):
    """What an export holds, by which filters, and how much of it was dropped, and why."""

    manifest = serializers.DictField()


class FormatsView(ApiView):
    """What comes in and goes out. For everyone."""

    @extend_schema(operation_id="formats_list", tags=["transfers"], responses=FormatsSerializer)
    def get(self, request: Request) -> Response:
        """List the formats of files, and the columns that a mapping may name."""
        told = {"incoming": READERS.values(), "outgoing": WRITERS.values(), "columns": TARGETS}
        return Response(FormatsSerializer(told).data)


class ImportsView(ListView, ProjectView):
    """The files that come into a project. For managers."""

    parser_classes = (MultiPartParser,)  # type: ignore[assignment]
    # The same file in the same project is one row, whatever is sent twice.
    keeps_answers = False
    serializer_class = ImportSerializer
    queryset = FileImport.objects.none()
    filters = ImportFilters

    def rows(self, asked: Mapping[str, Any]) -> QuerySet[Any]:
        """By state."""
        return self.project.file_imports.select_related("created_by").filter(**asked)

    @extend_schema(
        operation_id="imports_list",
        tags=["transfers"],
        parameters=[ImportFilters],
        responses=ImportSerializer(many=True),
    )
    def get(self, request: Request, slug: str) -> Response:
        """List the files that were uploaded or brought in by a command, newest first."""
        return self.listed()

    @extend_schema(
        operation_id="imports_upload",
        tags=["transfers"],
        request=UploadSerializer,
        responses={201: ImportSerializer},
    )
    def post(self, request: Request, slug: str) -> Response:
        """Upload a file and have its format and columns guessed. Nothing is imported yet."""
        told = read_body(UploadSerializer, request)
        record = receive_upload(project=self.project, upload=told["file"], user=self.user)
        return Response(ImportSerializer(record).data, status=201)


class OfImport(ProjectView):
    """Something of the import in the address. For managers."""

    def record(self, pk: int) -> FileImport:
        """The import in the address."""
        return get_object_or_404(
            FileImport.objects.select_related("project", "created_by"), pk=pk, project=self.project
        )


class ImportView(OfImport):
    """One file on its way in. For managers."""

    @extend_schema(operation_id="imports_read", tags=["transfers"], responses=ImportSerializer)
    def get(self, request: Request, slug: str, pk: int) -> Response:
        """Read how a file is read, how far it has come, what it added, and which rows are wrong."""
        return Response(ImportSerializer(self.record(pk)).data)

    @extend_schema(
        operation_id="imports_correct", tags=["transfers"], request=PlanSerializer, responses=ImportSerializer
    )
    def patch(self, request: Request, slug: str, pk: int) -> Response:
        """Say what format a file has and what its columns are; what is left out is guessed anew. Honours
        `If-Match`."""
        record = self.record(pk)
        self.require_match(ImportSerializer(record).data)
        told = read_body(PlanSerializer, request)
        _require_file(record)
        correct_plan(
            record=record,
            format_name=told.get("format", ""),
            mapping=told.get("mapping", {}),
            user=self.user,
        )
        return Response(ImportSerializer(record).data)

    @extend_schema(operation_id="imports_discard", tags=["transfers"], responses={204: None})
    def delete(self, request: Request, slug: str, pk: int) -> Response:
        """Delete an uploaded file. What was imported of it stays."""
        discard_upload(record=self.record(pk), user=self.user)
        return Response(status=204)


class PreviewView(OfImport):
    """The beginning of an uploaded file. For managers."""

    @extend_schema(operation_id="imports_preview", tags=["transfers"], responses=PreviewSerializer)
    def get(self, request: Request, slug: str, pk: int) -> Response:
        """Read the first rows as they would be read now. 404 once the file is on its way or in."""
        preview = preview_of(self.record(pk))
        if preview is None:
            raise Http404
        return Response(PreviewSerializer(preview).data)


class StartView(OfImport):
    """An uploaded file that is brought in. For managers."""

    @extend_schema(
        operation_id="imports_start",
        tags=["transfers"],
        request=StartSerializer,
        responses={202: ImportSerializer},
    )
    def post(self, request: Request, slug: str, pk: int) -> Response:
        """Have a worker look the whole file through and bring it in. Follow it by its `state`."""
        record = self.record(pk)
        _require_file(record)
        start_import(record=record, skip_bad=read_body(StartSerializer, request)["skip_bad"], user=self.user)
        return Response(ImportSerializer(record).data, status=202)


class OfExport(ProjectView):
    """Something of an export of the project. For managers."""

    def export(self, format_name: str, **more: Any) -> Export:
        """The export by the filters of this request. 404 for a format that there is not."""
        if format_name not in WRITERS:
            raise Http404
        asked = read_filters(ExportFilters, self.request)
        rounds = [int(number) for number in asked["rounds"].split(",")] if "rounds" in asked else None
        return export_of(
            project=self.project,
            format_name=format_name,
            rounds=rounds,
            split=asked.get("split", ""),
            machines=asked["machines"],
            **more,
        )


class ExportView(FileView, OfExport):
    """A project's judgments in a file. For managers."""

    @extend_schema(
        operation_id="exports_download",
        tags=["transfers"],
        parameters=[ExportFilters],
        responses={
            (200, "application/jsonl"): OpenApiTypes.BINARY,
            (200, "text/csv"): OpenApiTypes.BINARY,
            (200, "application/json"): OpenApiTypes.ANY,
            (200, "application/vnd.apache.parquet"): OpenApiTypes.BINARY,
        },
    )
    def get(self, request: Request, slug: str, format_name: str) -> StreamingHttpResponse:
        """Download what stands of the work's judgments: none superseded, no gold, no qualification."""
        made = self.export(format_name)
        content_type = TYPES[made.writer.container][0]
        return attachment(pieces_of(made), name=file_name(made), content_type=content_type)


class ManifestView(OfExport):
    """The account of an export. For managers."""

    @extend_schema(
        operation_id="exports_manifest",
        tags=["transfers"],
        parameters=[ExportFilters],
        responses=ManifestSerializer,
    )
    def get(self, request: Request, slug: str, format_name: str) -> Response:
        """Tell what an export holds, by which filters, and how much a format cannot carry, by reason."""
        return Response({"manifest": manifest_of(self.export(format_name))})


class DroppedView(FileView, OfExport):
    """What an export leaves out. For managers."""

    @extend_schema(
        operation_id="exports_dropped",
        tags=["transfers"],
        parameters=[ExportFilters],
        responses={(200, "application/jsonl"): OpenApiTypes.BINARY},
    )
    def get(self, request: Request, slug: str, format_name: str) -> StreamingHttpResponse:
        """Download each thing that a format cannot carry, with its judgment and the reason, line by line."""
        # Looked at before the first line goes, so that what is wrong is told as a problem.
        name = f"{self.project.slug}-{self.export(format_name).writer.name}.dropped.jsonl"
        make = partial(self.export, format_name)
        lines = dropped_lines(lambda told: make(on_drop=told))
        return attachment(lines, name=name, content_type="application/jsonl")


def _require_file(record: FileImport) -> None:
    """What is in, or was deleted, has no file that could be read again."""
    if not record.stored_as:
        raise Http404
