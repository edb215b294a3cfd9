"""The categories and criteria of a project, which `projects_read` lists."""

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
from annotation.services.projects.questions import (
    delete_question,
    order_questions,
    set_category,
    set_criterion,
)


class QuestionValues(serializers.Serializer[Any]):
    """The fields shared by categories and criteria."""

    label = serializers.CharField(  # type: ignore[assignment]
        max_length=80, help_text="What annotators read."
    )
    description = serializers.CharField(required=False, default="", allow_blank=True, max_length=2000)
    is_archived = serializers.BooleanField(
        required=False, help_text="Not asked any more; annotations that use it keep it."
    )


class CategoryValuesSerializer(QuestionValues):
    """The new values of a category."""

    scope = serializers.ChoiceField(
        choices=CategoryScope.choices, required=False, help_text="Chosen once, when it is made."
    )
    granularity = serializers.ChoiceField(choices=Granularity.choices, required=False)
    colour = serializers.RegexField(r"^#[0-9a-fA-F]{6}$", required=False)
    shortcut = serializers.CharField(max_length=1, required=False, allow_blank=True)
    polarity = serializers.ChoiceField(choices=Polarity.choices, required=False)
    severity_steps = serializers.IntegerField(min_value=0, max_value=9, required=False)


class CriterionValuesSerializer(QuestionValues):
    """The new values of a criterion."""

    scale = serializers.ChoiceField(
        choices=RatingScale.choices, required=False, help_text="Chosen once, when it is made."
    )


class OrderSerializer(serializers.Serializer[Any]):
    """The order of the categories or criteria."""

    keys = serializers.ListField(
        child=serializers.CharField(max_length=60), max_length=1000, help_text="Each key once."
    )


class CategoriesView(ProjectView):
    """The order of a project's categories. For managers."""

    @extend_schema(
        operation_id="categories_order",
        tags=["projects"],
        request=OrderSerializer,
        responses=CategorySerializer(many=True),
    )
    def put(self, request: Request, slug: str) -> Response:
        """Put the categories in an order, as the labelling screen shows them."""
        keys = read_body(OrderSerializer, request)["keys"]
        rows = order_questions(kind=Category, project=self.project, keys=keys, changed_by=self.user)
        return Response(CategorySerializer(rows, many=True).data)


class CriteriaView(ProjectView):
    """The order of a project's criteria. For managers."""

    @extend_schema(
        operation_id="criteria_order",
        tags=["projects"],
        request=OrderSerializer,
        responses=CriterionSerializer(many=True),
    )
    def put(self, request: Request, slug: str) -> Response:
        """Put the criteria in an order, as the labelling screen shows them."""
        keys = read_body(OrderSerializer, request)["keys"]
        rows = order_questions(kind=Criterion, project=self.project, keys=keys, changed_by=self.user)
        return Response(CriterionSerializer(rows, many=True).data)


class CategoryView(ProjectView):
    """One category of a project. For managers."""

    @extend_schema(
        operation_id="categories_set",
        tags=["projects"],
        request=CategoryValuesSerializer,
        responses=CategorySerializer,
    )
    def put(self, request: Request, slug: str, key: str) -> Response:
        """Create or change a category; fields left out keep their value or get the default."""
        values = read_body(CategoryValuesSerializer, request)
        row = set_category(project=self.project, key=key, values=values, changed_by=self.user)
        return Response(CategorySerializer(row).data)

    @extend_schema(operation_id="categories_delete", tags=["projects"], responses={204: None})
    def delete(self, request: Request, slug: str, key: str) -> Response:
        """Delete a category that no judgment uses."""
        row = get_object_or_404(Category, project=self.project, key=key)
        delete_question(question=row, deleted_by=self.user)
        return Response(status=204)


class CriterionView(ProjectView):
    """One criterion of a project. For managers."""

    @extend_schema(
        operation_id="criteria_set",
        tags=["projects"],
        request=CriterionValuesSerializer,
        responses=CriterionSerializer,
    )
    def put(self, request: Request, slug: str, key: str) -> Response:
        """Create or change a criterion; fields left out keep their value or get the default."""
        values = read_body(CriterionValuesSerializer, request)
        row = set_criterion(project=self.project, key=key, values=values, changed_by=self.user)
        return Response(CriterionSerializer(row).data)

    @extend_schema(operation_id="criteria_delete", tags=["projects"], responses={204: None})
    def delete(self, request: Request, slug: str, key: str) -> Response:
        """Delete a criterion without ratings."""
        row = get_object_or_404(Criterion, project=self.project, key=key)
        delete_question(question=row, deleted_by=self.user)
        return Response(status=204)
