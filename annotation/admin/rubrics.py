"""Rubrics and the scores by them, in the admin: to be found and read."""

from django.contrib import admin

from annotation.admin.base import WrittenOnceAdmin, WrittenOnceInline
from annotation.models import Rubric, RubricCriterion, RubricScore, RubricVersion


class RubricCriterionInline(WrittenOnceInline):
    model = RubricCriterion
    fields = ["position", "key", "name", "scale", "weight", "text", "levels"]


@admin.register(Rubric)
class RubricAdmin(WrittenOnceAdmin):
    list_display = ["name", "project", "published", "is_asked", "created_at"]
    list_filter = ["is_asked", "project"]
    list_select_related = ["project", "published__rubric"]
    search_fields = ["name", "project__name"]


@admin.register(RubricVersion)
class RubricVersionAdmin(WrittenOnceAdmin):
    list_display = ["rubric", "number", "created_by", "created_at"]
    list_filter = ["rubric__project", "created_at"]
    list_select_related = ["rubric", "created_by"]
    search_fields = ["rubric__name"]
    inlines = [RubricCriterionInline]


@admin.register(RubricCriterion)
class RubricCriterionAdmin(WrittenOnceAdmin):
    list_display = ["name", "version", "key", "scale", "weight"]
    list_filter = ["scale", "version__rubric__project"]
    list_select_related = ["version__rubric"]
    search_fields = ["name", "text", "key"]


@admin.register(RubricScore)
class RubricScoreAdmin(WrittenOnceAdmin):
    list_display = ["judgment", "completion", "criterion", "value"]
    list_filter = ["criterion__version__rubric__project"]
    list_select_related = ["judgment__annotator", "completion", "criterion"]
    search_fields = ["=judgment__id", "reason"]
