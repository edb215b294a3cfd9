"""Conversations with checkpoints in the admin: to be found and read."""

from django.contrib import admin

from annotation.admin.base import WrittenOnceAdmin
from training.models import ArenaTalk, ConversationSettings, ModelDraw, PreparedOpening, TurnResponse


@admin.register(ConversationSettings)
class ConversationSettingsAdmin(WrittenOnceAdmin):
    list_display = ["project", "responses", "continues_with", "most_turns", "is_open"]
    list_filter = ["is_open", "continues_with"]
    list_select_related = ["project"]
    search_fields = ["project__name", "project__slug"]
    exclude = ["checkpoints"]


@admin.register(TurnResponse)
class TurnResponseAdmin(WrittenOnceAdmin):
    list_display = ["__str__", "turn", "position", "checkpoint", "seed", "written_at"]
    list_filter = ["checkpoint", "written_at"]
    list_select_related = ["turn__conversation", "checkpoint"]
    search_fields = ["text", "checkpoint__name", "=turn__conversation__id"]


@admin.register(ModelDraw)
class ModelDrawAdmin(WrittenOnceAdmin):
    list_display = ["project", "scope", "models_key", "drawn"]
    list_filter = ["project"]
    list_select_related = ["project"]
    search_fields = ["project__name", "scope", "models_key"]


@admin.register(ArenaTalk)
class ArenaTalkAdmin(WrittenOnceAdmin):
    list_display = ["arena", "conversation"]
    list_filter = ["arena"]
    list_select_related = ["arena", "conversation"]
    search_fields = ["arena__name", "=conversation__id"]


@admin.register(PreparedOpening)
class PreparedOpeningAdmin(WrittenOnceAdmin):
    list_display = ["task", "key", "created_at"]
    list_filter = ["created_at"]
    list_select_related = ["task"]
    search_fields = ["task__name", "=key"]
