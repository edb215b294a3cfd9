"""Drafts of rubrics that a model writes from decided pairs."""

from typing import Any

from rest_framework import serializers

from annotation.api import fields
from annotation.api.base import ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from training.api.checkpoints import named_checkpoint
from training.models import RubricDraft
from training.selectors.projects import checkpoints_for
from training.services.rubric_drafts import LEAST_PAIRS, MOST_PAIRS, request_draft


class DraftedCriterionSerializer(serializers.Serializer[Any]):
    """A drafted criterion, with its check on held-out pairs."""

    name = fields.text()
    text = fields.text()
    scale = fields.text()
    weight = fields.number()
    proposals = fields.integer("Replies that proposed it or one like it.")
    agreeing = fields.integer("Pairs on which its scores prefer what people prefer.")
    opposing = fields.integer("Pairs on which they prefer the other response.")
    tied = fields.integer("Pairs that its scores do not decide.")


@fields.of(
    RubricDraft,
    "id checkpoint pairs max_tokens state message error criteria pairs_read pairs_checked unread",
    "version created_at",
)
class RubricDraftSerializer(serializers.ModelSerializer[RubricDraft]):
    """A draft and its state. Save its criteria with `rubrics_create`, edited."""

    checkpoint = fields.text(source="checkpoint.name")
    criteria = DraftedCriterionSerializer(many=True)


class NewRubricDraftSerializer(serializers.Serializer[Any]):
    """A draft to be written."""

    checkpoint = fields.text("The model that drafts and checks.", most=100)
    pairs = fields.integer("At most.", least=LEAST_PAIRS, most=MOST_PAIRS)
    max_tokens = fields.integer("Of one reply.", default=1024, least=64, most=100_000)


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
    values["checkpoint"] = named_checkpoint(checkpoints_for(view.user), values["checkpoint"])
    return request_draft(project=view.project, requested_by=view.user, **values)
