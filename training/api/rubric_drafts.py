"""Drafts of rubrics that a model writes from decided pairs."""

from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.base import ListView, ProjectView, read_body
from training.models import RubricDraft
from training.selectors.projects import checkpoints_for
from training.services.judges.drafting import LEAST_PAIRS, MOST_PAIRS, request_draft


class DraftedCriterionSerializer(serializers.Serializer[Any]):
    """A drafted criterion, with its check on held-out pairs."""

    name = serializers.CharField()
    text = serializers.CharField()
    scale = serializers.CharField()
    weight = serializers.FloatField()
    proposals = serializers.IntegerField(help_text="Replies that proposed it or one like it.")
    agreeing = serializers.IntegerField(help_text="Pairs on which its scores prefer what people prefer.")
    opposing = serializers.IntegerField(help_text="Pairs on which they prefer the other response.")
    tied = serializers.IntegerField(help_text="Pairs that its scores do not decide.")


class RubricDraftSerializer(serializers.ModelSerializer[RubricDraft]):
    """A draft and its state. Save its criteria with `rubrics_create`, edited."""

    checkpoint = serializers.CharField(source="checkpoint.name")
    criteria = DraftedCriterionSerializer(many=True)

    class Meta:
        model = RubricDraft
        fields = (
            *("id", "checkpoint", "pairs", "max_tokens", "state", "message", "error", "criteria"),
            *("pairs_read", "pairs_checked", "unread", "version", "created_at"),
        )


class NewRubricDraftSerializer(serializers.Serializer[Any]):
    """A draft to be written."""

    checkpoint = serializers.CharField(max_length=100, help_text="The model that drafts and checks.")
    pairs = serializers.IntegerField(min_value=LEAST_PAIRS, max_value=MOST_PAIRS, help_text="At most.")
    max_tokens = serializers.IntegerField(
        required=False, default=1024, min_value=64, max_value=100_000, help_text="Of one reply."
    )


class RubricDraftsView(ListView, ProjectView):
    """The drafts of a project's rubrics. For managers."""

    serializer_class = RubricDraftSerializer
    queryset = RubricDraft.objects.none()

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        """All of them."""
        return self.project.rubric_drafts.select_related("checkpoint")

    @extend_schema(
        operation_id="rubric_drafts_list", tags=["projects"], responses=RubricDraftSerializer(many=True)
    )
    def get(self, request: Request, slug: str) -> Response:
        """List the drafts of a project's rubrics, newest first."""
        return self.listed()

    @extend_schema(
        operation_id="rubric_drafts_request",
        tags=["projects"],
        request=NewRubricDraftSerializer,
        responses={201: RubricDraftSerializer},
    )
    def post(self, request: Request, slug: str) -> Response:
        """Have a model draft criteria. It begins once a worker finds it."""
        values = read_body(NewRubricDraftSerializer, request)
        checkpoint = checkpoints_for(self.user).filter(name=values.pop("checkpoint")).first()
        if checkpoint is None:
            raise serializers.ValidationError({"checkpoint": [_("There is no such checkpoint.")]})
        draft = request_draft(project=self.project, checkpoint=checkpoint, requested_by=self.user, **values)
        return Response(RubricDraftSerializer(draft).data, status=201)


class RubricDraftView(ProjectView):
    """One draft. For managers."""

    @extend_schema(operation_id="rubric_drafts_read", tags=["projects"], responses=RubricDraftSerializer)
    def get(self, request: Request, slug: str, pk: int) -> Response:
        """Read a draft with its criteria, once it is finished."""
        rows = self.project.rubric_drafts.select_related("checkpoint")
        return Response(RubricDraftSerializer(get_object_or_404(rows, pk=pk)).data)
