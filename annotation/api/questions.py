"""The categories and criteria of a project, which `projects_read` lists."""

from typing import Any

from rest_framework import serializers

from annotation.api.base import ProjectView
from annotation.api.operations import PROJECT, Resource, Values
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


categories = Resource(ProjectView, f"{PROJECT}categories/", tag="projects")
category = categories.item("<slug:key>/", rows=lambda view: view.project.categories.all())
criteria = Resource(ProjectView, f"{PROJECT}criteria/", tag="projects")
criterion = criteria.item("<slug:key>/", rows=lambda view: view.project.criteria.all())


@categories.put(takes=OrderSerializer, returns=[CategorySerializer])
def categories_order(view: ProjectView, values: Values) -> Any:
    """Put the categories in an order, as the labelling screen shows them."""
    return order_questions(kind=Category, project=view.project, keys=values["keys"], changed_by=view.user)


@categories.put("<slug:key>/", takes=CategoryValuesSerializer, returns=CategorySerializer)
def categories_set(view: ProjectView, values: Values, key: str) -> Category:
    """Create or change a category; fields left out keep their value or get the default."""
    return set_category(project=view.project, key=key, values=values, changed_by=view.user)


@category.delete()
def categories_delete(view: ProjectView, category: Category) -> None:
    """Delete a category that no judgment uses."""
    delete_question(question=category, deleted_by=view.user)


@criteria.put(takes=OrderSerializer, returns=[CriterionSerializer])
def criteria_order(view: ProjectView, values: Values) -> Any:
    """Put the criteria in an order, as the labelling screen shows them."""
    return order_questions(kind=Criterion, project=view.project, keys=values["keys"], changed_by=view.user)


@criteria.put("<slug:key>/", takes=CriterionValuesSerializer, returns=CriterionSerializer)
def criteria_set(view: ProjectView, values: Values, key: str) -> Criterion:
    """Create or change a criterion; fields left out keep their value or get the default."""
    return set_criterion(project=view.project, key=key, values=values, changed_by=view.user)


@criterion.delete()
def criteria_delete(view: ProjectView, criterion: Criterion) -> None:
    """Delete a criterion without ratings."""
    delete_question(question=criterion, deleted_by=view.user)
