"""Checkpoints: what was trained, how it is described, checked, exported and deleted."""

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.base import ApiView, Filters, ListView, read_body
from annotation.models import Project
from training.choices import CheckpointKind
from training.contract import CHECKPOINT_NAME
from training.figures.model_card import model_card
from training.models import Checkpoint, CheckpointExport
from training.selectors.checkpoints import card_of, found_checkpoints, latest_evaluation, uses_of
from training.selectors.projects import checkpoints_for
from training.services.registry.descriptions import LONGEST_NOTE, MOST_TAGS, TAG, describe_checkpoint
from training.services.registry.exports import request_export
from training.services.registry.registry import delete_files
from training.services.registry.served_models import register_served_model
from training.services.registry.verification import check_files
from training.views.access import require_manager


class CheckpointSerializer(serializers.ModelSerializer[Checkpoint]):
    """A trained model: adapter and heads on a base model, or the base model itself."""

    project = serializers.SlugField(source="project.slug", default=None, allow_null=True)
    parent = serializers.CharField(source="parent.name", default=None, allow_null=True)  # type: ignore[assignment]
    run = serializers.IntegerField(source="run_id", allow_null=True)
    tags = serializers.ListField(child=serializers.CharField())

    class Meta:
        model = Checkpoint
        fields: tuple[str, ...] = (
            *("name", "kind", "project", "base_model", "parent", "run", "digest", "tags"),
            *("notes", "files_deleted_at", "created_at"),
        )


class WholeCheckpointSerializer(CheckpointSerializer):
    """A checkpoint with its manifest, what needs it, and how it did against its parent."""

    manifest = serializers.DictField()
    needed_by = serializers.SerializerMethodField(help_text="Why its files cannot be deleted.")
    evaluation = serializers.SerializerMethodField(help_text="Figures against its parent; null before.")

    class Meta(CheckpointSerializer.Meta):
        fields = (*CheckpointSerializer.Meta.fields, "manifest", "needed_by", "evaluation")

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

    text = serializers.CharField(required=False, help_text="Part of the name or the notes.")
    tag = serializers.CharField(required=False)
    kind = serializers.ChoiceField(choices=CheckpointKind.choices, required=False)
    project = serializers.SlugField(required=False)
    round = serializers.IntegerField(
        required=False, min_value=1, max_value=2**31 - 1, help_text="Number of the round that trained it."
    )
    evaluated = serializers.BooleanField(required=False, help_text="Only those with a finished evaluation.")


class DescriptionSerializer(serializers.Serializer[Any]):
    """Tags and notes of a checkpoint."""

    tags = serializers.ListField(
        child=serializers.RegexField(rf"^{TAG.pattern}$"), max_length=MOST_TAGS, required=False
    )
    notes = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=LONGEST_NOTE,
        trim_whitespace=False,
        help_text="Markdown.",
    )


class FileSerializer(serializers.Serializer[Any]):
    """One file of a checkpoint's folder."""

    name = serializers.CharField()
    state = serializers.ChoiceField(choices=["intact", "changed", "missing", "unknown"])
    expected = serializers.CharField(help_text="The digest that was registered.")
    found = serializers.CharField()
    size = serializers.IntegerField(allow_null=True)


class CardSerializer(serializers.Serializer[Any]):
    """A model card."""

    markdown = serializers.CharField()


class ExportSerializer(serializers.ModelSerializer[CheckpointExport]):
    """A checkpoint as a folder that others load without Rondo."""

    class Meta:
        model = CheckpointExport
        fields = (
            *("id", "state", "merged", "repository", "private", "url", "current", "total"),
            *("message", "error", "created_at", "finished_at"),
        )


class NewExportSerializer(serializers.Serializer[Any]):
    """An export to be made."""

    merged = serializers.BooleanField(
        required=False, default=False, help_text="A whole model instead of the adapter alone."
    )
    repository = serializers.CharField(
        required=False,
        default="",
        allow_blank=True,
        max_length=200,
        help_text="Where on the hub; empty: here.",
    )
    private = serializers.BooleanField(required=False, default=True)


class ServedModelSerializer(serializers.Serializer[Any]):
    """A model of another OpenAI-compatible server, to be written down."""

    name = serializers.CharField(max_length=100, help_text="What it is called here: letters, digits, . - _")
    url = serializers.CharField(
        max_length=200, help_text="Of the server, such as https://models.example.org/v1"
    )
    model = serializers.CharField(
        max_length=200,
        required=False,
        default="",
        allow_blank=True,
        help_text="Its name there; empty: the same.",
    )
    key = serializers.CharField(
        max_length=100,
        required=False,
        default="",
        allow_blank=True,
        help_text="The environment variable with the server's key; its name begins with RONDO_SERVER_KEY_.",
    )
    project = serializers.SlugRelatedField(
        slug_field="slug",
        queryset=Project.objects.all(),
        required=False,
        allow_null=True,
        default=None,
        help_text="Whose managers may use it; null: those of every project.",
    )


