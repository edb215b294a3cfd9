"""Comparisons, their candidates, and who has them."""

from typing import Any

from django.contrib import admin, messages
from django.db import models
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from annotation.admin.base import BoundedAdmin, WrittenOnceAdmin, WrittenOnceInline
from annotation.choices import AssignmentState
from annotation.errors import Refusal
from annotation.models import (
    AnnotatorTally,
    Assignment,
    BulkChange,
    Candidate,
    Comparison,
    Completion,
    CompletionScore,
    CompletionSource,
    Continuation,
    Conversation,
    ConversationTask,
    ConversationTurn,
    Correction,
    CorrectionEdit,
    Critique,
    DecidedSuggestion,
    Demonstration,
    DisplayTally,
    Draft,
    GoldAnswer,
    HelpReveal,
    HelpSettings,
    ItemFlag,
    Judgment,
    LabelledStep,
    MissingInfo,
    Prompt,
    QuestionAnswer,
    QueuedComparison,
    RankedCompletion,
    Rating,
    RepeatedQuestion,
    Review,
    ReviewDecision,
    ReviewReturn,
    SavedView,
    SpanFlag,
    Suggestion,
    SuggestionSet,
    TraceStep,
    ViewQueue,
    Withholding,
)
from annotation.services.assignments.leases import release_assignment
from annotation.text.edits import pieces


class CandidateInline(WrittenOnceInline):
    model = Candidate
    fields = ["index", "completion", "source"]
    readonly_fields = ["source"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Candidate]:
        return super().get_queryset(request).select_related("comparison", "completion__source")

    @admin.display(description="Source")
    def source(self, candidate: Candidate) -> str:
        return str(candidate.completion.source)


class AssignmentInline(WrittenOnceInline):
    model = Assignment
    fields = ["annotator", "slot", "state", "leased_at", "closed_at"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Assignment]:
        return super().get_queryset(request).select_related("comparison", "annotator")


@admin.register(Comparison)
class ComparisonAdmin(BoundedAdmin):
    """Only the priority can change: what is compared, and by how many, is decided when it is created."""

    list_display = [
        "__str__",
        "project",
        "prompt",
        "round_number",
        "purpose",
        "priority",
        "overlap",
        "open_slots",
    ]
    list_filter = ["project", "purpose", "round_number", "size", "created_at"]
    list_select_related = ["project", "prompt"]
    search_fields = ["=id", "prompt__messages"]
    readonly_fields = [
        "project", "prompt", "round_number", "purpose", "size", "overlap", "open_slots", "acquisition_score",
        "shuffle", "completion_set", "created_at",
    ]  # fmt: skip
    inlines = [CandidateInline, AssignmentInline]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False


@admin.register(Candidate)
class CandidateAdmin(WrittenOnceAdmin):
    list_display = ["comparison", "index", "completion"]
    list_filter = ["comparison__project", "comparison__round_number"]
    list_select_related = ["comparison", "completion"]
    search_fields = ["=comparison__id", "completion__text"]


@admin.register(Assignment)
class AssignmentAdmin(WrittenOnceAdmin):
    list_display = ["comparison", "annotator", "slot", "state", "leased_at", "lease_expires_at", "closed_at"]
    list_filter = [
        "state",
        "arm",
        "comparison__project",
        "comparison__purpose",
        "comparison__round_number",
        "leased_at",
    ]
    list_select_related = ["comparison", "annotator"]
    search_fields = [
        "=comparison__id",
        "annotator__username",
        "annotator__first_name",
        "annotator__last_name",
    ]
    actions = ["give_back"]

    def has_give_back_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("annotation.change_assignment")

    @admin.action(description="Give leased comparisons back", permissions=["give_back"])
    def give_back(self, request: HttpRequest, queryset: QuerySet[Assignment]) -> None:
        """End leases before their time, so that others get the comparisons."""
        released, refused = 0, 0
        for assignment in queryset.select_related("annotator").filter(state=AssignmentState.LEASED):
            try:
                release_assignment(assignment=assignment, annotator=assignment.annotator)
                released += 1
            except Refusal:
                # It was submitted or ran out while this page was read.
                refused += 1
        message = f"{released} given back."
        if refused:
            message += f" {refused} were no longer leased and stay as they are."
        self.message_user(request, message, messages.SUCCESS if released else messages.WARNING)


