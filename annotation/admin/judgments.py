"""Judgments and all that belongs to them: to be read, and nothing else."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from annotation.admin.base import WrittenOnceAdmin, WrittenOnceInline
from annotation.models import (
    Continuation,
    Correction,
    CorrectionEdit,
    Critique,
    DecidedSuggestion,
    Demonstration,
    HelpReveal,
    HelpSettings,
    Judgment,
    LabelledStep,
    MissingInfo,
    RankedCompletion,
    Rating,
    SpanFlag,
    Suggestion,
    SuggestionSet,
)
from annotation.text.edits import pieces


class _OfJudgmentInline(WrittenOnceInline):
    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        names = {field.name for field in self.model._meta.fields}
        relations = ("judgment", "completion", "category", "criterion", "step")
        related = [name for name in relations if name in names]
        return super().get_queryset(request).select_related(*related)


class RankedCompletionInline(_OfJudgmentInline):
    model = RankedCompletion
    fields = ["rank", "completion"]


class SpanFlagInline(_OfJudgmentInline):
    model = SpanFlag
    fields = ["completion", "category", "start", "end", "quote", "severity", "note"]


class MissingInfoInline(_OfJudgmentInline):
    model = MissingInfo
    fields = [
        *("completion", "category", "text", "insert_at"),
        *("passage", "sentence", "quote", "further_evidence"),
    ]


class LabelledStepInline(_OfJudgmentInline):
    model = LabelledStep
    fields = ["step", "label"]


class CorrectionInline(_OfJudgmentInline):
    model = Correction
    fields = ["completion", "text", "changes"]
    readonly_fields = ["changes"]

    @admin.display(description="What was changed")
    def changes(self, correction: Correction) -> SafeString:
        return _changes(correction)


class RatingInline(_OfJudgmentInline):
    model = Rating
    fields = ["completion", "criterion", "value"]


class CritiqueInline(_OfJudgmentInline):
    model = Critique
    fields = ["completion", "text"]


class DemonstrationInline(_OfJudgmentInline):
    model = Demonstration
    fields = ["text"]


def _changes(correction: Correction) -> SafeString:
    """Both texts in one: what went is struck through, what came is underlined."""
    tags = {"same": "{}", "deleted": "<del>{}</del>", "inserted": "<ins>{}</ins>"}
    return format_html_join(
        "",
        "{}",
        (
            (format_html(tags[piece.kind], piece.text),)
            for piece in pieces(correction.completion.text, correction.text)
        ),
    )


class CurrentFilter(admin.SimpleListFilter):
    """Filter: judgments that are current, or superseded ones."""

    title = "standing"
    parameter_name = "standing"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("current", "current"), ("superseded", "superseded")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Judgment]) -> QuerySet[Judgment]:
        if self.value() is None:
            return queryset
        return queryset.filter(superseded_by__isnull=self.value() == "current")


@admin.register(Judgment)
class JudgmentAdmin(WrittenOnceAdmin):
    list_display = ["__str__", "comparison", "verdict", "strength", "guideline", "supersedes", "created_at"]
    list_filter = [CurrentFilter, "verdict", "comparison__project", "comparison__round_number", "created_at"]
    list_select_related = ["annotator", "comparison", "guideline__project", "supersedes__annotator"]
    search_fields = ["=id", "=comparison__id", "annotator__username", "comment"]
    inlines = [
        RankedCompletionInline,
        SpanFlagInline,
        MissingInfoInline,
        LabelledStepInline,
        RatingInline,
        CorrectionInline,
        CritiqueInline,
        DemonstrationInline,
    ]


@admin.register(RankedCompletion)
class RankedCompletionAdmin(WrittenOnceAdmin):
    list_display = ["judgment", "rank", "completion"]
    list_filter = ["rank", "judgment__comparison__project"]
    list_select_related = ["judgment__annotator", "completion"]
    search_fields = ["=judgment__id", "completion__text"]


@admin.register(SpanFlag)
class SpanFlagAdmin(WrittenOnceAdmin):
    list_display = ["quote", "category", "start", "end", "completion", "judgment"]
    list_filter = ["category", "judgment__comparison__project"]
    list_select_related = ["category", "completion", "judgment__annotator"]
    search_fields = ["=judgment__id", "quote", "note"]


@admin.register(MissingInfo)
class MissingInfoAdmin(WrittenOnceAdmin):
    list_display = ["__str__", "category", "passage", "sentence", "completion", "judgment"]
    list_filter = ["category", "judgment__comparison__project"]
    list_select_related = ["category", "completion", "judgment__annotator"]
    search_fields = ["=judgment__id", "text", "quote"]


class CorrectionEditInline(WrittenOnceInline):
    model = CorrectionEdit
    fields = ["index", "start", "end", "quote", "replacement"]


@admin.register(Correction)
class CorrectionAdmin(WrittenOnceAdmin):
    list_display = ["__str__", "completion", "judgment"]
    list_filter = ["judgment__comparison__project"]
    list_select_related = ["completion", "judgment__annotator"]
    search_fields = ["=judgment__id", "text"]
    readonly_fields = ["changes"]
    inlines = [CorrectionEditInline]

    @admin.display(description="What was changed")
    def changes(self, correction: Correction) -> SafeString:
        return _changes(correction)


@admin.register(CorrectionEdit)
class CorrectionEditAdmin(WrittenOnceAdmin):
    list_display = ["correction", "index", "start", "end", "quote", "replacement"]
    list_filter = ["correction__judgment__comparison__project"]
    list_select_related = ["correction"]
    search_fields = ["=correction__id", "quote", "replacement"]


@admin.register(Continuation)
class ContinuationAdmin(WrittenOnceAdmin):
    list_display = ["assignment", "completion", "seed", "finish_reason", "created_at"]
    list_filter = ["finish_reason", "assignment__comparison__project"]
    list_select_related = ["assignment__annotator", "assignment__comparison", "completion"]
    search_fields = ["=assignment__id", "prefix", "text"]


@admin.register(LabelledStep)
class LabelledStepAdmin(WrittenOnceAdmin):
    list_display = ["judgment", "step", "label"]
    list_filter = ["label", "judgment__comparison__project"]
    list_select_related = ["judgment__annotator", "step"]
    search_fields = ["=judgment__id", "step__tool"]


@admin.register(Rating)
class RatingAdmin(WrittenOnceAdmin):
    list_display = ["judgment", "completion", "criterion", "value"]
    list_filter = ["criterion", "value", "judgment__comparison__project"]
    list_select_related = ["judgment__annotator", "completion", "criterion"]
    search_fields = ["=judgment__id", "completion__text"]


@admin.register(Critique)
class CritiqueAdmin(WrittenOnceAdmin):
    list_display = ["__str__", "completion", "judgment"]
    list_filter = ["judgment__comparison__project"]
    list_select_related = ["completion", "judgment__annotator"]
    search_fields = ["=judgment__id", "text"]


@admin.register(Demonstration)
class DemonstrationAdmin(WrittenOnceAdmin):
    list_display = ["__str__", "judgment"]
    list_filter = ["judgment__comparison__project"]
    list_select_related = ["judgment__annotator"]
    search_fields = ["=judgment__id", "text"]


# Suggestions, reveals and decisions, in the admin: to be found and read.


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
