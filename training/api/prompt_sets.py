"""Prompt sets, on which checkpoints are compared one prompt after the other."""

from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.base import ListView, ProjectView, read_body
from training.models import PromptSet
from training.selectors.prompt_sets import prompt_sets_of
from training.services.comparing.prompt_sets import (
    LONGEST_NAME,
    MOST_PROMPTS,
    add_prompts,
    create_prompt_set,
    delete_prompt_set,
    remove_prompts,
    rename_prompt_set,
)


def _ids(**more: Any) -> serializers.ListField:
    child = serializers.IntegerField(min_value=1, max_value=2**63 - 1)
    return serializers.ListField(child=child, max_length=MOST_PROMPTS, required=False, **more)


class PromptSetSerializer(serializers.ModelSerializer[PromptSet]):
    """A named choice of the project's prompts."""

    size = serializers.IntegerField(help_text="Number of prompts.")

    class Meta:
        model = PromptSet
        fields: tuple[str, ...] = ("id", "name", "size", "created_at")


class WholePromptSetSerializer(serializers.ModelSerializer[PromptSet]):
    """A prompt set with its prompts."""

    prompts = serializers.SerializerMethodField(help_text="Ids, lowest first.")

    class Meta:
        model = PromptSet
        fields = ("id", "name", "prompts", "created_at")

    def get_prompts(self, prompt_set: PromptSet) -> list[int]:
        """In the order in which they are asked."""
        return list(prompt_set.prompts.order_by("pk").values_list("pk", flat=True))


class NewPromptSetSerializer(serializers.Serializer[Any]):
    """A prompt set to be created."""

    name = serializers.CharField(max_length=LONGEST_NAME)
    prompts = _ids(default=list, help_text="Ids of prompts of the project.")


class PromptSetChangeSerializer(serializers.Serializer[Any]):
    """Changes of a prompt set."""

    name = serializers.CharField(max_length=LONGEST_NAME, required=False)
    add = _ids(help_text="Ids of prompts to add.")
    remove = _ids(help_text="Ids of prompts to take out.")


class PromptSetsView(ListView, ProjectView):
    """The prompt sets of a project. For managers."""

    serializer_class = PromptSetSerializer
    queryset = PromptSet.objects.none()

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        """All of them."""
        return prompt_sets_of(self.project)

    @extend_schema(
        operation_id="prompt_sets_list", tags=["checkpoints"], responses=PromptSetSerializer(many=True)
    )
    def get(self, request: Request, slug: str) -> Response:
        """List the prompt sets of a project, newest first."""
        return self.listed()

    @extend_schema(
        operation_id="prompt_sets_create",
        tags=["checkpoints"],
        request=NewPromptSetSerializer,
        responses={201: WholePromptSetSerializer},
    )
    def post(self, request: Request, slug: str) -> Response:
        """Create a prompt set of prompts of the project."""
        values = read_body(NewPromptSetSerializer, request)
        made = create_prompt_set(project=self.project, created_by=self.user, **values)
        return Response(WholePromptSetSerializer(made).data, status=201)


class PromptSetView(ProjectView):
    """One prompt set. For managers."""

    def prompt_set(self, pk: int) -> PromptSet:
        """Return the set in the address."""
        return get_object_or_404(self.project.prompt_sets.select_related("project"), pk=pk)

    @extend_schema(operation_id="prompt_sets_read", tags=["checkpoints"], responses=WholePromptSetSerializer)
    def get(self, request: Request, slug: str, pk: int) -> Response:
        """Read a prompt set with the ids of its prompts."""
        return Response(WholePromptSetSerializer(self.prompt_set(pk)).data)

    @extend_schema(
        operation_id="prompt_sets_change",
        tags=["checkpoints"],
        request=PromptSetChangeSerializer,
        responses=WholePromptSetSerializer,
    )
    def patch(self, request: Request, slug: str, pk: int) -> Response:
        """Rename a prompt set, add prompts and take others out. What is not sent stays."""
        prompt_set = self.prompt_set(pk)
        values = read_body(PromptSetChangeSerializer, request)
        with transaction.atomic():
            if "name" in values:
                rename_prompt_set(prompt_set=prompt_set, name=values["name"], changed_by=self.user)
            if "add" in values:
                add_prompts(prompt_set=prompt_set, prompts=values["add"], changed_by=self.user)
            if "remove" in values:
                remove_prompts(prompt_set=prompt_set, prompts=values["remove"], changed_by=self.user)
        return Response(WholePromptSetSerializer(prompt_set).data)

    @extend_schema(operation_id="prompt_sets_delete", tags=["checkpoints"], responses={204: None})
    def delete(self, request: Request, slug: str, pk: int) -> Response:
        """Delete a prompt set. Its prompts and the comparisons on them stay."""
        delete_prompt_set(prompt_set=self.prompt_set(pk), deleted_by=self.user)
        return Response(status=204)
