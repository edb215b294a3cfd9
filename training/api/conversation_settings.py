"""Settings and opening tasks of conversations. For managers; annotators list the tasks."""

from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet
from django.http import Http404
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.base import ListView, ProjectView, read_body
from annotation.choices import Role
from annotation.models import ConversationTask
from annotation.models.conversations import MOST_TURNS
from annotation.selectors import access
from annotation.services.conversations import LONGEST_MESSAGE, archive_task, save_task
from training.api.side_by_side_parts import named_checkpoints
from training.forms.comparing import LONGEST_PROMPT
from training.models import ContinuesWith, ConversationSettings
from training.selectors.conversations import settings_of
from training.services.conversations import save_conversation_settings
from training.services.conversations.settings import (
    FEWEST_RESPONSES,
    MOST_CHECKPOINTS,
    MOST_RESPONSES,
)


class ConversationTaskSerializer(serializers.ModelSerializer[ConversationTask]):
    """An opening task."""

    class Meta:
        model = ConversationTask
        fields = (
            *("id", "name", "instructions", "system", "opening", "language", "least_turns"),
            *("harm_category", "archived_at", "created_at"),
        )


class NewConversationTaskSerializer(serializers.Serializer[Any]):
    """An opening task to be written."""

    name = serializers.CharField(max_length=120)
    instructions = serializers.CharField(
        max_length=20_000, required=False, allow_blank=True, default="", help_text="Markdown."
    )
    system = serializers.CharField(max_length=LONGEST_PROMPT, required=False, allow_blank=True, default="")
    opening = serializers.CharField(
        max_length=LONGEST_MESSAGE,
        required=False,
        allow_blank=True,
        default="",
        help_text="First message; empty where annotators write it.",
    )
    language = serializers.CharField(max_length=40, required=False, allow_blank=True, default="")
    least_turns = serializers.IntegerField(min_value=1, max_value=MOST_TURNS, required=False, default=1)
    harm_category = serializers.CharField(max_length=80, required=False, allow_blank=True, default="")


class ConversationSettingsSerializer(serializers.ModelSerializer[ConversationSettings]):
    """Settings of annotators' conversations with the project's checkpoints."""

    checkpoints: Any = serializers.SlugRelatedField(slug_field="name", many=True, read_only=True)

    class Meta:
        model = ConversationSettings
        fields = (
            *("checkpoints", "responses", "continues_with", "most_turns", "rates_whole", "is_open"),
            *("sampling", "updated_at"),
        )


class NewConversationSettingsSerializer(serializers.Serializer[Any]):
    """Settings of conversations to be written."""

    checkpoints = serializers.ListField(
        child=serializers.CharField(max_length=100), min_length=1, max_length=MOST_CHECKPOINTS
    )
    responses = serializers.IntegerField(
        min_value=FEWEST_RESPONSES, max_value=MOST_RESPONSES, required=False, default=2
    )
    continues_with = serializers.ChoiceField(
        choices=ContinuesWith.choices, required=False, default=ContinuesWith.CHOSEN
    )
    most_turns = serializers.IntegerField(min_value=1, max_value=MOST_TURNS, required=False, default=10)
    rates_whole = serializers.BooleanField(required=False, default=True)
    is_open = serializers.BooleanField(required=False, default=True)
    temperature = serializers.FloatField(min_value=0, max_value=2, required=False, default=0.7)
    max_tokens = serializers.IntegerField(min_value=1, max_value=1024, required=False, default=256)


class ConversationSettingsView(ProjectView):
    """Settings of annotators' conversations with checkpoints. For managers."""

    @extend_schema(
        operation_id="conversation_settings_read",
        tags=["projects"],
        responses=ConversationSettingsSerializer,
    )
    def get(self, request: Request, slug: str) -> Response:
        """Read the settings of conversations; 404 before they are first written."""
        stored = settings_of(self.project)
        if stored is None:
            raise Http404
        return Response(ConversationSettingsSerializer(stored).data)

    @extend_schema(
        operation_id="conversation_settings_set",
        tags=["projects"],
        request=NewConversationSettingsSerializer,
        responses=ConversationSettingsSerializer,
    )
    def put(self, request: Request, slug: str) -> Response:
        """Write the settings of conversations. What is not sent becomes the default."""
        sent = read_body(NewConversationSettingsSerializer, request)
        sent["checkpoints"] = named_checkpoints(self.project, sent["checkpoints"])
        saved = save_conversation_settings(project=self.project, actor=self.user, **sent)
        return Response(ConversationSettingsSerializer(saved).data)


class ConversationTasksView(ListView, ProjectView):
    """Opening tasks of a project. For annotators; managers add them."""

    role = Role.ANNOTATOR
    role_to_change = Role.MANAGER
    serializer_class = ConversationTaskSerializer
    queryset = ConversationTask.objects.none()

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        """Those that are offered; archived ones too for managers."""
        tasks = self.project.conversation_tasks.all()
        is_manager = access.may(self.user, self.project, Role.MANAGER)
        return tasks if is_manager else tasks.filter(archived_at__isnull=True)

    @extend_schema(
        operation_id="conversation_tasks_list",
        tags=["labelling"],
        responses=ConversationTaskSerializer(many=True),
    )
    def get(self, request: Request, slug: str) -> Response:
        """List the opening tasks, for managers with the archived ones."""
        return self.listed()

    @extend_schema(
        operation_id="conversation_tasks_add",
        tags=["projects"],
        request=NewConversationTaskSerializer,
        responses={201: ConversationTaskSerializer},
    )
    def post(self, request: Request, slug: str) -> Response:
        """Add an opening task."""
        sent = read_body(NewConversationTaskSerializer, request)
        added = save_task(project=self.project, actor=self.user, **sent)
        return Response(ConversationTaskSerializer(added).data, status=201)


class ConversationTaskView(ProjectView):
    """One opening task. For managers."""

    @extend_schema(
        operation_id="conversation_tasks_set",
        tags=["projects"],
        request=NewConversationTaskSerializer,
        responses=ConversationTaskSerializer,
    )
    def put(self, request: Request, slug: str, pk: int) -> Response:
        """Write an opening task. What is not sent becomes empty."""
        task = get_object_or_404(self.project.conversation_tasks, pk=pk)
        sent = read_body(NewConversationTaskSerializer, request)
        saved = save_task(project=self.project, actor=self.user, task=task, **sent)
        return Response(ConversationTaskSerializer(saved).data)

    @extend_schema(operation_id="conversation_tasks_archive", tags=["projects"], responses={204: None})
    def delete(self, request: Request, slug: str, pk: int) -> Response:
        """Offer an opening task no more. Conversations about it stay."""
        task = get_object_or_404(self.project.conversation_tasks, pk=pk)
        archive_task(task=task, actor=self.user)
        return Response(status=204)
