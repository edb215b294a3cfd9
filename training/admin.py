"""Every model of `training` in the Django admin."""

import json
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import models
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html, format_html_join

from annotation.admin.base import BoundedAdmin, WrittenOnceAdmin
from annotation.errors import Refusal
from training.models import (
    ApplicationRequest,
    ArenaBallot,
    ArenaLink,
    ArenaPair,
    ArenaTalk,
    BaseModel,
    BaseModelAddition,
    Checkpoint,
    CheckpointExport,
    ConversationSettings,
    DriftFigure,
    DriftMeasurement,
    EloPoints,
    EvaluatedPrompt,
    Evaluation,
    Feedback,
    FeedbackComparison,
    FeedbackIncident,
    FeedbackKey,
    FeedbackRule,
    FeedbackSettings,
    GpuLease,
    Judge,
    JudgeVerdict,
    Launch,
    LiveLearning,
    LiveUpdate,
    ModelDraw,
    PreparedOpening,
    ProjectBase,
    PromptSet,
    QuestionPair,
    RequestOptIn,
    Round,
    RoundStep,
    RubricDraft,
    Run,
    RunQuestion,
    SideBySide,
    SideBySideAnswer,
    Snapshot,
    SuggestionSource,
    TurnResponse,
    VoteCount,
    VoteLedger,
    VoteTotals,
    Worker,
    YardstickResult,
)
from training.recipe import Recipe
from training.selectors.questions import questions_of
from training.selectors.rounds import audit_of, round_view
from training.services.rounds import draft_first_round
from training.services.rounds.actions import (
    ACTIONS,
    can_retry_steps,
    facts_of,
    offered_actions,
    perform_action,
)
from training.services.rounds.recipes import CAN_CHANGE, change_recipe

# ── Checkpoints and base models ──


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


# ── Rounds and runs ──


@admin.register(Snapshot)
class SnapshotAdmin(WrittenOnceAdmin):
    list_display = ["short_digest", "project", "rounds", "judgment_count", "created_by", "created_at"]
    list_filter = ["project", "created_at"]
    list_select_related = ["project", "created_by"]
    search_fields = ["digest", "project__name", "project__slug"]
    exclude = ["judgments"]

    @admin.display(description="judgments")
    def judgment_count(self, snapshot: Snapshot) -> int:
        return int(snapshot.counts.get("judgments", 0))


@admin.register(Run)
class RunAdmin(WrittenOnceAdmin):
    list_display = ["name", "method", "state", "step", "total_steps", "heartbeat_at", "created_at"]
    list_filter = ["state", "method", "snapshot__project", "created_at"]
    search_fields = ["name", "error", "worker"]


@admin.register(Launch)
class LaunchAdmin(WrittenOnceAdmin):
    list_display = ["name", "run", "launcher", "handle", "state", "nodes", "submitted_at", "ended_at"]
    list_filter = ["launcher", "state", "submitted_at"]
    list_select_related = ["run"]
    search_fields = ["name", "handle", "reason", "run__name"]


@admin.register(GpuLease)
class GpuLeaseAdmin(WrittenOnceAdmin):
    list_display = ["host", "gpu", "slot", "run", "worker", "leased_at", "heartbeat_at"]
    list_filter = ["host"]
    list_select_related = ["run"]
    search_fields = ["host", "worker", "run__name"]


@admin.register(Checkpoint)
class CheckpointAdmin(WrittenOnceAdmin):
    list_display = ["name", "kind", "project", "base_model", "parent", "created_at"]
    list_filter = ["kind", "project", "base_model", "created_at"]
    list_select_related = ["project", "parent"]
    search_fields = ["name", "digest", "base_model"]


@admin.register(Worker)
class WorkerAdmin(WrittenOnceAdmin):
    list_display = ["name", "queues", "concurrency", "version", "started_at", "heartbeat_at"]
    list_filter = ["version", "heartbeat_at"]
    search_fields = ["name", "version"]


class IndentedJSONField(forms.JSONField):
    """JSON that a person can read while they edit it."""

    def prepare_value(self, value: Any) -> Any:
        return json.dumps(value, indent=2) if isinstance(value, dict) else super().prepare_value(value)


@admin.register(RoundStep)
class RoundStepAdmin(WrittenOnceAdmin):
    list_display = ["round", "position", "kind", "state", "current", "total", "heartbeat_at"]
    list_filter = ["state", "kind", "round__project"]
    list_select_related = ["round__project"]
    search_fields = ["message", "error", "worker", "round__project__name"]


