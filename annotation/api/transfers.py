"""Import and export of judgments in files."""

from typing import Any

from django.db.models import QuerySet
from django.http import Http404, StreamingHttpResponse
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.parsers import MultiPartParser

from annotation.api import fields
from annotation.api.base import ApiView, Filters, ProjectView, attachment, storable
from annotation.api.operations import PROJECT, Resource, Values
from annotation.choices import ImportState, Split
from annotation.exchange.file_exports import (
    COMPARISONS,
    MOST_COMPARISONS,
    TYPES,
    Export,
    ExportFilters,
    dropped_lines,
    export_of,
    file_name,
    manifest_of,
    pieces_of,
)
from annotation.exchange.formats.columns import MANY, TARGETS
from annotation.exchange.formats.registry import READERS, WRITERS
from annotation.exchange.uploads import (
    CHECKED_ROWS,
    SHOWN_ROWS,
    Preview,
    accounts_of,
    correct_plan,
    discard_upload,
    preview_of,
    receive_upload,
    request_undo,
    start_import,
)
from annotation.models import FileImport


class InFormatSerializer(serializers.Serializer[Any]):
    """An import format."""

    name = fields.text()
    sentence = fields.text("What it is.")


class OutFormatSerializer(InFormatSerializer):
    """An export format."""

    container = fields.choice(list(TYPES))
    carries_context = fields.flag("Whether it has a place for context passages.")


class FormatsSerializer(serializers.Serializer[Any]):
    """All formats, and the columns that a mapping may name."""

    incoming = InFormatSerializer(many=True)
    outgoing = OutFormatSerializer(many=True)
    columns = fields.several(fields.text())


class ColumnSerializer(serializers.Serializer[Any]):
    """What becomes of one column of a file."""

    name = fields.text()
    rows = fields.integer("Rows that have a value in it.")
    kind = fields.choice(
        ["read", "metadata", "left_out", "not_read", "question"],
        "A `question` must be answered before the import: give the column a role, or leave it out.",
    )
    role = fields.text("Empty where it has none.")
    reading = fields.text("What it is read as, or why it is not read.")
    line = fields.text("The account in words.")