@admin.register(AnnotatorTally)
class AnnotatorTallyAdmin(WrittenOnceAdmin):
    list_display: Any = ["project", "annotator", "submitted", "retests", "round_number", "round_done"]
    list_filter = ["project"]
    list_select_related = ["project", "annotator"]
    search_fields = ["project__name", "project__slug", "annotator__username"]


@admin.register(DisplayTally)
class DisplayTallyAdmin(WrittenOnceAdmin):
    list_display: Any = ["project", "size", "lane", "drawn"]
    list_filter = ["project", "size"]
    list_select_related = ["project"]
    search_fields = ["project__name", "project__slug"]


@admin.register(GoldAnswer)
class GoldAnswerAdmin(WrittenOnceAdmin):
    list_display = ["comparison", "verdict", "explanation", "created_by", "created_at"]
    list_filter = ["verdict", "comparison__purpose", "comparison__project"]
    list_select_related = ["comparison", "created_by"]
    search_fields = ["=comparison__id", "explanation"]


@admin.register(Withholding)
class WithholdingAdmin(WrittenOnceAdmin):
    list_display = ["comparison", "quote", "state", "decided_by", "decided_at"]
    list_filter = ["state", "comparison__project"]
    list_select_related = ["comparison", "decided_by"]
    search_fields = ["=comparison__id", "quote"]


@admin.register(ItemFlag)
class ItemFlagAdmin(WrittenOnceAdmin):
    list_display = ["assignment", "reason", "details", "created_at"]
    list_filter = ["reason", "assignment__comparison__project", "created_at"]
    list_select_related = ["assignment__comparison", "assignment__annotator"]
    search_fields = ["=assignment__comparison__id", "reason", "details", "assignment__annotator__username"]


@admin.register(Draft)
class DraftAdmin(WrittenOnceAdmin):
    list_display = ["assignment", "version", "saved_at"]
    list_filter = ["assignment__comparison__project", "saved_at"]
    list_select_related = ["assignment__comparison", "assignment__annotator"]
    search_fields = ["=assignment__comparison__id", "assignment__annotator__username"]


@admin.register(Review)
class ReviewAdmin(WrittenOnceAdmin):
    list_display = ["comparison", "reason", "verdict", "reviewer", "opened_at", "decided_at"]
    list_filter = ["reason", "verdict", "comparison__project"]
    list_select_related = ["comparison", "reviewer"]
    search_fields = ["=comparison__id", "comment", "reviewer__username"]


@admin.register(ReviewDecision)
class ReviewDecisionAdmin(WrittenOnceAdmin):
    list_display = ["review", "kind", "verdict", "reviewer", "created_at"]
    list_filter = ["kind", "verdict", "review__comparison__project"]
    list_select_related = ["review__comparison", "reviewer"]
    search_fields = ["=review__comparison__id", "comment", "reviewer__username"]


@admin.register(ReviewReturn)
class ReviewReturnAdmin(WrittenOnceAdmin):
    list_display = ["assignment", "state", "returned_by", "returned_at", "closed_at"]
    list_filter = ["state", "review__comparison__project"]
    list_select_related = ["assignment__comparison", "assignment__annotator", "returned_by"]
    search_fields = ["=assignment__comparison__id", "comment", "objection"]


# Conversations in the admin: to be found and read.


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


# Prompts, completions and who wrote them.


