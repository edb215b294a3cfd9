"""Rubrics of a project: their versions, and which of them is in use."""

from typing import Any

from django.db import transaction
from django.utils.translation import gettext as _
from rest_framework import serializers

from annotation.api import fields
from annotation.api.base import ProjectView
from annotation.api.operations import PROJECT, Resource, Values
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


@fields.of(RubricCriterion, "key name text levels scale weight")
class RubricCriterionSerializer(serializers.ModelSerializer[RubricCriterion]):
    """A weighted criterion of a rubric version."""


@fields.of(RubricVersion, "id number created_at criteria")
class RubricVersionSerializer(serializers.ModelSerializer[RubricVersion]):
    """A version of a rubric. It never changes."""

    criteria = RubricCriterionSerializer(many=True)


@fields.of(Rubric, "id name published is_asked created_at")
class RubricSerializer(serializers.ModelSerializer[Rubric]):
    """A rubric and its state."""

    published = fields.integer(
        "Number of the version in use.", source="published.number", allow_null=True, default=None
    )


@fields.more("versions")
class WholeRubricSerializer(RubricSerializer):
    """A rubric with all its versions, newest first."""

    versions = RubricVersionSerializer(many=True)


class NewRubricCriterionSerializer(serializers.Serializer[Any]):
    """A criterion to save."""

    name = fields.text(most=80)
    text = fields.text(default="", most=MOST_CHARACTERS)
    levels = fields.text(default="", most=MOST_CHARACTERS)
    scale = fields.choice(RatingScale.choices, "thumbs: no or yes.", default=RatingScale.FIVE)
    weight = fields.number(default=1.0, most=MOST_WEIGHT)


class NewRubricSerializer(serializers.Serializer[Any]):
    """The content of a version."""

    name = fields.text(most=80)
    criteria = fields.several(NewRubricCriterionSerializer(), least=1, most=MOST_CRITERIA)


class RubricUseSerializer(serializers.Serializer[Any]):
    """The use of a rubric. What is not sent stays."""

    published = fields.integer(
        "Number of the version to publish.", required=False, least=1, most=fields.LARGEST_INTEGER
    )
    is_asked = fields.flag("Whether annotators rate by it.", required=False)


rubrics = Resource(
    ProjectView, f"{PROJECT}rubrics/", tag="projects", rows=lambda view: rubrics_of(view.project)
)
rubric = rubrics.item(
    "<int:pk>/", rows=lambda view: rubrics_of(view.project).prefetch_related("versions__criteria")
)

rubrics.add_list("rubrics_list", RubricSerializer, "List the rubrics of a project.")
rubric.add_read("rubrics_read", WholeRubricSerializer, "Read a rubric with all its versions.")


@rubrics.post(takes=NewRubricSerializer, returns=WholeRubricSerializer, status=201)
def rubrics_create(view: ProjectView, values: Values) -> Rubric:
    """Create a rubric. Nothing uses it before a version is published."""
    return _save(view, values, None)


@rubric.put(takes=NewRubricSerializer, returns=WholeRubricSerializer)
def rubrics_save(view: ProjectView, rubric: Rubric, values: Values) -> Rubric:
    """Save a new version of a rubric. Without a difference, nothing is saved."""
    _save(view, values, rubric)
    return rubrics_of(view.project).get(pk=rubric.pk)


@rubric.patch(takes=RubricUseSerializer, returns=WholeRubricSerializer)
@transaction.atomic
def rubrics_use(view: ProjectView, rubric: Rubric, values: Values) -> Rubric:
    """Publish a version, and choose whether annotators rate by it."""
    if "published" in values:
        version = rubric.versions.filter(number=values["published"]).first()
        if version is None:
            raise Refusal("unknown_rubric_version", _("The rubric has no such version."), field="published")
        publish_rubric(version=version, published_by=view.user)
    if "is_asked" in values:
        ask_rubric(rubric=rubric, is_asked=values["is_asked"], by=view.user)
    return rubrics_of(view.project).get(pk=rubric.pk)


def _save(view: ProjectView, values: Values, rubric: Rubric | None) -> Rubric:
    criteria = [RubricCriterionInput(**row) for row in values["criteria"]]
    version = save_rubric(
        project=view.project, name=values["name"], criteria=criteria, saved_by=view.user, rubric=rubric
    )
    return version.rubric
