"""Admin of what the choice of comparisons goes by."""

from django.contrib import admin

from annotation.admin.base import WrittenOnceAdmin
from annotation.models import AcquisitionFigures, CompletionFeatures


@admin.register(CompletionFeatures)
class CompletionFeaturesAdmin(WrittenOnceAdmin):
    list_display = ["completion", "space"]
    list_filter = ["space", "completion__prompt__project"]
    list_select_related = ["completion"]
    search_fields = ["=completion__id", "space"]


@admin.register(AcquisitionFigures)
class AcquisitionFiguresAdmin(WrittenOnceAdmin):
    list_display = ["project", "judgments", "comparisons", "updated_at"]
    list_filter = ["project", "updated_at"]
    list_select_related = ["project"]
    search_fields = ["project__slug", "project__name"]
