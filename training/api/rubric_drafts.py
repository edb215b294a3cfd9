"""Drafts of rubrics that a model writes from decided pairs."""

from typing import Any

from django.utils.translation import gettext as _
from rest_framework import serializers

from annotation.api.base import ProjectView
from annotation.api.operations import PROJECT, Resource, Values
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


rubric_drafts = Resource(
    ProjectView,
    f"{PROJECT}rubric-drafts/",
    tag="projects",
    rows=lambda view: view.project.rubric_drafts.select_related("checkpoint"),
)

rubric_drafts.add_list(
    "rubric_drafts_list", RubricDraftSerializer, "List the drafts of a project's rubrics, newest first."
)
rubric_drafts.item("<int:pk>/").add_read(
    "rubric_drafts_read", RubricDraftSerializer, "Read a draft with its criteria, once it is finished."
)


@rubric_drafts.post(takes=NewRubricDraftSerializer, returns=RubricDraftSerializer, status=201)
def rubric_drafts_request(view: ProjectView, values: Values) -> RubricDraft:
    """Have a model draft criteria. It begins once a worker finds it."""
    checkpoint = checkpoints_for(view.user).filter(name=values.pop("checkpoint")).first()
    if checkpoint is None:
        raise serializers.ValidationError({"checkpoint": [_("There is no such checkpoint.")]})
    return request_draft(project=view.project, checkpoint=checkpoint, requested_by=view.user, **values)
