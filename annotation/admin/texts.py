"""Prompts, completions and who wrote them."""

from typing import Any

from django.contrib import admin
from django.db import models
from django.http import HttpRequest

from annotation.admin.base import BoundedAdmin, WrittenOnceAdmin
from annotation.models import Completion, CompletionScore, CompletionSource, Prompt, TraceStep


@admin.register(Prompt)
class PromptAdmin(BoundedAdmin):
    """Prompts come from `import_prompts`. Content never changes; references and tags may be corrected."""

    list_display = ["__str__", "project", "split", "tags", "created_at"]
    list_filter = ["split", "project", "created_at"]
    list_select_related = ["project"]
    search_fields = ["messages", "tags", "content_hash"]
    readonly_fields = ["project", "messages", "context", "content_hash", "split", "created_at"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


@admin.register(CompletionSource)
class CompletionSourceAdmin(BoundedAdmin):
    list_display = ["name", "kind", "created_at"]
    list_filter = ["kind", "created_at"]
    search_fields = ["name"]
    readonly_fields = ["created_at"]

    def get_readonly_fields(self, request: HttpRequest, obj: models.Model | None = None) -> Any:
        # Checkpoints and exports go by the name.
        return ["name", "kind", "created_at"] if obj else self.readonly_fields


@admin.register(Completion)
class CompletionAdmin(WrittenOnceAdmin):
    list_display = ["__str__", "source", "prompt", "seed", "finish_reason", "token_count", "created_at"]
    list_filter = ["source", "finish_reason", "prompt__project", "created_at"]
    list_select_related = ["source", "prompt"]
    search_fields = ["text", "text_hash", "source__name"]


@admin.register(TraceStep)
class TraceStepAdmin(WrittenOnceAdmin):
    list_display = ["completion", "index", "kind", "role", "tool", "start", "end"]
    list_filter = ["kind", "is_error", "completion__prompt__project"]
    list_select_related = ["completion"]
    search_fields = ["=completion__id", "tool"]


@admin.register(CompletionScore)
class CompletionScoreAdmin(WrittenOnceAdmin):
    list_display = ["completion", "scorer", "value", "created_at"]
    list_filter = ["scorer", "completion__prompt__project"]
    list_select_related = ["completion"]
    search_fields = ["=completion__id", "scorer", "completion__text"]
