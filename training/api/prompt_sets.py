"""Prompt sets, on which checkpoints are compared one prompt after the other."""

from typing import Any

from django.db import transaction
from rest_framework import serializers

from annotation.api import fields
from annotation.api.base import ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from training.models import PromptSet
from training.selectors.prompt_sets import prompt_sets_of
from training.services.prompt_sets import (
    LONGEST_NAME,
    MOST_PROMPTS,
    add_prompts,
    create_prompt_set,
    delete_prompt_set,
    remove_prompts,
    rename_prompt_set,
)


def _ids(meaning: str, **more: Any) -> serializers.ListField:
    return fields.several(fields.key(), meaning, most=MOST_PROMPTS, required=False, **more)


@fields.of(PromptSet, "id name size created_at")
class PromptSetSerializer(serializers.ModelSerializer[PromptSet]):
    """A named choice of the project's prompts."""

    size = fields.integer("Number of prompts.")


@fields.of(PromptSet, "id name prompts created_at")
class WholePromptSetSerializer(serializers.ModelSerializer[PromptSet]):
    """A prompt set with its prompts."""

    prompts = fields.computed("Ids, lowest first.")

    def get_prompts(self, prompt_set: PromptSet) -> list[int]:
        """In the order in which they are asked."""
        return list(prompt_set.prompts.order_by("pk").values_list("pk", flat=True))


class NewPromptSetSerializer(serializers.Serializer[Any]):
    """A prompt set to be created."""

    name = fields.text(most=LONGEST_NAME)
    prompts = _ids("Ids of prompts of the project.", default=list)


class PromptSetChangeSerializer(serializers.Serializer[Any]):
    """Changes of a prompt set."""

    name = fields.text(most=LONGEST_NAME, required=False)
    add = _ids("Ids of prompts to add.")
    remove = _ids("Ids of prompts to take out.")


prompt_sets = Resource(
    ProjectView,
    f"{PROJECT}prompt-sets/",
    tag="checkpoints",
    rows=lambda view: prompt_sets_of(view.project),
)
prompt_set = prompt_sets.item(
    "<int:pk>/", rows=lambda view: view.project.prompt_sets.select_related("project")
)

prompt_sets.add_list(
    "prompt_sets_list", PromptSetSerializer, "List the prompt sets of a project, newest first."
)
prompt_set.add_read(
    "prompt_sets_read", WholePromptSetSerializer, "Read a prompt set with the ids of its prompts."
)


@prompt_sets.post(takes=NewPromptSetSerializer, returns=WholePromptSetSerializer, status=201)
def prompt_sets_create(view: ProjectView, values: Values) -> PromptSet:
    """Create a prompt set of prompts of the project."""
    return create_prompt_set(project=view.project, created_by=view.user, **values)


@prompt_set.patch(takes=PromptSetChangeSerializer, returns=WholePromptSetSerializer)
@transaction.atomic
def prompt_sets_change(view: ProjectView, prompt_set: PromptSet, values: Values) -> PromptSet:
    """Rename a prompt set, add prompts and take others out. What is not sent stays."""
    if "name" in values:
        rename_prompt_set(prompt_set=prompt_set, name=values["name"], changed_by=view.user)
    if "add" in values:
        add_prompts(prompt_set=prompt_set, prompts=values["add"], changed_by=view.user)
    if "remove" in values:
        remove_prompts(prompt_set=prompt_set, prompts=values["remove"], changed_by=view.user)
    return prompt_set


@prompt_set.delete()
def prompt_sets_delete(view: ProjectView, prompt_set: PromptSet) -> None:
    """Delete a prompt set. Its prompts and the comparisons on them stay."""
    delete_prompt_set(prompt_set=prompt_set, deleted_by=view.user)