class CheckpointsView(ListView, ApiView):
    """The checkpoints of one's projects. For managers; superusers add models of other servers."""

    serializer_class = CheckpointSerializer
    queryset = Checkpoint.objects.none()
    filters = CheckpointFilters

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        """By text, tag, kind, round, evaluation and project."""
        require_manager(self.user, None)
        text_filters = {name: query.get(name, "") for name in ("text", "tag", "kind")}
        checkpoints = found_checkpoints(
            checkpoints_for(self.user),
            **text_filters,
            round_number=query.get("round"),
            evaluated=bool(query.get("evaluated")),
        )
        return checkpoints.filter(project__slug=query["project"]) if "project" in query else checkpoints

    @extend_schema(
        operation_id="checkpoints_list",
        tags=["checkpoints"],
        parameters=[CheckpointFilters],
        responses=CheckpointSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """List the checkpoints of the projects that one manages, and the starter models, newest first."""
        return self.listed()

    @extend_schema(
        operation_id="checkpoints_serve",
        tags=["checkpoints"],
        request=ServedModelSerializer,
        responses={201: CheckpointSerializer},
    )
    def post(self, request: Request) -> Response:
        """Write down a model that another OpenAI-compatible server answers for. For superusers."""
        self.require_superuser()
        added = register_served_model(by=self.user, **read_body(ServedModelSerializer, request))
        return Response(CheckpointSerializer(added).data, status=201)


class OfCheckpoint(ApiView):
    """Something of the checkpoint in the address. For managers."""

    def checkpoint(self, name: str) -> Checkpoint:
        """The checkpoint in the address; 404 for outsiders, 403 for members who manage nothing."""
        if not CHECKPOINT_NAME.fullmatch(name):
            # PostgreSQL takes no NUL, not even to look for.
            raise Http404
        related = ("project", "parent", "run__snapshot")
        checkpoint = get_object_or_404(Checkpoint.objects.select_related(*related), name=name)
        require_manager(self.user, checkpoint.project)
        return checkpoint

    def get_checkpoint(self, name: str) -> Checkpoint:
        """One that this person may change: one of no project is the superusers' business."""
        checkpoint = self.checkpoint(name)
        if checkpoint.project is None and not self.user.is_superuser:
            raise PermissionDenied
        return checkpoint


class CheckpointView(OfCheckpoint):
    """One checkpoint. For managers."""

    @extend_schema(operation_id="checkpoints_read", tags=["checkpoints"], responses=WholeCheckpointSerializer)
    def get(self, request: Request, name: str) -> Response:
        """Read a checkpoint with its manifest and how it did against its parent."""
        return Response(WholeCheckpointSerializer(self.checkpoint(name)).data)

    @extend_schema(
        operation_id="checkpoints_describe",
        tags=["checkpoints"],
        request=DescriptionSerializer,
        responses=CheckpointSerializer,
    )
    def patch(self, request: Request, name: str) -> Response:
        """Give it other tags or notes; what is not sent stays. Honours `If-Match`."""
        checkpoint = self.get_checkpoint(name)
        values = read_body(DescriptionSerializer, request)
        with transaction.atomic():
            locked = Checkpoint.objects.select_for_update(of=("self",)).get(pk=checkpoint.pk)
            self.require_match(WholeCheckpointSerializer(locked).data)
            describe_checkpoint(
                checkpoint=locked,
                tags=values.get("tags", locked.tags),
                notes=values.get("notes", locked.notes),
                described_by=self.user,
            )
        return Response(CheckpointSerializer(self.checkpoint(name)).data)

    @extend_schema(operation_id="checkpoints_delete", tags=["checkpoints"], responses={204: None})
    def delete(self, request: Request, name: str) -> Response:
        """Delete its files; the record stays. 422 as long as anything needs them."""
        delete_files(checkpoint=self.get_checkpoint(name), deleted_by=self.user)
        return Response(status=204)


class CardView(OfCheckpoint):
    """The card of a checkpoint. For managers."""

    @extend_schema(operation_id="checkpoints_card", tags=["checkpoints"], responses=CardSerializer)
    def get(self, request: Request, name: str) -> Response:
        """Read the model card."""
        return Response({"markdown": model_card(card_of(self.checkpoint(name)))})


class VerificationView(OfCheckpoint):
    """The files of a checkpoint. For managers."""

    keeps_answers = False

    @extend_schema(
        operation_id="checkpoints_verify",
        tags=["checkpoints"],
        request=None,
        responses=FileSerializer(many=True),
    )
    def post(self, request: Request, name: str) -> Response:
        """Read every file and tell what was found of each by its digest."""
        return Response(FileSerializer(check_files(self.checkpoint(name), in_store=True), many=True).data)


class ExportsView(ListView, OfCheckpoint):
    """The exports of a checkpoint. For managers."""

    serializer_class = ExportSerializer
    queryset = CheckpointExport.objects.none()

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        """All of them."""
        return self.checkpoint(self.kwargs["name"]).exports.all()

    @extend_schema(operation_id="exports_list", tags=["checkpoints"], responses=ExportSerializer(many=True))
    def get(self, request: Request, name: str) -> Response:
        """List the exports of a checkpoint with how they go, newest first."""
        return self.listed()

    @extend_schema(
        operation_id="exports_request",
        tags=["checkpoints"],
        request=NewExportSerializer,
        responses={202: ExportSerializer},
    )
    def post(self, request: Request, name: str) -> Response:
        """Have it written as a folder for others, or pushed to a hub. A worker does it."""
        checkpoint = self.get_checkpoint(name)
        export = request_export(
            checkpoint=checkpoint, requested_by=self.user, **read_body(NewExportSerializer, request)
        )
        return Response(ExportSerializer(export).data, status=202)
