"""Checkpoints: what was trained, how it is described, checked, exported and deleted."""

from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from rest_framework import serializers

from annotation.api import fields
from annotation.api.base import ApiView, Filters, attachment
from annotation.api.operations import Resource, Values, superusers
from annotation.choices import JobState
from annotation.models import Project
from training.choices import CheckpointKind
from training.contract.checkpoint import CHECKPOINT_NAME
from training.figures.model_card import model_card
from training.files.shared import fetched
from training.models import Checkpoint, CheckpointExport
from training.selectors.checkpoints import card_of, found_checkpoints, latest_evaluation, uses_of
from training.selectors.evaluations import MetadataSlice, report_file, report_of, slices_of
from training.selectors.projects import checkpoints_for, require_manager
from training.services.checkpoint_exports import archive_name, request_export
from training.services.checkpoint_files import check_files, delete_files
from training.services.checkpoints import (
    LONGEST_NOTE,
    MOST_TAGS,
    TAG,
    describe_checkpoint,
    register_served_model,
)
from training.services.runs.files import zip_of_folder


@fields.of(
    Checkpoint, "name kind project base_model parent run digest tags notes files_deleted_at created_at"
)
class CheckpointSerializer(serializers.ModelSerializer[Checkpoint]):
    """A trained model: adapter and heads on a base model, or the base model itself."""

    project = serializers.SlugField(source="project.slug", default=None, allow_null=True)
    parent = fields.text(source="parent.name", default=None, allow_null=True)  # type: ignore[assignment]
    run = fields.integer(source="run_id", allow_null=True)
    tags = fields.several(fields.text())


@fields.more("manifest needed_by evaluation")
class WholeCheckpointSerializer(CheckpointSerializer):
    """A checkpoint with its manifest, what needs it, and how it did against its parent."""

    manifest = serializers.DictField()
    needed_by = fields.computed("Why its files cannot be deleted.")
    evaluation = fields.computed("Figures against its parent; null before.")

    def get_needed_by(self, checkpoint: Checkpoint) -> list[str]:
        """In words."""
        return [use.what for use in uses_of(checkpoint)]

    def get_evaluation(self, checkpoint: Checkpoint) -> dict[str, Any] | None:
        """Of the newest finished one."""
        evaluation = latest_evaluation(checkpoint)
        if evaluation is None or evaluation.finished_at is None:
            return None
        return {"parent": evaluation.parent.name, "figures": evaluation.figures}


class CheckpointFilters(Filters):
    """Filters of checkpoints."""

    text = fields.text("Part of the name or the notes.", required=False)
    tag = fields.text(required=False)
    kind = fields.choice(CheckpointKind.choices, required=False)
    project = serializers.SlugField(required=False)
    round = fields.integer(
        "Number of the round that trained it.", required=False, least=1, most=fields.LARGEST_INTEGER
    )
    evaluated = fields.flag("Only those with a finished evaluation.", required=False)


class DescriptionSerializer(serializers.Serializer[Any]):
    """Tags and notes of a checkpoint."""

    tags = fields.several(serializers.RegexField(rf"^{TAG.pattern}$"), most=MOST_TAGS, required=False)
    notes = fields.text(
        "Markdown.", required=False, allow_blank=True, most=LONGEST_NOTE, trim_whitespace=False
    )


class FileSerializer(serializers.Serializer[Any]):
    """One file of a checkpoint's folder."""

    name = fields.text()
    state = fields.choice(["intact", "changed", "missing", "unknown"])
    expected = fields.text("The digest that was registered.")
    found = fields.text()
    size = fields.integer(allow_null=True)


class CardSerializer(serializers.Serializer[Any]):
    """A model card."""

    markdown = fields.text()


@fields.of(
    CheckpointExport,
    "id state merged repository private url current total message error created_at finished_at",
)
class ExportSerializer(serializers.ModelSerializer[CheckpointExport]):
    """A checkpoint as a folder that others load without Rondo."""


