"""Suggestions, reveals and decisions, in the admin: to be found and read."""

from django.contrib import admin

from annotation.admin.base import WrittenOnceAdmin
from annotation.models import DecidedSuggestion, HelpReveal, HelpSettings, Suggestion, SuggestionSet


@admin.register(HelpSettings)
class HelpSettingsAdmin(WrittenOnceAdmin):
    """The settings of each project's suggestions."""

    list_display = ["project", "control_share", "planted_share", "unread_seconds", "tells_planted"]
    list_filter = ["tells_planted"]
    list_select_related = ["project"]
    search_fields = ["project__name", "project__slug"]


@admin.register(SuggestionSet)
class SuggestionSetAdmin(WrittenOnceAdmin):
    """Comparisons whose suggestions are computed."""

    list_display = ["comparison", "source", "created_at"]
    list_filter = ["comparison__project", "source", "created_at"]
    list_select_related = ["comparison"]
    search_fields = ["source"]


@admin.register(Suggestion)
class SuggestionAdmin(WrittenOnceAdmin):
    """Suggestions, the planted ones too."""

    list_display = ["suggestion_set", "kind", "category", "quote", "text", "confidence", "is_planted"]
    list_filter = ["kind", "is_planted", "suggestion_set__comparison__project"]
    list_select_related = ["suggestion_set__comparison", "category"]
    search_fields = ["quote", "text"]


@admin.register(HelpReveal)
class HelpRevealAdmin(WrittenOnceAdmin):
    """Two passes over one comparison."""

    list_display = ["assignment", "arm", "revealed_at", "finished_at"]
    list_filter = ["arm", "assignment__comparison__project", "revealed_at"]
    list_select_related = ["assignment__comparison", "assignment__annotator"]
    search_fields = ["assignment__annotator__username"]


@admin.register(DecidedSuggestion)
class DecidedSuggestionAdmin(WrittenOnceAdmin):
    """Decisions on suggestions."""

    list_display = ["reveal", "suggestion", "decision", "seconds", "decided_at"]
    list_filter = ["decision", "suggestion__kind", "suggestion__is_planted", "decided_at"]
    list_select_related = [
        *("reveal__assignment__comparison", "reveal__assignment__annotator"),
        "suggestion__suggestion_set__comparison",
    ]
    search_fields = ["reveal__assignment__annotator__username", "suggestion__quote", "suggestion__text"]
