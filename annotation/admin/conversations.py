"""Conversations in the admin: to be found and read."""

from django.contrib import admin

from annotation.admin.base import WrittenOnceAdmin
from annotation.models import Conversation, ConversationTask, ConversationTurn


@admin.register(ConversationTask)
class ConversationTaskAdmin(WrittenOnceAdmin):
    list_display = ["name", "project", "language", "harm_category", "archived_at"]
    list_filter = ["project", "archived_at"]
    list_select_related = ["project"]
    search_fields = ["name", "instructions", "project__name"]


@admin.register(Conversation)
class ConversationAdmin(WrittenOnceAdmin):
    list_display = [
        "id",
        "project",
        "annotator",
        "task",
        "rating",
        "attack_success",
        "created_at",
        "ended_at",
    ]
    list_filter = ["project", "created_at", "ended_at"]
    list_select_related = ["project", "annotator", "task"]
    search_fields = ["=id", "annotator__username", "task__name", "project__name"]


@admin.register(ConversationTurn)
class ConversationTurnAdmin(WrittenOnceAdmin):
    list_display = ["__str__", "prompt", "comparison", "created_at"]
    list_filter = ["conversation__project", "created_at"]
    list_select_related = ["conversation", "prompt", "comparison"]
    search_fields = ["=conversation__id", "=comparison__id"]