class NewExportSerializer(serializers.Serializer[Any]):
    """An export to be made."""

    merged = fields.flag("A whole model instead of the adapter alone.", default=False)
    repository = fields.text("Where on the hub; empty: here.", default="", most=200)
    private = fields.flag(default=True)


class ServedModelSerializer(serializers.Serializer[Any]):
    """A model of another OpenAI-compatible server, to be written down."""

    name = fields.text("What it is called here: letters, digits, . - _", most=100)
    url = fields.text("Of the server, such as https://models.example.org/v1", most=200)
    model = fields.text("Its name there; empty: the same.", most=200, default="")
    key = fields.text(
        "The environment variable with the server's key; its name begins with RONDO_SERVER_KEY_.",
        most=100,
        default="",
    )
    project = serializers.SlugRelatedField(
        slug_field="slug",
        queryset=Project.objects.all(),
        required=False,
        allow_null=True,
        default=None,
        help_text="Whose managers may use it; null: those of every project.",
    )


def named_checkpoint(checkpoints: QuerySet[Checkpoint], name: str | None) -> Checkpoint:
    """Return the checkpoint of this name that a body chooses. Raises `ValidationError` without one."""
    checkpoint = checkpoints.filter(name=name or "").first()
    if checkpoint is None:
        raise serializers.ValidationError({"checkpoint": [_("There is no such checkpoint.")]})
    return checkpoint


def _checkpoint(view: ApiView, name: str) -> Checkpoint:
    """Return a checkpoint; 404 for outsiders, 403 for members who manage nothing."""
    if not CHECKPOINT_NAME.fullmatch(name):
        # PostgreSQL takes no NUL, not even to look for.
        raise Http404
    related = ("project", "parent", "run__snapshot")
    checkpoint = get_object_or_404(Checkpoint.objects.select_related(*related), name=name)
    require_manager(view.user, checkpoint.project)
    return checkpoint


def _require_owner(view: ApiView, checkpoint: Checkpoint) -> None:
    """Refuse a change of a checkpoint that belongs to no project to all but superusers."""
    if checkpoint.project is None and not view.user.is_superuser:
        raise PermissionDenied


checkpoints = Resource(ApiView, "checkpoints/", tag="checkpoints")
checkpoint = checkpoints.item("<str:name>/", find=_checkpoint)

checkpoint.add_read(
    "checkpoints_read",
    WholeCheckpointSerializer,
    "Read a checkpoint with its manifest and how it did against its parent.",
)


@checkpoints.get_list(CheckpointSerializer, filters=CheckpointFilters)
def checkpoints_list(view: ApiView, query: Values) -> QuerySet[Checkpoint]:
    """List the checkpoints of the projects that one manages, and the starter models, newest first."""
    require_manager(view.user, None)
    text_filters = {name: query.get(name, "") for name in ("text", "tag", "kind")}
    checkpoints = found_checkpoints(
        checkpoints_for(view.user),
        **text_filters,
        round_number=query.get("round"),
        evaluated=bool(query.get("evaluated")),
    )
    return checkpoints.filter(project__slug=query["project"]) if "project" in query else checkpoints


@checkpoints.post(takes=ServedModelSerializer, returns=CheckpointSerializer, status=201, requires=superusers)
def checkpoints_serve(view: ApiView, values: Values) -> Checkpoint:
    """Write down a model that another OpenAI-compatible server answers for. For superusers."""
    return register_served_model(by=view.user, **values)


@checkpoint.patch(
    takes=DescriptionSerializer, returns=CheckpointSerializer, requires=_require_owner, locks=True
)
def checkpoints_describe(view: ApiView, checkpoint: Checkpoint, values: Values) -> Checkpoint:
    """Give it other tags or notes; what is not sent stays. Honours `If-Match`."""
    stored = {"tags": checkpoint.tags, "notes": checkpoint.notes}
    describe_checkpoint(checkpoint=checkpoint, described_by=view.user, **{**stored, **values})
    return checkpoint


