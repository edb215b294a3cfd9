"""Settings and opening tasks of conversations. For managers; annotators list the tasks."""

from typing import Any

from django.db.models import QuerySet
from django.http import Http404
from rest_framework import serializers

from annotation.api import fields
from annotation.api.base import ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from annotation.choices import Role
from annotation.models import ConversationTask
from annotation.models.conversations import MOST_TURNS
from annotation.selectors import access
from annotation.services.conversations import LONGEST_MESSAGE, archive_task, save_task
from training.api.side_by_side import named_checkpoints
from training.forms.comparing import LONGEST_PROMPT
from training.models import ContinuesWith, ConversationSettings
from training.selectors.conversations import settings_of
from training.services.conversations import (
    FEWEST_RESPONSES,
    MOST_CHECKPOINTS,
    MOST_RESPONSES,
    save_conversation_settings,
)


@fields.of(
    ConversationTask,
    "id name instructions system opening language least_turns harm_category archived_at created_at",
)
class ConversationTaskSerializer(serializers.ModelSerializer[ConversationTask]):
    """An opening task."""


class NewConversationTaskSerializer(serializers.Serializer[Any]):
    """An opening task to be written."""

    name = fields.text(most=120)
    instructions = fields.text("Markdown.", most=20_000, default="")
    system = fields.text(most=LONGEST_PROMPT, default="")
    opening = fields.text("First message; empty where annotators write it.", most=LONGEST_MESSAGE, default="")
    language = fields.text(most=40, default="")
    least_turns = fields.integer(least=1, most=MOST_TURNS, default=1)
    harm_category = fields.text(most=80, default="")


@fields.of(
    ConversationSettings,
    "checkpoints responses continues_with most_turns rates_whole is_open sampling updated_at",
)
class ConversationSettingsSerializer(serializers.ModelSerializer[ConversationSettings]):
    """Settings of annotators' conversations with the project's checkpoints."""

    checkpoints: Any = serializers.SlugRelatedField(slug_field="name", many=True, read_only=True)


class NewConversationSettingsSerializer(serializers.Serializer[Any]):
    """Settings of conversations to be written."""

    checkpoints = fields.several(fields.text(most=100), least=1, most=MOST_CHECKPOINTS)
    responses = fields.integer(least=FEWEST_RESPONSES, most=MOST_RESPONSES, default=2)
    continues_with = fields.choice(ContinuesWith.choices, default=ContinuesWith.CHOSEN)
    most_turns = fields.integer(least=1, most=MOST_TURNS, default=10)
    rates_whole = fields.flag(default=True)
    is_open = fields.flag(default=True)
    temperature = fields.number(least=0, most=2, default=0.7)
    max_tokens = fields.integer(least=1, most=1024, default=256)


settings = Resource(ProjectView, f"{PROJECT}conversation-settings/", tag="projects")
tasks = Resource(ProjectView, f"{PROJECT}conversation-tasks/", tag="projects")
task = tasks.item("<int:pk>/", rows=lambda view: view.project.conversation_tasks.all())


@settings.get(returns=ConversationSettingsSerializer)
def conversation_settings_read(view: ProjectView) -> ConversationSettings:
    """Read the settings of conversations; 404 before they are first written."""
    stored = settings_of(view.project)
    if stored is None:
        raise Http404
    return stored


@settings.put(takes=NewConversationSettingsSerializer, returns=ConversationSettingsSerializer)
def conversation_settings_set(view: ProjectView, values: Values) -> ConversationSettings:
    """Write the settings of conversations. What is not sent becomes the default."""
    values["checkpoints"] = named_checkpoints(view.project, values["checkpoints"])
    return save_conversation_settings(project=view.project, actor=view.user, **values)


@tasks.get_list(ConversationTaskSerializer, role=Role.ANNOTATOR, tag="labelling")
def conversation_tasks_list(view: ProjectView) -> QuerySet[ConversationTask]:
    """List the opening tasks, for managers with the archived ones."""
    tasks = view.project.conversation_tasks.all()
    return tasks if access.may(view.user, view.project, Role.MANAGER) else tasks.filter(archived_at=None)


@tasks.post(takes=NewConversationTaskSerializer, returns=ConversationTaskSerializer, status=201)
def conversation_tasks_add(view: ProjectView, values: Values) -> ConversationTask:
    """Add an opening task."""
    return save_task(project=view.project, actor=view.user, **values)


@task.put(takes=NewConversationTaskSerializer, returns=ConversationTaskSerializer)
def conversation_tasks_set(view: ProjectView, task: ConversationTask, values: Values) -> ConversationTask:
    """Write an opening task. What is not sent becomes empty."""
    return save_task(project=view.project, actor=view.user, task=task, **values)


@task.delete()
def conversation_tasks_archive(view: ProjectView, task: ConversationTask) -> None:
    """Offer an opening task no more. Conversations about it stay."""
    archive_task(task=task, actor=view.user)