@admin.register(Round)
class RoundAdmin(BoundedAdmin):
    """A round is drafted for a project, may get another recipe until it trains, and is led from here."""

    change_form_template = "admin/training/round/change_form.html"
    list_display = ["__str__", "state", "policy", "started_by", "started_at", "finished_at"]
    list_filter = ["state", "project", "created_at"]
    list_select_related = ["project", "policy", "started_by"]
    search_fields = ["project__name", "project__slug", "policy__name"]
    readonly_fields = [
        "project",
        "number",
        "state",
        "policy",
        "snapshot",
        "verdict",
        "reasons_as_text",
        "decision_note",
        "cancel_requested",
        "pause_requested",
        "starts_by_itself",
        "created_by",
        "started_by",
        "created_at",
        "started_at",
        "finished_at",
    ]
    fields = ["recipe", *readonly_fields]
    formfield_overrides = {models.JSONField: {"form_class": IndentedJSONField}}

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return ["project"]
        # What a round trained with is part of its record.
        return self.fields if obj.state in CAN_CHANGE else ["recipe_as_text", *self.readonly_fields]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return [] if obj is None else ["recipe_as_text", *self.readonly_fields]

    @admin.display(description="recipe")
    def recipe_as_text(self, round_: Round) -> str:
        return format_html('<pre class="log">{}</pre>', json.dumps(round_.recipe, indent=2))

    @admin.display(description="reasons")
    def reasons_as_text(self, round_: Round) -> str:
        return format_html_join("", "<div>{}</div>", ((reason,) for reason in round_.reason_texts)) or "-"

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        user: Any = request.user
        if change:
            self._change_recipe(request, obj, form)
            return
        drafted = draft_first_round(project=obj.project, created_by=user)
        # The row was written by the service; the admin goes on with it.
        obj.pk = drafted.pk
        obj.refresh_from_db()

    def _change_recipe(self, request: HttpRequest, round_: Round, form: Any) -> None:
        """The one field that may change; the service looks again whether it may, and writes it down."""
        user: Any = request.user
        if "recipe" in form.changed_data:
            try:
                change_recipe(round_=round_, recipe=Recipe.from_json(form.cleaned_data["recipe"]), actor=user)
            except Refusal as refusal:
                messages.error(request, refusal.message)

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        urls = [
            path("<path:object_id>/progress/", view(self.progress_view), name="training_round_progress"),
            *(
                path(
                    f"<path:object_id>/{name}/",
                    view(self.action_view),
                    {"action": name},
                    name=f"training_round_{name}",
                )
                for name in ACTIONS
            ),
        ]
        return [*urls, *super().get_urls()]

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        round_ = self.get_object(request, object_id)
        live = self._progress_context(request, round_) if isinstance(round_, Round) else {}
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **live})

    def progress_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """The live part of the page."""
        round_ = self._round(request, object_id, change=False)
        return render(request, "admin/training/round/progress.html", self._progress_context(request, round_))

    def action_view(self, request: HttpRequest, object_id: str, action: str) -> HttpResponse:
        """Ask for confirmation, then do it; show a refusal on the round's page."""
        round_ = self._round(request, object_id)
        round_action = ACTIONS[action]
        if request.method == "POST":
            user: Any = request.user
            try:
                perform_action(action, round_=round_, actor=user, answers=request.POST)
            except Refusal as refusal:
                messages.error(request, refusal.message)
            if not Round.objects.filter(pk=round_.pk).exists():
                return redirect("admin:training_round_changelist")
            return redirect(self._address("change", round_))
        context = {
            **self.admin_site.each_context(request),
            "title": f"{round_action.label}: round {round_.number}?",
            "opts": self.opts,
            "original": round_,
            "round": round_,
            "action": round_action,
            "back": self._address("change", round_),
            **facts_of(round_action, round_, step=request.GET.get("step", "")),
        }
        return render(request, "admin/training/round/question.html", context)

    def _round(self, request: HttpRequest, object_id: str, *, change: bool = True) -> Round:
        round_ = self.get_object(request, object_id)
        if not isinstance(round_, Round):
            raise Http404
        allowed = self.has_change_permission if change else self.has_view_permission
        if not allowed(request, round_):
            raise PermissionDenied
        return round_

    def _progress_context(self, request: HttpRequest, round_: Round) -> dict[str, Any]:
        view = round_view(round_)
        may_act = self.has_change_permission(request, round_)
        offered = offered_actions(view) if may_act else []
        return {
            "round": round_,
            "view": view,
            "questions": questions_of(round_),
            "entries": audit_of(round_),
            "buttons": [(action, self._address(action.name, round_)) for action in offered],
            "progress_url": self._address("progress", round_),
            "retry_url": self._address("retry", round_) if may_act and can_retry_steps(view) else "",
        }

    def _address(self, name: str, round_: Round) -> str:
        return reverse(f"{self.admin_site.name}:training_round_{name}", args=[round_.pk])