@checkpoint.delete(requires=_require_owner)
def checkpoints_delete(view: ApiView, checkpoint: Checkpoint) -> None:
    """Delete its files; the record stays. 422 as long as anything needs them."""
    delete_files(checkpoint=checkpoint, deleted_by=view.user)


@checkpoint.get("card/", returns=CardSerializer)
def checkpoints_card(view: ApiView, checkpoint: Checkpoint) -> Values:
    """Read the model card."""
    return {"markdown": model_card(card_of(checkpoint))}


@checkpoint.post("verification/", returns=[FileSerializer], keeps_answers=False)
def checkpoints_verify(view: ApiView, checkpoint: Checkpoint) -> Any:
    """Read every file and tell what was found of each by its digest."""
    return check_files(checkpoint, in_store=True)


@checkpoint.get("evaluation/", files={(200, "text/html"): OpenApiTypes.BINARY})
def checkpoints_evaluation(view: ApiView, checkpoint: Checkpoint) -> HttpResponse:
    """Download the report as one HTML file without script. 404 before anything was evaluated."""
    report = report_of(checkpoint)
    if report is None:
        raise Http404
    answer = HttpResponse(report_file(report), content_type="text/html; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="{checkpoint.name}-evaluation.html"'
    return answer


class SliceFigureSerializer(serializers.Serializer[Any]):
    """A share with its 95 % interval."""

    value = fields.number()
    low = fields.number(allow_null=True)
    high = fields.number(allow_null=True)
    prompts = fields.integer("Prompts that it is measured on.")


class SliceSerializer(serializers.Serializer[Any]):
    """An evaluation on the prompts with one value of metadata."""

    value = fields.text("Null for prompts without one, and for the rest.", allow_null=True)
    is_rest = fields.flag("All values that are too many to list.")
    prompts = fields.integer()
    win_rate = SliceFigureSerializer(help_text="By the reward model.", allow_null=True)
    people = SliceFigureSerializer(help_text="Win rate by people.", allow_null=True)
    accuracy = SliceFigureSerializer(
        help_text="Share of prompts on which the reward model prefers what people prefer.", allow_null=True
    )


class SliceFilters(Filters):
    """The metadata by which an evaluation is sliced."""

    by = fields.text("A name of metadata.")


@checkpoint.get("evaluation/slices/", filters=SliceFilters, returns=[SliceSerializer])
def checkpoints_slices(view: ApiView, checkpoint: Checkpoint, query: Values) -> list[MetadataSlice]:
    """Read win rates and the accuracy of the reward model by metadata. 404 before anything was evaluated."""
    report = report_of(checkpoint)
    if report is None:
        raise Http404
    return slices_of(report.evaluation, report.people, query["by"])


@checkpoint.get_list(ExportSerializer, "exports/")
def exports_list(view: ApiView, checkpoint: Checkpoint) -> QuerySet[CheckpointExport]:
    """List the exports of a checkpoint with how they go, newest first."""
    return checkpoint.exports.all()


@checkpoint.post(
    "exports/",
    takes=NewExportSerializer,
    returns=ExportSerializer,
    status=202,
    requires=_require_owner,
)
def exports_request(view: ApiView, checkpoint: Checkpoint, values: Values) -> CheckpointExport:
    """Have it written as a folder for others, or pushed to a hub. A worker does it."""
    return request_export(checkpoint=checkpoint, requested_by=view.user, **values)


@checkpoint.get("exports/<int:pk>/archive/", files={(200, "application/zip"): OpenApiTypes.BINARY})
def exports_archive(view: ApiView, checkpoint: Checkpoint, pk: int) -> StreamingHttpResponse:
    """Download a finished export of a checkpoint as a ZIP archive. 404 for one that is gone."""
    exported = get_object_or_404(checkpoint.exports, pk=pk, state=JobState.FINISHED)
    if not exported.folder or not fetched(exported.path).is_dir():
        raise Http404
    pieces = zip_of_folder(exported.path, name=checkpoint.name)
    return attachment(pieces, name=f"{archive_name(exported)}.zip", content_type="application/zip")
