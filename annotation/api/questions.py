"""The categories and criteria of a project, which `projects_read` lists."""

from typing import Any

from rest_framework import serializers

from annotation.api import fields
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

    label = fields.text("What annotators read.", most=80)  # type: ignore[assignment]
    description = fields.text(default="", most=2000)
    is_archived = fields.flag("Not asked any more; annotations that use it keep it.", required=False)


class CategoryValuesSerializer(QuestionValues):
    """The new values of a category."""

    scope = fields.choice(CategoryScope.choices, "Chosen once, when it is made.", required=False)
    granularity = fields.choice(Granularity.choices, required=False)
    colour = serializers.RegexField(r"^#[0-9a-fA-F]{6}$", required=False)
    shortcut = fields.text(most=1, required=False, allow_blank=True)
    polarity = fields.choice(Polarity.choices, required=False)
    severity_steps = fields.integer(least=0, most=9, required=False)


class CriterionValuesSerializer(QuestionValues):
    """The new values of a criterion."""

    scale = fields.choice(RatingScale.choices, "Chosen once, when it is made.", required=False)


class OrderSerializer(serializers.Serializer[Any]):
    """The order of the categories or criteria."""

    keys = fields.several(fields.text(most=60), "Each key once.", most=1000)


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
