"""Judges and how their judgments came about, in the admin: to be found and read."""

from django.contrib import admin

from annotation.admin.base import WrittenOnceAdmin
from training.models import Judge, JudgeVerdict, RubricDraft, SuggestionSource


@admin.register(Judge)
class JudgeAdmin(WrittenOnceAdmin):
    list_display = ["name", "project", "checkpoint", "state", "is_active", "questions", "created_at"]
    list_filter = ["state", "is_active", "project", "created_at"]
    list_select_related = ["project", "checkpoint"]
    search_fields = ["name", "project__name", "checkpoint__name", "error"]


@admin.register(JudgeVerdict)
class JudgeVerdictAdmin(WrittenOnceAdmin):
    list_display = ["judge", "judgment", "model", "orders_agree", "created_at"]
    list_filter = ["orders_agree", "judge__project", "created_at"]
    list_select_related = ["judge", "judgment__annotator", "judgment__comparison"]
    search_fields = ["judge__name", "model"]


@admin.register(RubricDraft)
class RubricDraftAdmin(WrittenOnceAdmin):
    list_display = ["__str__", "project", "state", "pairs_read", "pairs_checked", "version", "created_at"]
    list_filter = ["state", "project", "created_at"]
    list_select_related = ["project", "checkpoint", "version__rubric"]
    search_fields = ["project__name", "checkpoint__name", "error"]


@admin.register(SuggestionSource)
class SuggestionSourceAdmin(WrittenOnceAdmin):
    list_display = ["project", "checkpoint", "state", "is_active", "compared", "suggested", "planted"]
    list_filter = ["state", "is_active", "project"]
    list_select_related = ["project", "checkpoint"]
    search_fields = ["project__name", "checkpoint__name", "error"]
