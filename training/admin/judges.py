"""Judges and how their judgments came about, in the admin: to be found and read."""

from django.contrib import admin

from annotation.admin.base import WrittenOnceAdmin
from training.models import Judge, JudgeVerdict


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
