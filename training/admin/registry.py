"""Base models, exports of checkpoints and figures of drift in the admin: to be found and read."""

from django.contrib import admin

from annotation.admin.base import WrittenOnceAdmin
from training.models import (
    BaseModel,
    BaseModelAddition,
    CheckpointExport,
    DriftFigure,
    DriftMeasurement,
    ProjectBase,
)


@admin.register(BaseModel)
class BaseModelAdmin(WrittenOnceAdmin):
    list_display = ["name", "origin", "repository", "licence", "created_by", "created_at"]
    list_filter = ["origin", "created_at"]
    list_select_related = ["created_by"]
    search_fields = ["name", "repository", "licence"]


@admin.register(BaseModelAddition)
class BaseModelAdditionAdmin(WrittenOnceAdmin):
    list_display = ["name", "origin", "state", "current", "total", "created_by", "created_at"]
    list_filter = ["state", "origin", "created_at"]
    list_select_related = ["created_by"]
    search_fields = ["name", "repository", "folder", "error"]


@admin.register(ProjectBase)
class ProjectBaseAdmin(WrittenOnceAdmin):
    list_display = ["project", "base", "chosen_by", "chosen_at"]
    list_filter = ["base", "chosen_at"]
    list_select_related = ["project", "base", "chosen_by"]
    search_fields = ["project__name", "base__name"]


@admin.register(CheckpointExport)
class CheckpointExportAdmin(WrittenOnceAdmin):
    list_display = ["checkpoint", "merged", "repository", "state", "created_by", "created_at"]
    list_filter = ["state", "merged", "checkpoint__project", "created_at"]
    list_select_related = ["checkpoint", "created_by"]
    search_fields = ["checkpoint__name", "repository", "error"]


@admin.register(DriftMeasurement)
class DriftMeasurementAdmin(WrittenOnceAdmin):
    list_display = ["project", "state", "current", "total", "created_by", "created_at"]
    list_filter = ["state", "project", "created_at"]
    list_select_related = ["project", "created_by"]
    search_fields = ["project__name", "message", "error"]


@admin.register(DriftFigure)
class DriftFigureAdmin(WrittenOnceAdmin):
    list_display = ["checkpoint", "round_number", "agreeing", "pairs", "held_out_pairs", "measured_at"]
    list_filter = ["checkpoint__project", "round_number"]
    list_select_related = ["checkpoint"]
    search_fields = ["checkpoint__name"]
