"""Comparisons, their candidates, and who has them."""

from typing import Any

from django.contrib import admin, messages
from django.db import models
from django.db.models import QuerySet
from django.http import HttpRequest

from annotation.admin.base import BoundedAdmin, WrittenOnceAdmin, WrittenOnceInline
from annotation.choices import AssignmentState
from annotation.errors import Refusal
from annotation.models import (
    AnnotatorTally,
    Assignment,
    Candidate,
    Comparison,
    Completion,
    CompletionScore,
    CompletionSource,
    Conversation,
    ConversationTask,
    ConversationTurn,
    DisplayTally,
    Draft,
    GoldAnswer,
    ItemFlag,
    Prompt,
    Review,
    TraceStep,
    Withholding,
)
from annotation.services.assignments.leases import release_assignment


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
