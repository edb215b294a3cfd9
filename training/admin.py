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

from annotation.admin.base import BoundedAdmin, WrittenOnceAdmin, read_only
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
    EmbeddingJob,
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
    LessonRun,
    LiveLearning,
    LiveUpdate,
    ModelDraw,
    ModelProvider,
    PreparedOpening,
    ProjectBase,
    PromptEmbedding,
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
from training.recipe.recipe import Recipe
from training.selectors.rounds import audit_of, questions_of, round_view
from training.services.rounds.actions import (
    ACTIONS,
    can_retry_steps,
    facts_of,
    offered_actions,
    perform_action,
)
from training.services.rounds.controls import draft_first_round
from training.services.rounds.recipes import CAN_CHANGE, change_recipe

# ── Checkpoints and base models ──


read_only(
    BaseModel,
    "name origin repository licence created_by created_at",
    "origin created_at",
    "name repository licence",
)
read_only(
    BaseModelAddition,
    "name origin state current total created_by created_at",
    "state origin created_at",
    "name repository folder error",
)
read_only(
    ModelProvider,
    "name url tested_at error created_by created_at",
    "tested_at created_at",
    "name url",
    exclude="sealed_key",
)
read_only(ProjectBase, "project base chosen_by chosen_at", "base chosen_at", "project__name base__name")
read_only(
    CheckpointExport,
    "checkpoint merged repository state created_by created_at",
    "state merged checkpoint__project created_at",
    "checkpoint__name repository error",
)
read_only(
    LessonRun,
    "lesson created_by broken seed is_kept state created_at",
    "lesson broken is_kept state created_at",
    "lesson created_by__username error",
)
read_only(
    DriftMeasurement,
    "project state current total created_by created_at",
    "state project created_at",
    "project__name message error",
)
read_only(
    DriftFigure,
    "checkpoint round_number agreeing pairs held_out_pairs measured_at",
    "checkpoint__project round_number",
    "checkpoint__name",
)


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


read_only(
    Run,
    "name method state step total_steps heartbeat_at created_at",
    "state method snapshot__project created_at",
    "name error worker",
)
read_only(
    Launch,
    "name run launcher handle state nodes submitted_at ended_at",
    "launcher state submitted_at",
    "name handle reason run__name",
)
read_only(GpuLease, "host gpu slot run worker leased_at heartbeat_at", "host", "host worker run__name")
read_only(
    Checkpoint,
    "name kind project base_model parent created_at",
    "kind project base_model created_at",
    "name digest base_model",
)
read_only(
    Worker, "name queues concurrency version started_at heartbeat_at", "version heartbeat_at", "name version"
)


class IndentedJSONField(forms.JSONField):
    """JSON that a person can read while they edit it."""

    def prepare_value(self, value: Any) -> Any:
        return json.dumps(value, indent=2) if isinstance(value, dict) else super().prepare_value(value)


read_only(
    RoundStep,
    "round position kind state current total heartbeat_at",
    "state kind round__project",
    "message error worker round__project__name",
    related="round__project",
)


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


read_only(
    Evaluation,
    "checkpoint parent round reward_model created_at finished_at",
    "round__project finished_at",
    "checkpoint__name parent__name",
    related="round__project",
)


@admin.register(EvaluatedPrompt)
class EvaluatedPromptAdmin(WrittenOnceAdmin):
    list_display = ["evaluation", "prompt", "figures"]
    list_filter = ["evaluation__round__project"]
    list_select_related = ["evaluation__checkpoint", "evaluation__parent", "prompt"]
    search_fields = ["evaluation__checkpoint__name"]
    raw_id_fields = ["prompt", "old", "new"]


read_only(
    RunQuestion,
    "run number step then_step outcome asked_at ended_at",
    "outcome run__snapshot__project",
    "run__name",
)


@admin.register(QuestionPair)
class QuestionPairAdmin(WrittenOnceAdmin):
    list_display = ["question", "position", "comparison", "now"]
    list_filter = ["question__run__snapshot__project"]
    list_select_related = ["question__run", "comparison__project", "now"]
    search_fields = ["question__run__name"]
    raw_id_fields = ["comparison", "now"]


read_only(YardstickResult, "checkpoint name items created_at", "name", "checkpoint__name name")


# ── Judges ──


