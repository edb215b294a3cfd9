"""Rubrics of a project: their versions, and which of them is in use."""

from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.base import ListView, ProjectView, read_body
from annotation.choices import RatingScale
from annotation.errors import Refusal
from annotation.models import Rubric, RubricCriterion, RubricVersion
from annotation.selectors.rubrics import rubrics_of
from annotation.services.projects.rubrics import (
    MOST_CHARACTERS,
    MOST_CRITERIA,
    MOST_WEIGHT,
    RubricCriterionInput,
    ask_rubric,
    publish_rubric,
    save_rubric,
)


class RubricCriterionSerializer(serializers.ModelSerializer[RubricCriterion]):
    """A weighted criterion of a rubric version."""

    class Meta:
        model = RubricCriterion
        fields = ("key", "name", "text", "levels", "scale", "weight")


class RubricVersionSerializer(serializers.ModelSerializer[RubricVersion]):
    """A version of a rubric. It never changes."""

    criteria = RubricCriterionSerializer(many=True)

    class Meta:
        model = RubricVersion
        fields = ("id", "number", "created_at", "criteria")


class RubricSerializer(serializers.ModelSerializer[Rubric]):
    """A rubric and its state."""

    published = serializers.IntegerField(
        source="published.number", allow_null=True, default=None, help_text="Number of the version in use."
    )

    class Meta:
        model = Rubric
        fields: tuple[str, ...] = ("id", "name", "published", "is_asked", "created_at")


class WholeRubricSerializer(RubricSerializer):
    """A rubric with all its versions, newest first."""

    versions = RubricVersionSerializer(many=True)

    class Meta(RubricSerializer.Meta):
        fields = (*RubricSerializer.Meta.fields, "versions")


class NewRubricCriterionSerializer(serializers.Serializer[Any]):
    """A criterion to save."""

    name = serializers.CharField(max_length=80)
    text = serializers.CharField(required=False, default="", allow_blank=True, max_length=MOST_CHARACTERS)
    levels = serializers.CharField(required=False, default="", allow_blank=True, max_length=MOST_CHARACTERS)
    scale = serializers.ChoiceField(
        choices=RatingScale.choices, required=False, default=RatingScale.FIVE, help_text="thumbs: no or yes."
    )
    weight = serializers.FloatField(required=False, default=1.0, max_value=MOST_WEIGHT)


class NewRubricSerializer(serializers.Serializer[Any]):
    """The content of a version."""

    name = serializers.CharField(max_length=80)
    criteria = serializers.ListField(
        child=NewRubricCriterionSerializer(), min_length=1, max_length=MOST_CRITERIA
    )


class RubricUseSerializer(serializers.Serializer[Any]):
    """The use of a rubric. What is not sent stays."""

    published = serializers.IntegerField(
        required=False, min_value=1, max_value=2**31 - 1, help_text="Number of the version to publish."
    )
    is_asked = serializers.BooleanField(required=False, help_text="Whether annotators rate by it.")


class RubricsView(ListView, ProjectView):
    """The rubrics of a project. For managers."""

    serializer_class = RubricSerializer
    queryset = Rubric.objects.none()

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        """All of them."""
        return rubrics_of(self.project)

    @extend_schema(operation_id="rubrics_list", tags=["projects"], responses=RubricSerializer(many=True))
    def get(self, request: Request, slug: str) -> Response:
        """List the rubrics of a project."""
        return self.listed()

    @extend_schema(
        operation_id="rubrics_create",
        tags=["projects"],
        request=NewRubricSerializer,
        responses={201: WholeRubricSerializer},
    )
    def post(self, request: Request, slug: str) -> Response:
        """Create a rubric. Nothing uses it before a version is published."""
        values = read_body(NewRubricSerializer, request)
        version = save_rubric(
            project=self.project, name=values["name"], criteria=_criteria(values), saved_by=self.user
        )
        return Response(WholeRubricSerializer(version.rubric).data, status=201)


class RubricView(ProjectView):
    """One rubric. For managers."""

    def rubric(self, pk: int) -> Rubric:
        """Return the rubric in the address."""
        rows = rubrics_of(self.project).prefetch_related("versions__criteria")
        return get_object_or_404(rows, pk=pk)

    @extend_schema(operation_id="rubrics_read", tags=["projects"], responses=WholeRubricSerializer)
    def get(self, request: Request, slug: str, pk: int) -> Response:
        """Read a rubric with all its versions."""
        return Response(WholeRubricSerializer(self.rubric(pk)).data)

    @extend_schema(
        operation_id="rubrics_save",
        tags=["projects"],
        request=NewRubricSerializer,
        responses=WholeRubricSerializer,
    )
    def put(self, request: Request, slug: str, pk: int) -> Response:
        """Save a new version of a rubric. Without a difference, nothing is saved."""
        rubric = self.rubric(pk)
        values = read_body(NewRubricSerializer, request)
        save_rubric(
            project=self.project,
            name=values["name"],
            criteria=_criteria(values),
            saved_by=self.user,
            rubric=rubric,
        )
        return Response(WholeRubricSerializer(self.rubric(pk)).data)

    @extend_schema(
        operation_id="rubrics_use",
        tags=["projects"],
        request=RubricUseSerializer,
        responses=WholeRubricSerializer,
    )
    def patch(self, request: Request, slug: str, pk: int) -> Response:
        """Publish a version, and choose whether annotators rate by it."""
        rubric = self.rubric(pk)
        values = read_body(RubricUseSerializer, request)
        with transaction.atomic():
            if "published" in values:
                version = rubric.versions.filter(number=values["published"]).first()
                if version is None:
                    raise Refusal(
                        "unknown_rubric_version", _("The rubric has no such version."), field="published"
                    )
                publish_rubric(version=version, published_by=self.user)
            if "is_asked" in values:
                ask_rubric(rubric=rubric, is_asked=values["is_asked"], by=self.user)
        return Response(WholeRubricSerializer(self.rubric(pk)).data)


def _criteria(values: Mapping[str, Any]) -> list[RubricCriterionInput]:
    return [RubricCriterionInput(**row) for row in values["criteria"]]