@admin.register(Prompt)
class PromptAdmin(BoundedAdmin):
    """Prompts come from `import_prompts`. Content never changes; references and tags may be corrected."""

    list_display = ["__str__", "project", "split", "tags", "created_at"]
    list_filter = ["split", "project", "created_at"]
    list_select_related = ["project"]
    search_fields = ["messages", "tags", "content_hash"]
    readonly_fields = ["project", "messages", "context", "content_hash", "split", "created_at"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


@admin.register(CompletionSource)
class CompletionSourceAdmin(BoundedAdmin):
    list_display = ["name", "kind", "created_at"]
    list_filter = ["kind", "created_at"]
    search_fields = ["name"]
    readonly_fields = ["created_at"]

    def get_readonly_fields(self, request: HttpRequest, obj: models.Model | None = None) -> Any:
        # Checkpoints and exports go by the name.
        return ["name", "kind", "created_at"] if obj else self.readonly_fields


@admin.register(Completion)
class CompletionAdmin(WrittenOnceAdmin):
    list_display = ["__str__", "source", "prompt", "seed", "finish_reason", "token_count", "created_at"]
    list_filter = ["source", "finish_reason", "prompt__project", "created_at"]
    list_select_related = ["source", "prompt"]
    search_fields = ["text", "text_hash", "source__name"]


@admin.register(TraceStep)
class TraceStepAdmin(WrittenOnceAdmin):
    list_display = ["completion", "index", "kind", "role", "tool", "start", "end"]
    list_filter = ["kind", "is_error", "completion__prompt__project"]
    list_select_related = ["completion"]
    search_fields = ["=completion__id", "tool"]


@admin.register(CompletionScore)
class CompletionScoreAdmin(WrittenOnceAdmin):
    list_display = ["completion", "scorer", "value", "created_at"]
    list_filter = ["scorer", "completion__prompt__project"]
    list_select_related = ["completion"]
    search_fields = ["=completion__id", "scorer", "completion__text"]


# Judgments and all that belongs to them: to be read, and nothing else.


class _OfJudgmentInline(WrittenOnceInline):
    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        names = {field.name for field in self.model._meta.fields}
        relations = ("judgment", "completion", "category", "criterion", "step", "version")
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


class QuestionAnswerInline(_OfJudgmentInline):
    model = QuestionAnswer
    fields = ["version", "completion", "value"]


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
        QuestionAnswerInline,
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


@admin.register(QuestionAnswer)
class QuestionAnswerAdmin(WrittenOnceAdmin):
    list_display = ["__str__", "version", "completion", "judgment"]
    list_filter = ["judgment__comparison__project"]
    list_select_related = ["version", "completion", "judgment__annotator"]
    search_fields = ["=judgment__id", "version__text"]


@admin.register(RepeatedQuestion)
class RepeatedQuestionAdmin(WrittenOnceAdmin):
    list_display = ["question", "assignment", "created_at", "answered_at"]
    list_filter = ["question__project", "created_at"]
    list_select_related = ["question", "assignment__annotator", "assignment__comparison"]
    search_fields = ["question__key", "assignment__annotator__username"]


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


@admin.register(SavedView)
class SavedViewAdmin(WrittenOnceAdmin):
    """Saved views of tables."""

    list_display = ["name", "project", "table", "owner", "is_shared", "created_at"]
    list_filter = ["table", "is_shared", "project"]
    list_select_related = ["project", "owner"]
    search_fields = ["name", "owner__username"]


@admin.register(ViewQueue)
class ViewQueueAdmin(WrittenOnceAdmin):
    """Views that are assigned to members."""

    list_display = ["name", "project", "member", "created_at", "ended_at"]
    list_filter = ["project", "created_at", "ended_at"]
    list_select_related = ["project", "member"]
    search_fields = ["name", "member__username"]


@admin.register(QueuedComparison)
class QueuedComparisonAdmin(WrittenOnceAdmin):
    """Comparisons of queues."""

    list_display = ["comparison", "queue", "is_opened"]
    list_filter = ["is_opened", "queue__project"]
    list_select_related = ["comparison", "queue__member"]
    search_fields = ["queue__name"]


@admin.register(BulkChange)
class BulkChangeAdmin(WrittenOnceAdmin):
    """Bulk changes that can be undone for a day."""

    list_display = ["action", "value", "project", "changed", "actor", "created_at", "undone_at"]
    list_filter = ["action", "project", "created_at"]
    list_select_related = ["project", "actor"]
    search_fields = ["action", "value", "actor__username"]