# ── Evaluations ──


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


@admin.register(RunQuestion)
class RunQuestionAdmin(WrittenOnceAdmin):
    list_display = ["run", "number", "step", "then_step", "outcome", "asked_at", "ended_at"]
    list_filter = ["outcome", "run__snapshot__project"]
    list_select_related = ["run"]
    search_fields = ["run__name"]


@admin.register(QuestionPair)
class QuestionPairAdmin(WrittenOnceAdmin):
    list_display = ["question", "position", "comparison", "now"]
    list_filter = ["question__run__snapshot__project"]
    list_select_related = ["question__run", "comparison__project", "now"]
    search_fields = ["question__run__name"]
    raw_id_fields = ["comparison", "now"]


@admin.register(YardstickResult)
class YardstickResultAdmin(WrittenOnceAdmin):
    list_display = ["checkpoint", "name", "items", "created_at"]
    list_filter = ["name"]
    list_select_related = ["checkpoint"]
    search_fields = ["checkpoint__name", "name"]


# ── Judges ──


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


# ── Live learning ──


@admin.register(LiveLearning)
class LiveLearningAdmin(WrittenOnceAdmin):
    list_display = ["project", "state", "is_active", "every", "ahead"]
    list_filter = ["state", "is_active", "project"]
    list_select_related = ["project"]
    search_fields = ["project__name", "error"]


@admin.register(LiveUpdate)
class LiveUpdateAdmin(WrittenOnceAdmin):
    list_display = ["project", "number", "round", "state", "judgments", "behind", "served_at"]
    list_filter = ["state", "project", "begun_at"]
    list_select_related = ["project", "round__project"]
    search_fields = ["project__name", "run__name", "error"]


# ── Arenas, side by side, prompt sets ──


@admin.register(VoteLedger)
class VoteLedgerAdmin(WrittenOnceAdmin):
    list_display = ["counted_up_to", "updated_at"]
    list_filter = ["updated_at"]
    search_fields = ["=counted_up_to"]


@admin.register(VoteTotals)
class VoteTotalsAdmin(WrittenOnceAdmin):
    list_display = ["project", "version", "stale"]
    list_filter = ["stale", "project"]
    list_select_related = ["project"]
    search_fields = ["project__name", "project__slug"]


@admin.register(VoteCount)
class VoteCountAdmin(WrittenOnceAdmin):
    list_display = [
        *("project", "slice", "value", "voters", "left", "right", "length_difference", "left_first"),
        *("wins", "losses", "ties", "both_bad"),
    ]
    list_filter = ["slice", "voters", "project"]
    list_select_related = ["project", "left", "right"]
    search_fields = ["left__name", "right__name", "value"]


@admin.register(EloPoints)
class EloPointsAdmin(WrittenOnceAdmin):
    list_display = ["project", "source", "points"]
    list_filter = ["project"]
    list_select_related = ["project", "source"]
    search_fields = ["source__name", "project__name"]


@admin.register(PromptSet)
class PromptSetAdmin(WrittenOnceAdmin):
    list_display = ["name", "project", "created_by", "created_at"]
    list_filter = ["project", "created_at"]
    list_select_related = ["project", "created_by"]
    search_fields = ["name", "project__name", "created_by__username"]
    exclude = ["prompts"]


@admin.register(SideBySide)
class SideBySideAdmin(WrittenOnceAdmin):
    list_display = ["__str__", "project", "blind", "created_by", "created_at"]
    list_filter = ["project", "blind", "created_at"]
    list_select_related = ["project", "created_by"]
    search_fields = ["slug", "messages", "created_by__username"]


@admin.register(SideBySideAnswer)
class SideBySideAnswerAdmin(WrittenOnceAdmin):
    list_display = ["__str__", "side_by_side", "position", "checkpoint", "score", "token_count"]
    list_filter = ["checkpoint", "written_at"]
    list_select_related = ["side_by_side", "checkpoint"]
    search_fields = ["text", "checkpoint__name", "side_by_side__slug"]


@admin.register(ArenaLink)
class ArenaLinkAdmin(WrittenOnceAdmin):
    list_display = ["name", "project", "for_guests", "votes", "expires_at", "closed_at", "created_by"]
    list_filter = ["for_guests", "project", "created_at"]
    list_select_related = ["project", "created_by"]
    search_fields = ["name", "slug", "created_by__username"]


@admin.register(ArenaPair)
class ArenaPairAdmin(WrittenOnceAdmin):
    list_display = ["arena", "comparison", "given", "given_left_first"]
    list_filter = ["arena"]
    list_select_related = ["arena", "comparison"]
    search_fields = ["=comparison__id", "arena__name"]