read_only(
    Judge,
    "name project checkpoint state is_active questions created_at",
    "state is_active project created_at",
    "name project__name checkpoint__name error",
)
read_only(
    JudgeVerdict,
    "judge judgment model orders_agree created_at",
    "orders_agree judge__project created_at",
    "judge__name model",
    related="judgment__annotator judgment__comparison",
)
read_only(
    RubricDraft,
    "__str__ project state pairs_read pairs_checked version created_at",
    "state project created_at",
    "project__name checkpoint__name error",
    related="checkpoint version__rubric",
)
read_only(
    SuggestionSource,
    "project checkpoint state is_active compared suggested planted",
    "state is_active project",
    "project__name checkpoint__name error",
)


# ── Embeddings ──


read_only(PromptEmbedding, "prompt model likeness", "model", "model", related="prompt__project")
read_only(
    EmbeddingJob,
    "project checkpoint state embedded created_at",
    "state project created_at",
    "project__name checkpoint__name error",
    related="checkpoint",
)


# ── Live learning ──


read_only(
    LiveLearning, "project state is_active every ahead", "state is_active project", "project__name error"
)
read_only(
    LiveUpdate,
    "project number round state judgments behind served_at",
    "state project begun_at",
    "project__name run__name error",
    related="round__project",
)


# ── Arenas, side by side, prompt sets ──


read_only(VoteLedger, "counted_up_to updated_at", "updated_at", "=counted_up_to")
read_only(VoteTotals, "project version stale", "stale project", "project__name project__slug")


@admin.register(VoteCount)
class VoteCountAdmin(WrittenOnceAdmin):
    list_display = [
        *("project", "slice", "value", "voters", "left", "right", "length_difference", "left_first"),
        *("wins", "losses", "ties", "both_bad"),
    ]
    list_filter = ["slice", "voters", "project"]
    list_select_related = ["project", "left", "right"]
    search_fields = ["left__name", "right__name", "value"]


read_only(EloPoints, "project source points", "project", "source__name project__name")
read_only(
    PromptSet,
    "name project created_by created_at",
    "project created_at",
    "name project__name created_by__username",
    exclude="prompts",
)
read_only(
    SideBySide,
    "__str__ project blind created_by created_at",
    "project blind created_at",
    "slug messages created_by__username",
)
read_only(
    SideBySideAnswer,
    "__str__ side_by_side position checkpoint score token_count",
    "checkpoint written_at",
    "text checkpoint__name side_by_side__slug",
)
read_only(
    ArenaLink,
    "name project for_guests votes expires_at closed_at created_by",
    "for_guests project created_at",
    "name slug created_by__username",
)
read_only(ArenaPair, "arena comparison given given_left_first", "arena", "=comparison__id arena__name")
read_only(
    ArenaBallot,
    "pair voter given_at judgment",
    "pair__arena given_at",
    "=id voter__username pair__arena__name",
    related="pair__arena pair__comparison",
)


# ── Conversations ──


read_only(
    ConversationSettings,
    "project responses continues_with most_turns is_open",
    "is_open continues_with",
    "project__name project__slug",
    exclude="checkpoints",
)
read_only(
    TurnResponse,
    "__str__ turn position checkpoint seed written_at",
    "checkpoint written_at",
    "text checkpoint__name =turn__conversation__id",
    related="turn__conversation",
)
read_only(ModelDraw, "project scope models_key drawn", "project", "project__name scope models_key")
read_only(ArenaTalk, "arena conversation", "arena", "arena__name =conversation__id")
read_only(PreparedOpening, "task key created_at", "created_at", "task__name =key")


# ── Feedback ──


read_only(
    FeedbackSettings,
    "project stores_requests retention_days state updated_at",
    "stores_requests state project",
    "project__name",
)
read_only(
    RequestOptIn, "token project created_by created_at", "project created_at", "token__name project__name"
)
read_only(
    FeedbackKey,
    "name project created_by created_at revoked_at",
    "project created_at",
    "name key project__name",
)
read_only(FeedbackRule, "reason project is_on share most_per_day", "reason is_on project", "project__name")
read_only(
    ApplicationRequest,
    "key project checkpoint token_name created_at",
    "project is_streamed created_at",
    "key token_name pseudonym",
)
read_only(
    Feedback,
    "request kind value source_name changes created_at",
    "kind project created_at",
    "request__key source_name author",
)
read_only(
    FeedbackIncident,
    "kind subject project started_at is_included",
    "kind is_included project",
    "subject project__name",
)
read_only(
    FeedbackComparison,
    "comparison reason figure project created_at",
    "reason project created_at",
    "comparison__id project__name",
)
