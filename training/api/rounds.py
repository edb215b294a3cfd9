"""Rounds: where they are, what may be done to them, by which recipe."""

from typing import Any

from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers

from annotation.api import fields
from annotation.api.base import Cursor, Filters, ProjectView, storable
from annotation.api.operations import PROJECT, Resource, Values
from annotation.errors import Refusal
from training.choices import QuestionOutcome, RoundState, StepKind
from training.models import Round, RoundStep
from training.recipe.auto import fixed_where_changed
from training.recipe.recipe import Recipe
from training.selectors.evaluations import evaluation_of, summary_of
from training.selectors.rounds import material_of, questions_of, round_view
from training.services.rounds.actions import ACTIONS, offered_actions, perform_action
from training.services.rounds.base_choice import reward_base_of
from training.services.rounds.controls import draft_first_round
from training.services.rounds.dry_run import dry_run
from training.services.rounds.recipes import change_recipe


@fields.of(RoundStep, "kind position state current total message error run started_at finished_at")
class RoundStepSerializer(serializers.ModelSerializer[RoundStep]):
    """One step of a round."""


@fields.of(
    Round,
    "number state policy base_model reward_base snapshot cancel_requested pause_requested created_at",
    "started_at finished_at",
)
class RoundSerializer(serializers.ModelSerializer[Round]):
    """One time around the loop."""

    policy = fields.text("The checkpoint that answers and that is trained on.", source="policy.name")
    base_model = fields.text("Name of the base model that the round trains.", source="policy.base_model")
    reward_base = fields.computed("Name of the base model that its reward models are trained on.")
    snapshot = fields.text(
        "Digest of what was learned from.", source="snapshot.digest", default=None, allow_null=True
    )

    def get_reward_base(self, round_: Round) -> str:
        """By its recipe."""
        return reward_base_of(round_)


class MaterialSerializer(serializers.Serializer[Any]):
    """From how much a round would learn, if it started now."""

    judgments = fields.integer()
    decided = fields.integer("Judgments on training prompts that prefer some answer.")


class RunQuestionSerializer(serializers.Serializer[Any]):
    """A question that a run of a round asked people while it trained."""

    run = fields.text("Name of the run.")
    number = fields.integer("Counted from 1, in the run.")
    step = fields.integer("Optimiser steps that the policy of now had taken.")
    then_step = fields.integer("Those of the state that it is compared with.")
    signals = fields.several(fields.text(), "What raised it, in the language of the request.")
    pairs = fields.integer("Pairs that people were asked.")
    wins = fields.integer("Answers by which the policy of now is better.")
    losses = fields.integer()
    ties = fields.integer()
    outcome = fields.choice(QuestionOutcome.choices)
    asked_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)


@fields.more("steps questions offered material verdict summary reasons decision_note")
class WholeRoundSerializer(RoundSerializer):
    """A round with its steps and what may be done to it now."""

    steps = fields.computed()
    questions = fields.computed("What its runs asked people while they trained.")
    offered = fields.computed("Actions that are taken now.")
    material = fields.computed()
    summary = fields.computed("The outcome of the evaluation in a paragraph, in the language of the request.")
    reasons = fields.several(
        fields.text(),
        "Every condition of the decision with its figure, in the language of the request.",
        source="reason_texts",
    )

    def get_steps(self, round_: Round) -> list[dict[str, Any]]:
        """In the order in which they are done."""
        return [dict(RoundStepSerializer(step).data) for step in round_.steps.order_by("position")]

    def get_questions(self, round_: Round) -> list[dict[str, Any]]:
        """In the order in which they were asked."""
        return [dict(RunQuestionSerializer(question).data) for question in questions_of(round_)]

    def get_offered(self, round_: Round) -> list[str]:
        """By name."""
        return [action.name for action in offered_actions(round_view(round_))]

    def get_summary(self, round_: Round) -> str:
        """As the round's page shows it."""
        return summary_of(evaluation_of(round_) if round_.verdict else None)

    def get_material(self, round_: Round) -> dict[str, Any]:
        """Counted now."""
        return dict(MaterialSerializer(material_of(round_)).data)


class RoundFilters(Filters):
    """Filters of rounds."""

    state = fields.choice(RoundState.choices, required=False)


class ActionSerializer(serializers.Serializer[Any]):
    """Parameters of an action."""

    step = fields.choice(StepKind.choices, "For `retry`: the step that is done anew.", required=False)
    checkpoint = fields.text("For `rollback`: the checkpoint to go back to.", most=100, required=False)
    reason = fields.text(
        "For `promote` and `reject`: why; wanted where `verdict` is another one.",
        most=2000,
        required=False,
        allow_blank=True,
    )
    despite_memory = fields.flag(
        "For `start`: start although the runs cannot fit into memory. For administrators.", required=False
    )


class RecipeSerializer(serializers.Serializer[Any]):
    """A round's recipe, every default written out. What the fields mean stands on the recipe's page."""

    recipe = serializers.DictField()


class ChangedSerializer(RecipeSerializer):
    """A recipe after a change."""

    changed = fields.several(fields.text(), "Paths of what changed.")


class PlannedRunSerializer(serializers.Serializer[Any]):
    """One run that the round would make."""

    title = fields.text()
    base = fields.text("Name of the base model.")
    method = fields.text()
    examples = fields.integer()
    steps = fields.integer()
    memory_bytes = fields.computed("Of one process. Null where the base model is not there yet.")
    seconds = fields.number("Null before a like run was measured.", allow_null=True)

    def get_memory_bytes(self, run: Any) -> int | None:
        """All that one process holds at once."""
        return None if run.memory is None else int(run.memory.total)


