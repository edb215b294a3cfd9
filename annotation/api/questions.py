"""The categories and criteria of a project; reading the project lists them."""

from typing import Any

from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.base import ProjectView, read_body
from annotation.api.projects import CategorySerializer, CriterionSerializer
from annotation.choices import CategoryScope, Granularity, Polarity, RatingScale
from annotation.models import Category, Criterion
from annotation.services.questions import delete_question, set_category, set_criterion


class QuestionValues(serializers.Serializer[Any]):
    """What every question of a project has."""

    label = serializers.CharField(  # type: ignore[assignment]
        max_length=80, help_text="What annotators read."
    )
    description = serializers.CharField(required=False, default="", allow_blank=True, max_length=2000)


class CategoryValuesSerializer(QuestionValues):
    """A category as it is to be."""

    scope = serializers.ChoiceField(
        choices=CategoryScope.choices, required=False, help_text="Chosen once, when it is made."
    )
    granularity = serializers.ChoiceField(choices=Granularity.choices, required=False)
    colour = serializers.RegexField(r"^#[0-9a-fA-F]{6}$", required=False)
    shortcut = serializers.CharField(max_length=1, required=False, allow_blank=True)
    polarity = serializers.ChoiceField(choices=Polarity.choices, required=False)
    severity_steps = serializers.IntegerField(min_value=0, max_value=9, required=False)


class CriterionValuesSerializer(QuestionValues):
    """A criterion as it is to be."""

    scale = serializers.ChoiceField(
        choices=RatingScale.choices, required=False, help_text="Chosen once, when it is made."
    )


class CategoryView(ProjectView):
    """One category of a project. For who is a superuser."""

    @extend_schema(
        operation_id="categories_set",
        tags=["projects"],
        request=CategoryValuesSerializer,
        responses=CategorySerializer,
    )
    def put(self, request: Request, slug: str, key: str) -> Response:
        """Give a category other values, or add one; what is not sent stays, or is the default."""
        self.require_superuser()
        told = read_body(CategoryValuesSerializer, request)
        row = set_category(project=self.project, key=key, values=told, changed_by=self.user)
        return Response(CategorySerializer(row).data)

    @extend_schema(operation_id="categories_delete", tags=["projects"], responses={204: None})
    def delete(self, request: Request, slug: str, key: str) -> Response:
        """Delete a category that no judgment uses."""
        self.require_superuser()
        row = get_object_or_404(Category, project=self.project, key=key)
        delete_question(question=row, deleted_by=self.user)
        return Response(status=204)


class CriterionView(ProjectView):
    """One criterion of a project. For who is a superuser."""

    @extend_schema(
        operation_id="criteria_set",
        tags=["projects"],
        request=CriterionValuesSerializer,
        responses=CriterionSerializer,
    )
    def put(self, request: Request, slug: str, key: str) -> Response:
        """Give a criterion other values, or add one; what is not sent stays, or is the default."""
        self.require_superuser()
        told = read_body(CriterionValuesSerializer, request)
        row = set_criterion(project=self.project, key=key, values=told, changed_by=self.user)
        return Response(CriterionSerializer(row).data)

    @extend_schema(operation_id="criteria_delete", tags=["projects"], responses={204: None})
    def delete(self, request: Request, slug: str, key: str) -> Response:
        """Delete a criterion by which nobody has rated."""
        self.require_superuser()
        row = get_object_or_404(Criterion, project=self.project, key=key)
        delete_question(question=row, deleted_by=self.user)
        return Response(status=204)