@extend_schema_field({"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})
class Named(serializers.Field[Any, Any, Any, Any]):
    """The name of a column, or a list of names."""

    def to_internal_value(self, data: Any) -> str | list[str]:
        """Accept a text or a list of texts that a database can store."""
        names = [data] if isinstance(data, str) else data
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise serializers.ValidationError(_("The name of a column, or a list of names, is expected."))
        if any(not name or len(name) > 500 or not storable({name: ""}) for name in names):
            raise serializers.ValidationError(_("A column's name holds a character that no text has."))
        return data if isinstance(data, str) else list(names)

    def to_representation(self, value: Any) -> Any:
        """Return it as it is."""
        return value


@fields.of(
    FileImport,
    "id name size format mapping leave_out meanings columns skip_bad state rows_total rows_done",
    "counts errors errors_total created_by created_at finished_at",
)
class ImportSerializer(serializers.ModelSerializer[FileImport]):
    """A file import and its progress."""

    mapping = serializers.DictField(
        child=Named(),
        help_text=f"Role → column of the file, where the names differ; a list for {', '.join(MANY)}.",
    )
    leave_out = fields.several(fields.text(), "Columns that are not read because somebody said so.")
    meanings = serializers.DictField(
        child=fields.text(), help_text="Value of the column of winners → what it means."
    )
    columns = fields.computed("Every column of the file, and what becomes of it.")
    counts = serializers.DictField(child=fields.integer(), help_text="What was added.")
    errors = fields.several(fields.text(), "The first, by row.")  # type: ignore[assignment]
    created_by = fields.text("Empty for a command's.", source="created_by.username", default="")

    @extend_schema_field(ColumnSerializer(many=True))
    def get_columns(self, record: FileImport) -> Any:
        """Return the account of the columns."""
        return ColumnSerializer(accounts_of(record.account), many=True).data


class UndoSerializer(serializers.Serializer[Any]):
    """How far an undoing goes."""

    deletes_used = fields.flag("Delete what people annotated or used, too.", default=False)


class UploadSerializer(serializers.Serializer[Any]):
    """A file to import: JSON Lines, JSON or CSV."""

    file = serializers.FileField(max_length=255, allow_empty_file=True)


class PlanSerializer(serializers.Serializer[Any]):
    """The format and the column mapping of a file."""

    format = fields.choice(list(READERS), "Left out, it is guessed.", required=False)
    mapping = serializers.DictField(
        child=Named(),
        required=False,
        help_text=f"Role → column of the file, where the names differ; a list for {', '.join(MANY)}.",
    )
    leave_out = fields.several(
        fields.text(most=500), "Columns that are not read.", required=False, most=2_000
    )
    meanings = serializers.DictField(
        child=fields.text(most=500),
        required=False,
        help_text="Value of the column of winners → the name of an answer (also with its strength, as "
        "`answer_2:3`), `equal`, `both_good`, `both_bad` or `cannot_judge`.",
    )

    def validate_mapping(self, value: dict[str, Any]) -> dict[str, Any]:
        """Refuse unknown roles."""
        if unknown := sorted(set(value) - set(TARGETS)):
            raise serializers.ValidationError(
                _("No format has a column %(name)r.") % {"name": unknown[0][:60]}
            )
        return value

    def validate_meanings(self, value: dict[str, str]) -> dict[str, str]:
        """Refuse values that no database can store."""
        if not storable(value):
            raise serializers.ValidationError(_("A value holds a character that no text has."))
        return value


class StartSerializer(serializers.Serializer[Any]):
    """The handling of bad rows."""

    skip_bad = fields.flag("Leave them out and list them; else one refuses the file.", default=False)


class PreviewSerializer(serializers.Serializer[Any]):
    """The first rows of a file under its current plan."""

    columns = fields.several(fields.text(), "Of the file.")
    account = ColumnSerializer(many=True, help_text="Every column, and what becomes of it.")
    rows = fields.several(
        serializers.DictField(),
        f"The first {SHOWN_ROWS}, by the roles of their columns; long values are cut.",
        source="rows_by_role",
    )
    faults = fields.several(fields.text(), "Rows that the import would refuse: row, field and remedy.")
    checked_rows = fields.integer(
        f"Rows that were checked for faults, {CHECKED_ROWS} at the most; the import checks all."
    )


class ImportFilters(Filters):
    """Filters of imports."""

    state = fields.choice(ImportState.choices, required=False)


class ExportQuery(Filters):
    """Filters of an export."""

    rounds = serializers.RegexField(
        r"^\d{1,6}(,\d{1,6}){0,99}$", required=False, help_text="Numbers with commas; all when left out."
    )
    split = fields.choice(Split.choices, "Both when left out.", required=False)
    machines = fields.flag("With the judgments of programs.", default=False)
    annotator = serializers.UUIDField(required=False, help_text="A pseudonym, as exports write it.")
    since = serializers.DateField(required=False, help_text="The first day, in the server's time zone.")
    until = serializers.DateField(required=False, help_text="The last day, inclusive.")
    tag = fields.text("A tag of the prompt.", required=False, most=200)
    category = fields.text(
        "The key of a category: judgments with a span or missing information of it.", required=False, most=100
    )
    comparisons = serializers.RegexField(
        COMPARISONS, required=False, help_text=f"Ids with commas, {MOST_COMPARISONS} at most."
    )


class ManifestSerializer(serializers.Serializer[Any]):
    """An export's content, filters, and number of dropped things by reason."""

    manifest = serializers.DictField()


def _imports(view: ProjectView) -> QuerySet[FileImport]:
    return FileImport.objects.filter(project=view.project).select_related("project", "created_by")


class UploadView(ProjectView):
    """A view that receives files."""

    parser_classes = (MultiPartParser,)  # type: ignore[assignment]


formats = Resource(ApiView, "formats/", tag="transfers")
imports = Resource(UploadView, f"{PROJECT}imports/", tag="transfers", rows=_imports)
file_import = Resource(
    ProjectView,
    f"{PROJECT}imports/<int:pk>/",
    tag="transfers",
    find=lambda view, pk: get_object_or_404(_imports(view), pk=pk),
)
exports = Resource(ProjectView, f"{PROJECT}exports/<slug:format_name>/", tag="transfers")

imports.add_list(
    "imports_list",
    ImportSerializer,
    "List files that were uploaded or imported by a command, newest first.",
    filters=ImportFilters,
)
file_import.add_read(
    "imports_read", ImportSerializer, "Read an import's plan, progress, counts and faulty rows."
)


@formats.get(returns=FormatsSerializer)
def formats_list(view: ApiView) -> Values:
    """List import and export formats, and the columns that a mapping may name."""
    return {"incoming": READERS.values(), "outgoing": WRITERS.values(), "columns": TARGETS}


# The same file in the same project is one row, so repeating the request is harmless.
@imports.post(takes=UploadSerializer, returns=ImportSerializer, status=201, keeps_answers=False)
def imports_upload(view: ProjectView, values: Values) -> FileImport:
    """Upload a file and guess its format and columns. Nothing is imported yet."""
    return receive_upload(project=view.project, upload=values["file"], user=view.user)


@file_import.patch(takes=PlanSerializer, returns=ImportSerializer)
def imports_correct(view: ProjectView, record: FileImport, values: Values) -> FileImport:
    """Set the format and the columns of a file; fields left out are guessed again. Honours `If-Match`."""
    _require_file(record)
    correct_plan(
        record=record,
        format_name=values.get("format", ""),
        mapping=values.get("mapping", {}),
        leave_out=values.get("leave_out", []),
        meanings=values.get("meanings", {}),
        user=view.user,
    )
    return record


@file_import.delete()
def imports_discard(view: ProjectView, record: FileImport) -> None:
    """Delete an uploaded file. Imported rows stay."""
    discard_upload(record=record, user=view.user)


@file_import.get("preview/", returns=PreviewSerializer)
def imports_preview(view: ProjectView, record: FileImport) -> Preview:
    """Read the first rows under the current plan. 404 once the import has started."""
    preview = preview_of(record)
    if preview is None:
        raise Http404
    return preview


@file_import.post("start/", takes=StartSerializer, returns=ImportSerializer, status=202)
def imports_start(view: ProjectView, record: FileImport, values: Values) -> FileImport:
    """Start the import: a worker checks the whole file, then imports it. Poll its `state`."""
    _require_file(record)
    start_import(record=record, skip_bad=values["skip_bad"], user=view.user)
    return record


@file_import.post("undo/", takes=UndoSerializer, returns=ImportSerializer, status=202)
def imports_undo(view: ProjectView, record: FileImport, values: Values) -> FileImport:
    """Delete what an import brought. Refused where people annotated or use it, unless `deletes_used` is true;
    then it can be brought back for a day. Poll its `state`."""
    request_undo(record=record, user=view.user, deletes_used=values["deletes_used"])
    record.refresh_from_db()
    return record


@exports.get(
    filters=ExportQuery,
    files={
        (200, "application/jsonl"): OpenApiTypes.BINARY,
        (200, "text/csv"): OpenApiTypes.BINARY,
        (200, "application/json"): OpenApiTypes.ANY,
        (200, "application/vnd.apache.parquet"): OpenApiTypes.BINARY,
    },
)
def exports_download(view: ProjectView, query: Values, format_name: str) -> StreamingHttpResponse:
    """Download current judgments, without superseded ones, gold and qualification items."""
    export = _export(view, query, format_name)
    content_type = TYPES[export.writer.container][0]
    return attachment(pieces_of(export), name=file_name(export), content_type=content_type)


@exports.get("manifest/", filters=ExportQuery, returns=ManifestSerializer)
def exports_manifest(view: ProjectView, query: Values, format_name: str) -> Values:
    """Read an export's content, its filters, and the number of dropped things by reason."""
    return {"manifest": manifest_of(_export(view, query, format_name))}


@exports.get("dropped/", filters=ExportQuery, files={(200, "application/jsonl"): OpenApiTypes.BINARY})
def exports_dropped(view: ProjectView, query: Values, format_name: str) -> StreamingHttpResponse:
    """Download the things that the format cannot carry, with judgment and reason, one per line."""
    # Called before the first line is sent, so that an error becomes a problem response.
    name = f"{view.project.slug}-{_export(view, query, format_name).writer.name}.dropped.jsonl"
    lines = dropped_lines(lambda on_drop: _export(view, query, format_name, on_drop=on_drop))
    return attachment(lines, name=name, content_type="application/jsonl")


def _export(view: ProjectView, query: Values, format_name: str, **more: Any) -> Export:
    """Return the export with the filters of a request. 404 for an unknown format."""
    if format_name not in WRITERS:
        raise Http404
    return export_of(
        project=view.project,
        format_name=format_name,
        filters=ExportFilters(
            rounds=[int(number) for number in query["rounds"].split(",")] if "rounds" in query else None,
            machines=query["machines"],
            split=query.get("split", ""),
            annotator=str(query.get("annotator", "")),
            since=query.get("since"),
            until=query.get("until"),
            tag=query.get("tag", ""),
            category=query.get("category", ""),
            comparisons=[int(number) for number in query.get("comparisons", "").split(",") if number],
        ),
        **more,
    )


def _require_file(record: FileImport) -> None:
    """Raise 404 if the file was imported or deleted and cannot be read again."""
    if not record.stored_as:
        raise Http404
