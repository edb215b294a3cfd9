"""Comparisons, their candidates, and who has them."""

from typing import Any

from django.contrib import admin, messages
from django.db import models
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from annotation.admin.base import BoundedAdmin, WrittenOnceAdmin, WrittenOnceInline, read_only
from annotation.choices import AssignmentState
from annotation.errors import Refusal
from annotation.models import (
    AnnotatorTally,
    Assignment,
    BulkChange,
    CalibrationAnswer,
    CalibrationItem,
    CalibrationSession,
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
    ImportSource,
    ItemFlag,
    Judgment,
    LabelledStep,
    MissingInfo,
    PasteRecord,
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
    SourceFile,
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


read_only(
    Candidate,
    "comparison index completion",
    "comparison__project comparison__round_number",
    "=comparison__id completion__text",
)


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


read_only(
    AnnotatorTally,
    "project annotator submitted retests round_number round_done",
    "project",
    "project__name project__slug annotator__username",
)
read_only(DisplayTally, "project size lane drawn", "project size", "project__name project__slug")
read_only(
    GoldAnswer,
    "comparison verdict explanation created_by created_at",
    "verdict comparison__purpose comparison__project",
    "=comparison__id explanation",
)
read_only(
    Withholding,
    "comparison quote state decided_by decided_at",
    "state comparison__project",
    "=comparison__id quote",
)
read_only(
    CalibrationSession,
    "name project created_by created_at revealed_at closed_at",
    "project revealed_at closed_at",
    "name project__name",
)
read_only(
    CalibrationItem,
    "session comparison index is_open",
    "is_open session__project",
    "session__name =comparison__id",
)
read_only(
    CalibrationAnswer,
    "item assignment before after",
    "item__session",
    "item__session__name",
    related="item__session item__comparison assignment__comparison assignment__annotator",
)
read_only(
    PasteRecord,
    "assignment annotator field characters is_on_screen created_at",
    "field is_on_screen created_at",
    "annotator__username",
    related="assignment__comparison assignment__annotator",
)
read_only(
    ItemFlag,
    "assignment reason details created_at",
    "reason assignment__comparison__project created_at",
    "=assignment__comparison__id reason details assignment__annotator__username",
    related="assignment__comparison assignment__annotator",
)
read_only(
    Draft,
    "assignment version saved_at",
    "assignment__comparison__project saved_at",
    "=assignment__comparison__id assignment__annotator__username",
    related="assignment__comparison assignment__annotator",
)
read_only(
    Review,
    "comparison reason verdict reviewer opened_at decided_at",
    "reason verdict comparison__project",
    "=comparison__id comment reviewer__username",
)
read_only(
    ReviewDecision,
    "review kind verdict reviewer created_at",
    "kind verdict review__comparison__project",
    "=review__comparison__id comment reviewer__username",
    related="review__comparison",
)
read_only(
    ReviewReturn,
    "assignment state returned_by returned_at closed_at",
    "state review__comparison__project",
    "=assignment__comparison__id comment objection",
    related="assignment__comparison assignment__annotator",
)


# Conversations in the admin: to be found and read.


read_only(
    ConversationTask,
    "name project language harm_category archived_at",
    "project archived_at",
    "name instructions project__name",
)
read_only(
    Conversation,
    "id project annotator task rating attack_success created_at ended_at",
    "project created_at ended_at",
    "=id annotator__username task__name project__name",
)
read_only(
    ConversationTurn,
    "__str__ prompt comparison created_at",
    "conversation__project created_at",
    "=conversation__id =comparison__id",
    related="conversation",
)


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


read_only(
    Completion,
    "__str__ source prompt seed finish_reason token_count created_at",
    "source finish_reason prompt__project created_at",
    "text text_hash source__name",
)
read_only(
    TraceStep,
    "completion index kind role tool start end",
    "kind is_error completion__prompt__project",
    "=completion__id tool",
)
read_only(
    CompletionScore,
    "completion scorer value created_at",
    "scorer completion__prompt__project",
    "=completion__id scorer completion__text",
)


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


read_only(
    RankedCompletion,
    "judgment rank completion",
    "rank judgment__comparison__project",
    "=judgment__id completion__text",
    related="judgment__annotator",
)
read_only(
    SpanFlag,
    "quote category start end completion judgment",
    "category judgment__comparison__project",
    "=judgment__id quote note",
    related="judgment__annotator",
)
read_only(
    MissingInfo,
    "__str__ category passage sentence completion judgment",
    "category judgment__comparison__project",
    "=judgment__id text quote",
    related="judgment__annotator",
)


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


read_only(
    CorrectionEdit,
    "correction index start end quote replacement",
    "correction__judgment__comparison__project",
    "=correction__id quote replacement",
)
read_only(
    Continuation,
    "assignment completion seed finish_reason created_at",
    "finish_reason assignment__comparison__project",
    "=assignment__id prefix text",
    related="assignment__annotator assignment__comparison",
)
read_only(
    LabelledStep,
    "judgment step label",
    "label judgment__comparison__project",
    "=judgment__id step__tool",
    related="judgment__annotator",
)
read_only(
    Rating,
    "judgment completion criterion value",
    "criterion value judgment__comparison__project",
    "=judgment__id completion__text",
    related="judgment__annotator",
)
read_only(
    Critique,
    "__str__ completion judgment",
    "judgment__comparison__project",
    "=judgment__id text",
    related="judgment__annotator",
)
read_only(
    QuestionAnswer,
    "__str__ version completion judgment",
    "judgment__comparison__project",
    "=judgment__id version__text",
    related="judgment__annotator",
)
read_only(
    RepeatedQuestion,
    "question assignment created_at answered_at",
    "question__project created_at",
    "question__key assignment__annotator__username",
    related="assignment__annotator assignment__comparison",
)
read_only(
    Demonstration,
    "__str__ judgment",
    "judgment__comparison__project",
    "=judgment__id text",
    related="judgment__annotator",
)


# Suggestions, reveals and decisions, in the admin: to be found and read.


# The settings of each project's suggestions.
read_only(
    HelpSettings,
    "project control_share planted_share unread_seconds tells_planted",
    "tells_planted",
    "project__name project__slug",
)
# Comparisons whose suggestions are computed.
read_only(SuggestionSet, "comparison source created_at", "comparison__project source created_at", "source")
# Suggestions, the planted ones too.
read_only(
    Suggestion,
    "suggestion_set kind category quote text confidence is_planted",
    "kind is_planted suggestion_set__comparison__project",
    "quote text",
    related="suggestion_set__comparison",
)
# Two passes over one comparison.
read_only(
    HelpReveal,
    "assignment arm revealed_at finished_at",
    "arm assignment__comparison__project revealed_at",
    "assignment__annotator__username",
    related="assignment__comparison assignment__annotator",
)


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


# Saved views of tables.
read_only(
    SavedView,
    "name project table owner is_shared created_at",
    "table is_shared project",
    "name owner__username",
)
# Watched folders and buckets, and their files.
read_only(
    ImportSource,
    "address project is_active checked_at created_by",
    "is_active project checked_at",
    "address project__name error",
)
read_only(
    SourceFile,
    "path source file_import taken_at",
    "source__project taken_at",
    "path error",
    related="source",
)
# Views that are assigned to members.
read_only(
    ViewQueue,
    "name project member created_at ended_at",
    "project created_at ended_at",
    "name member__username",
)
# Comparisons of queues.
read_only(
    QueuedComparison,
    "comparison queue is_opened",
    "is_opened queue__project",
    "queue__name",
    related="queue__member",
)
# Bulk changes that can be undone for a day.
read_only(
    BulkChange,
    "action value project changed actor created_at undone_at",
    "action project created_at",
    "action value actor__username",
)
