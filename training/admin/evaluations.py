"""Evaluations in the admin: to be found and read."""

from django.contrib import admin

from annotation.admin.base import WrittenOnceAdmin
from training.models import EvaluatedPrompt, Evaluation, YardstickResult


@admin.register(Evaluation)
class EvaluationAdmin(WrittenOnceAdmin):
    list_display = ["checkpoint", "parent", "round", "reward_model", "created_at", "finished_at"]
    list_filter = ["round__project", "finished_at"]
    list_select_related = ["checkpoint", "parent", "round__project", "reward_model"]
    search_fields = ["checkpoint__name", "parent__name"]


@admin.register(EvaluatedPrompt)
class EvaluatedPromptAdmin(WrittenOnceAdmin):
    list_display = ["evaluation", "prompt", "figures"]
    list_filter = ["evaluation__round__project"]
    list_select_related = ["evaluation__checkpoint", "evaluation__parent", "prompt"]
    search_fields = ["evaluation__checkpoint__name"]
    raw_id_fields = ["prompt", "old", "new"]


@admin.register(YardstickResult)
class YardstickResultAdmin(WrittenOnceAdmin):
    list_display = ["checkpoint", "name", "items", "created_at"]
    list_filter = ["name"]
    list_select_related = ["checkpoint"]
    search_fields = ["checkpoint__name", "name"]