class TrainingMachineSerializer(serializers.Serializer[Any]):
    """A machine that trains, by the last report of its worker."""

    name = fields.text("Its host; empty where no worker has reported.")
    device = fields.text("`cuda`, `mps` or `cpu`.")
    dtype = fields.text("Precision of a frozen base there.")
    total_bytes = fields.integer("Memory of the device; 0 where it is not known.")
    held_bytes = fields.integer("Of these, held by the model server.")
    available_bytes = fields.integer("Free at the last report.", allow_null=True)


class LaunchPlanSerializer(serializers.Serializer[Any]):
    """The launcher and resources of a round's runs, and the jobs that it would submit."""

    launcher = fields.text("`local`, `ray` or `command`.")
    nodes = fields.integer("Machines that train together.", source="resources.nodes")
    processes = fields.integer("On each machine.", source="resources.processes")
    gpus = fields.integer("Of each machine; a `local` one without GPUs takes none.", source="resources.gpus")
    script = fields.text("Of the reward model's job; empty for `local`.")


class DryRunSerializer(serializers.Serializer[Any]):
    """The estimate for a round, and the reasons that prevent it."""

    prompts = fields.integer()
    held_out_prompts = fields.integer()
    answers = serializers.DictField(child=fields.integer(), help_text="By checkpoint.")
    comparisons = fields.integer()
    judgments_expected = fields.integer()
    answering_seconds = fields.number(allow_null=True)
    material = serializers.DictField(child=fields.integer())
    runs = PlannedRunSerializer(many=True)
    evaluated_prompts = fields.integer()
    prompts_for_decision = fields.integer(
        "Held-out prompts with different responses that show a true win rate of 70 % in four rounds of five.",
        allow_null=True,
    )
    machine = TrainingMachineSerializer(help_text="The machine that would train, as its worker reported it.")
    launch = LaunchPlanSerializer(help_text="Where it would train.")
    problems = fields.several(fields.text(), "Why it cannot be started.")
    warnings = fields.several(fields.text())
    suggestions = fields.several(fields.text(), "Settings that would serve the data better.")


class NewestRound(Cursor):
    """Rounds have numbers."""

    ordering = "-number"


rounds = Resource(
    ProjectView,
    f"{PROJECT}rounds/",
    tag="rounds",
    rows=lambda view: view.project.rounds.select_related("policy", "snapshot"),
)
round_ = rounds.item(
    "<int:number>/",
    rows=lambda view: Round.objects.filter(project=view.project).select_related(
        "project", "policy", "snapshot", "started_by"
    ),
)

rounds.add_list(
    "rounds_list",
    RoundSerializer,
    "List the rounds, newest first.",
    filters=RoundFilters,
    pages=NewestRound,
)
round_.add_read(
    "rounds_read", WholeRoundSerializer, "Read where a round is, step by step, and what may be done to it."
)


@rounds.post(returns=WholeRoundSerializer, status=201)
def rounds_draft(view: ProjectView) -> Round:
    """Draft the first round; a project that has it keeps it. Later rounds are opened by the verdict on
    the one before."""
    return draft_first_round(project=view.project, created_by=view.user)


@round_.get("recipe/", returns=RecipeSerializer)
def recipes_read(view: ProjectView, round_: Round) -> Values:
    """Read a round's recipe."""
    return {"recipe": round_.parsed_recipe.to_json()}


@round_.put("recipe/", takes=RecipeSerializer, returns=ChangedSerializer, locks=True)
def recipes_change(view: ProjectView, round_: Round, values: Values) -> Values:
    """Give a round another recipe, as long as it has not begun to train. Honours `If-Match`."""
    if not storable(values["recipe"]):
        raise Refusal(
            "text_not_storable", _("The text holds a character that cannot be stored."), field="recipe"
        )
    try:
        sent = Recipe.from_json(values["recipe"])
    except (ValueError, TypeError, AttributeError) as error:
        raise Refusal("recipe_invalid", str(error), field="recipe") from error
    new_recipe = fixed_where_changed(round_.parsed_recipe, sent)
    changed = change_recipe(round_=round_, recipe=new_recipe, actor=view.user)
    return {**recipes_read(view, round_), "changed": changed}


@round_.get("dry-run/", returns=DryRunSerializer)
def rounds_dry_run(view: ProjectView, round_: Round) -> Any:
    """Reckon what a round would do by its recipe now: counts, steps, time, memory, and what cannot be.
    Writes nothing."""
    return dry_run(round_=round_)


# After the addresses of parts of a round, which are no actions.
@round_.post(
    "<slug:action>/",
    takes=ActionSerializer,
    returns=WholeRoundSerializer,
    schema={
        "parameters": [
            OpenApiParameter("action", OpenApiTypes.STR, OpenApiParameter.PATH, enum=list(ACTIONS))
        ]
    },
)
def rounds_act(view: ProjectView, round_: Round, values: Values, action: str) -> Round:
    """Do something to a round: what `offered` of the round names is taken now, all else refused with 422.
    The round's page tells what each action does."""
    round_action = ACTIONS.get(action)
    if round_action is None:
        raise Refusal(
            "unknown_round_action",
            _("There is no such action. Known are: %(names)s."),
            field="action",
            names=", ".join(ACTIONS),
        )
    perform_action(round_action.name, round_=round_, actor=view.user, answers=values)
    rows = Round.objects.select_related("project", "policy", "snapshot", "started_by")
    # A deleted one as it was.
    return rows.filter(pk=round_.pk).first() or round_
