"""Actions on a round, each with a confirmation page, offered on its page and in the admin."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from annotation.errors import Refusal
from annotation.models import User
from annotation.services.bulk import lost_with
from training.choices import CAN_START, CAN_START_AGAIN, RoundState, StepKind, StepState
from training.models import Checkpoint, Round
from training.selectors.rounds import RoundView, material_of, sampling_of
from training.services.rounds.controls import (
    CAN_CANCEL,
    CAN_RETRY,
    IN_PROGRESS,
    cancel_round,
    comparisons_in,
    discard_round,
    is_discardable,
    open_round,
    pause_round,
    reopen_round,
    resume_round,
    retry_step,
    start_again,
    start_round,
)
from training.services.rounds.deciding import (
    candidate_of,
    promote_round,
    reject_round,
    roll_back,
    rollback_choices,
)
from training.services.rounds.dry_run import memory_problems

Answers = Mapping[str, str]
"""Fields that the confirmation form sent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundAction:
    """One action. Its question is a page of its own, and its answer a POST."""

    name: str
    """Part of the address."""
    label: str | Promise
    """Label of the button."""
    explanation: str | Promise
    """Effect of the action."""
    is_offered: Callable[[RoundView], bool]
    look: str = ""
    """`primary` or `danger`, as the button's class says."""
    on_recipe_page: bool = False
    """Asked on the page of the recipe, next to its estimate, instead of on a page of its own."""

    @property
    def button_class(self) -> str:
        """Classes of its button on the page of the round."""
        return {"primary": "button button--primary", "danger": "button button--danger button--small"}.get(
            self.look, "button button--small"
        )


def offered_actions(view: RoundView) -> list[RoundAction]:
    """Return the actions that the round's state allows."""
    return [action for action in ACTIONS.values() if action.is_offered(view)]


def facts_of(action: RoundAction, round_: Round, *, step: str = "") -> dict[str, Any]:
    """Return the context of an action's confirmation page."""
    if action.name == "start":
        return {
            "material": material_of(round_),
            "memory_problems": memory_problems(round_),
            "sampling": sampling_of(round_),
        }
    if action.name == "discard":
        keys = comparisons_in(round_)
        comparisons: dict[str | Promise, int] = {gettext_lazy("comparisons"): len(keys)} if keys else {}
        return {"lost": {**comparisons, **lost_with(keys)}}
    if action.name == "rollback":
        return {"choices": rollback_choices(round_)}
    if action.name == "retry":
        return {"step": StepKind(step) if step in StepKind.values else None}
    if action.name in ("promote", "reject"):
        return {
            "candidate": candidate_of(round_),
            "asks_reason": True,
            "needs_reason": round_.verdict != action.name,
        }
    return {}


def can_retry_steps(view: RoundView) -> bool:
    """Return whether steps can be retried: no worker is busy and the next round is not open."""
    return view.round.state in CAN_RETRY and not any(step.state == StepState.RUNNING for step in view.steps)


def perform_action(  # noqa: C901 - one case for each action
    name: str, *, round_: Round, actor: User, answers: Answers
) -> None:
    """Call the service of an action, which refuses what the round's state does not allow."""
    match name:
        case "open":
            open_round(round_=round_, opened_by=actor)
        case "rollback":
            checkpoint = Checkpoint.objects.filter(name=answers.get("checkpoint", "")).first()
            if checkpoint is None:
                raise Refusal(
                    "checkpoint_not_chosen", _("Choose the checkpoint that the round goes back to.")
                )
            roll_back(round_=round_, checkpoint=checkpoint, actor=actor)
        case "cancel":
            cancel_round(round_=round_, actor=actor)
        case "pause":
            pause_round(round_=round_, actor=actor)
        case "reopen":
            reopen_round(round_=round_, actor=actor)
        case "again":
            start_again(round_=round_, actor=actor)
        case "resume":
            resume_round(round_=round_, actor=actor)
        case "start":
            despite_memory = bool(answers.get("despite_memory"))
            start_round(round_=round_, started_by=actor, despite_memory=despite_memory)
        case "retry":
            retry_step(round_=round_, kind=step_named(answers.get("step", "")), actor=actor)
        case "reject":
            reject_round(round_=round_, actor=actor, note=answers.get("reason", ""))
        case "promote":
            promote_round(round_=round_, actor=actor, note=answers.get("reason", ""))
        case "discard":
            discard_round(round_=round_, actor=actor)
        case _:
            raise KeyError(name)