@admin.register(ArenaBallot)
class ArenaBallotAdmin(WrittenOnceAdmin):
    list_display = ["pair", "voter", "given_at", "judgment"]
    list_filter = ["pair__arena", "given_at"]
    list_select_related = ["pair__arena", "pair__comparison", "voter", "judgment"]
    search_fields = ["=id", "voter__username", "pair__arena__name"]


# ── Conversations ──


@admin.register(ConversationSettings)
class ConversationSettingsAdmin(WrittenOnceAdmin):
    list_display = ["project", "responses", "continues_with", "most_turns", "is_open"]
    list_filter = ["is_open", "continues_with"]
    list_select_related = ["project"]
    search_fields = ["project__name", "project__slug"]
    exclude = ["checkpoints"]


@admin.register(TurnResponse)
class TurnResponseAdmin(WrittenOnceAdmin):
    list_display = ["__str__", "turn", "position", "checkpoint", "seed", "written_at"]
    list_filter = ["checkpoint", "written_at"]
    list_select_related = ["turn__conversation", "checkpoint"]
    search_fields = ["text", "checkpoint__name", "=turn__conversation__id"]


@admin.register(ModelDraw)
class ModelDrawAdmin(WrittenOnceAdmin):
    list_display = ["project", "scope", "models_key", "drawn"]
    list_filter = ["project"]
    list_select_related = ["project"]
    search_fields = ["project__name", "scope", "models_key"]


@admin.register(ArenaTalk)
class ArenaTalkAdmin(WrittenOnceAdmin):
    list_display = ["arena", "conversation"]
    list_filter = ["arena"]
    list_select_related = ["arena", "conversation"]
    search_fields = ["arena__name", "=conversation__id"]


@admin.register(PreparedOpening)
class PreparedOpeningAdmin(WrittenOnceAdmin):
    list_display = ["task", "key", "created_at"]
    list_filter = ["created_at"]
    list_select_related = ["task"]
    search_fields = ["task__name", "=key"]


# ── Feedback ──


@admin.register(FeedbackSettings)
class FeedbackSettingsAdmin(WrittenOnceAdmin):
    list_display = ["project", "stores_requests", "retention_days", "state", "updated_at"]
    list_filter = ["stores_requests", "state", "project"]
    list_select_related = ["project"]
    search_fields = ["project__name"]


@admin.register(RequestOptIn)
class RequestOptInAdmin(WrittenOnceAdmin):
    list_display = ["token", "project", "created_by", "created_at"]
    list_filter = ["project", "created_at"]
    list_select_related = ["token", "project", "created_by"]
    search_fields = ["token__name", "project__name"]


@admin.register(FeedbackKey)
class FeedbackKeyAdmin(WrittenOnceAdmin):
    list_display = ["name", "project", "created_by", "created_at", "revoked_at"]
    list_filter = ["project", "created_at"]
    list_select_related = ["project", "created_by"]
    search_fields = ["name", "key", "project__name"]


@admin.register(FeedbackRule)
class FeedbackRuleAdmin(WrittenOnceAdmin):
    list_display = ["reason", "project", "is_on", "share", "most_per_day"]
    list_filter = ["reason", "is_on", "project"]
    list_select_related = ["project"]
    search_fields = ["project__name"]


@admin.register(ApplicationRequest)
class ApplicationRequestAdmin(WrittenOnceAdmin):
    list_display = ["key", "project", "checkpoint", "token_name", "created_at"]
    list_filter = ["project", "is_streamed", "created_at"]
    list_select_related = ["project", "checkpoint"]
    search_fields = ["key", "token_name", "pseudonym"]


@admin.register(Feedback)
class FeedbackAdmin(WrittenOnceAdmin):
    list_display = ["request", "kind", "value", "source_name", "changes", "created_at"]
    list_filter = ["kind", "project", "created_at"]
    list_select_related = ["request"]
    search_fields = ["request__key", "source_name", "author"]


@admin.register(FeedbackIncident)
class FeedbackIncidentAdmin(WrittenOnceAdmin):
    list_display = ["kind", "subject", "project", "started_at", "is_included"]
    list_filter = ["kind", "is_included", "project"]
    list_select_related = ["project"]
    search_fields = ["subject", "project__name"]


@admin.register(FeedbackComparison)
class FeedbackComparisonAdmin(WrittenOnceAdmin):
    list_display = ["comparison", "reason", "figure", "project", "created_at"]
    list_filter = ["reason", "project", "created_at"]
    list_select_related = ["comparison", "project"]
    search_fields = ["comparison__id", "project__name"]