def step_named(name: str) -> StepKind:
    """Return the step that a form names. Refuses an unknown name."""
    try:
        return StepKind(name)
    except ValueError:
        raise Refusal("unknown_round_step", _("%(name)r is no step of a round."), name=name) from None


def _in(*states: RoundState) -> Callable[[RoundView], bool]:
    return lambda view: view.round.state in states


_LIST = (
    RoundAction(
        name="open",
        label=gettext_lazy("Open round"),
        explanation=gettext_lazy(
            "Its checkpoint starts to respond to the prompts, and labelling can begin with the "
            "first responses."
        ),
        is_offered=_in(RoundState.DRAFT),
        look="primary",
        on_recipe_page=True,
    ),
    RoundAction(
        name="rollback",
        label=gettext_lazy("Roll back"),
        explanation=gettext_lazy(
            "An earlier checkpoint responds to the prompts of this round, and training "
            "continues from it. Annotations stay; comparisons without annotations come after "
            "the new responses."
        ),
        is_offered=_in(RoundState.DRAFT, *CAN_START),
    ),
    RoundAction(
        name="cancel",
        label=gettext_lazy("Cancel"),
        explanation=gettext_lazy(
            "Running jobs are saved and stopped. Finished steps are kept, and the round can be started again."
        ),
        is_offered=lambda view: view.round.state in CAN_CANCEL and not view.round.cancel_requested,
        look="danger",
    ),
    RoundAction(
        name="pause",
        label=gettext_lazy("Pause"),
        explanation=gettext_lazy(
            "Running jobs save their state and stop. Nothing starts until the round is resumed;"
            " then it continues from the saved state."
        ),
        is_offered=lambda view: (
            view.round.state in IN_PROGRESS
            and not (view.round.pause_requested or view.round.cancel_requested)
        ),
    ),
    RoundAction(
        name="reopen",
        label=gettext_lazy("Back to labelling"),
        explanation=gettext_lazy(
            "The recipe can be changed and more can be labelled. The next start trains from the beginning; "
            "snapshots, runs and checkpoints stay in the records."
        ),
        is_offered=_in(*CAN_START_AGAIN),
    ),
    RoundAction(
        name="again",
        label=gettext_lazy("Start again"),
        explanation=gettext_lazy("The round resumes where it ended. Finished steps are not repeated."),
        is_offered=lambda view: view.round.state in CAN_START_AGAIN or view.can_answer_again,
        look="primary",
    ),
    RoundAction(
        name="resume",
        label=gettext_lazy("Resume"),
        explanation=gettext_lazy("The round resumes exactly where it was paused."),
        is_offered=_in(RoundState.PAUSED),
        look="primary",
    ),
    RoundAction(
        name="start",
        label=gettext_lazy("Start training round"),
        explanation="",
        is_offered=_in(*CAN_START),
        look="primary",
        on_recipe_page=True,
    ),
    RoundAction(
        name="retry",
        label=gettext_lazy("Repeat"),
        explanation=gettext_lazy(
            "The step begins from its beginning, and so does all that later steps made of it. What they made "
            "stays in the records."
        ),
        # Offered beside each step, not above them all.
        is_offered=lambda view: False,
    ),
    RoundAction(
        name="reject",
        label=gettext_lazy("Reject"),
        explanation=gettext_lazy(
            "The next round starts from the parent of this one. The new checkpoint stays in the registry."
        ),
        is_offered=lambda view: view.can_decide,
        look="danger",
    ),
    RoundAction(
        name="promote",
        label=gettext_lazy("Promote"),
        explanation=gettext_lazy(
            "The next round continues from the new checkpoint, which responds to its prompts "
            "next to its parent. A next round that is already open keeps its responses."
        ),
        is_offered=lambda view: view.can_decide,
        look="primary",
    ),
    RoundAction(
        name="discard",
        label=gettext_lazy("Delete round"),
        explanation=gettext_lazy(
            "A round that trained nothing is deleted with its comparisons and their annotations. For a day "
            "the comparisons can be brought back in their table; prompts and responses stay."
        ),
        is_offered=lambda view: is_discardable(view.round, view.steps),
        look="danger",
    ),
)
ACTIONS: Mapping[str, RoundAction] = {action.name: action for action in _LIST}
"""By name, in the order in which a page shows their buttons."""
