"""Workers run the steps of rounds: one at a time, each by whoever claims it, any of them again."""

import logging
from functools import partial
from typing import Literal

from django.db import OperationalError, transaction
from django.db.models import Exists, F, OuterRef, Q, Sum
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import NotificationKind
from annotation.errors import Refusal, Unavailable
from annotation.selectors.access import judgments_current
from annotation.services import audit
from annotation.services.job_runs import speaking_for
from annotation.services.jobs import (
    ClaimLostError,
    WorkerStoppingError,
    claim,
    claimable,
    release,
    send,
    still_held,
)
from training.choices import (
    CAN_START,
    TRAINS,
    CheckpointKind,
    RoundState,
    RoundVerdict,
    StepKind,
    StepState,
    TrainingTask,
)
from training.contract import ContractError, log_lines
from training.contract.methods import Settings
from training.engine import Engine
from training.models import Checkpoint, Round, RoundStep, Run, Snapshot
from training.selectors.live import answered_at_first
from training.selectors.rounds import awaiting_evidence
from training.services.checkpoints import register_checkpoint
from training.services.evaluation.evaluating import evaluate_round
from training.services.jobs import (
    BudgetSpentError,
    CancelledError,
    InterruptedStepError,
    NoRoomError,
    PausedError,
    StepHeartbeat,
    tell_managers_of_round,
)
from training.services.rounds.base_choice import base_of_run
from training.services.rounds.controls import (
    IN_PROGRESS,
    enter,
    move,
    settle_cancel,
    settle_pause,
    settle_requests,
    start_round,
    unfinished,
)
from training.services.rounds.deciding import ask_people_to_decide, note_decision, settle_decision
from training.services.rounds.guarding import end_questions, watch_questions, withdraw_questions
from training.services.rounds.recipes import with_guard, with_reward_models
from training.services.runs.runs import create_run, drive_run, trl_is_gone, unused_name
from training.services.sampling import answer_prompts, rival_of
from training.services.scores import score_if_wanted
from training.services.snapshots import freeze_snapshot

# ── Steps ──


_OTHER_SEED = 0x5EC0_0D5E
"""Below 2³¹, as seeds are."""


def do_step(step: RoundStep, heartbeat: StepHeartbeat) -> str:
    """Do a step whose claim the caller holds; return what came of it, for people."""
    match StepKind(step.kind):
        case StepKind.ANSWER_PROMPTS:
            return _answer_prompts(step, heartbeat)
        case StepKind.FREEZE_SNAPSHOT:
            return _freeze_snapshot(step, heartbeat)
        case StepKind.TRAIN_REWARD_MODEL | StepKind.TRAIN_EVALUATOR:
            return _train_reward_model(step, heartbeat)
        case StepKind.TRAIN_POLICY:
            return _train_policy(step, heartbeat)
        case StepKind.REGISTER_CHECKPOINTS:
            return _register_checkpoints(step, heartbeat)
        case StepKind.EVALUATE:
            return _evaluate(step, heartbeat)
        case StepKind.DECIDE:
            return _decide(step, heartbeat)


def _freeze_snapshot(step: RoundStep, heartbeat: StepHeartbeat) -> str:
    """Export the judgments of this round and all before it."""
    round_ = step.round
    if round_.snapshot is None:
        snapshot = freeze_snapshot(
            project=round_.project,
            rounds=list(range(1, round_.number + 1)),
            created_by=round_.started_by,
            weigh_by_reliability=round_.parsed_recipe.reliability_weights,
            ai_feedback=round_.parsed_recipe.ai_feedback,
            feedback=round_.parsed_recipe.feedback,
            first_passes=round_.parsed_recipe.first_passes,
            on_row=lambda done, total: heartbeat(current=done, total=total, message="writing judgments"),
        )
        with still_held(step):
            round_.snapshot = snapshot
            round_.save(update_fields=["snapshot"])
    counts = round_.snapshot.counts
    return f"{counts['judgments']} judgments, {sum(counts['decided_pairs'].values())} decided pairs"


def _train_reward_model(step: RoundStep, heartbeat: StepHeartbeat) -> str:
    """Train a reward model from the base: all judgments so far are in the snapshot."""
    role = "evaluator" if step.kind == StepKind.TRAIN_EVALUATOR else "reward"
    return _train(step, heartbeat, role, step.round.parsed_recipe.reward)


def _train_policy(step: RoundStep, heartbeat: StepHeartbeat) -> str:
    """Train the round's policy further; a starter model has no adapter to continue."""
    policy = step.round.policy
    parent = policy if policy.kind == CheckpointKind.POLICY else None
    recipe = step.round.parsed_recipe
    if step.round.names_trl:
        raise Refusal("trainer_removed", trl_is_gone(step.round))
    settings = with_guard(with_reward_models(step.round, recipe.policy), recipe.compute)
    return _train(step, heartbeat, "policy", settings, parent=parent)


def _train(
    step: RoundStep,
    heartbeat: StepHeartbeat,
    role: str,
    settings: Settings,
    *,
    parent: Checkpoint | None = None,
) -> str:
    run = step.run or _create_run(step, role, settings, parent=parent)
    with log_lines.bearing(run=run.pk):
        drive_run(run, heartbeat=heartbeat, attend=partial(watch_questions, step))
        end_questions(step)
    return f"{run.step} steps"


def _register_checkpoints(step: RoundStep, heartbeat: StepHeartbeat) -> str:
    """Take both checkpoints into the collection, where the model server finds them."""
    names = []
    runs = _runs(step.round)
    for done, run in enumerate(runs):
        heartbeat(current=done, total=len(runs), message=f"checking {run}")
        names.append(register_checkpoint(run=run).name)
    return " and ".join(names)


def _answer_prompts(step: RoundStep, heartbeat: StepHeartbeat) -> str:
    """Sample responses of the round's policy and of its rival.

    The round is in labelling as soon as the first of them are answered; the rest comes while
    people label.
    """
    round_ = step.round
    rival = rival_of(round_)
    with Engine() as engine:
        first = round_.parsed_recipe.ready_prompts
        answer = partial(
            answer_prompts,
            round_=round_,
            rival=rival,
            heartbeat=heartbeat,
            engine=engine,
            training_prompts=answered_at_first(round_.project),
        )
        answer(first=first)
        move(round_, RoundState.LABELLING, sources=(RoundState.SAMPLING,))
        outcome = answer()
    scored = _score_answers(round_, heartbeat)
    return f"{outcome}; {scored}" if scored else outcome


def _score_answers(round_: Round, heartbeat: StepHeartbeat) -> str:
    """Scores decide which comparison is asked next. Without them labelling goes on by age."""
    with Engine() as engine:
        return score_if_wanted(
            project=round_.project, engine=engine, tell=lambda message: heartbeat(message=message)
        )


def _evaluate(step: RoundStep, heartbeat: StepHeartbeat) -> str:
    """Hold the new policy against its parent, on prompts that nothing was learnt from."""
    with Engine() as engine:
        return evaluate_round(round_=step.round, heartbeat=heartbeat, engine=engine)


def _decide(step: RoundStep, heartbeat: StepHeartbeat) -> str:
    """See whether the recipe's conditions hold; the verdict itself follows once this step is finished."""
    decision = note_decision(step.round)
    if decision.waits:
        return "judgments by people are still missing"
    if decision.verdict == RoundVerdict.NOT_ENOUGH_EVIDENCE and step.round.parsed_recipe.promotion.by_hand:
        ask_people_to_decide(step.round, round_number=step.round.number)
    return str(RoundVerdict(decision.verdict).label)


def _create_run(step: RoundStep, role: str, settings: Settings, *, parent: Checkpoint | None) -> Run:
    round_ = step.round
    with still_held(step):
        step.run = create_run(
            name=unused_name(f"{round_.project.slug}-round-{round_.number}-{role}"),
            snapshot=_snapshot(round_),
            settings_of_method=settings,
            base_model=base_of_run(round_, StepKind(step.kind)),
            parent=parent,
            seed=_seed_of(step),
            judgments=_judgments_of(step),
            compute=round_.parsed_recipe.compute,
        )
        step.save(update_fields=["run"])
    return step.run


def _seed_of(step: RoundStep) -> int:
    seed = step.round.parsed_recipe.seed
    # Shares neither its first weights nor its order of judgments with the round's other reward model.
    return (seed ^ _OTHER_SEED) if step.kind == StepKind.TRAIN_EVALUATOR else seed


def _judgments_of(step: RoundStep) -> Literal["all", "policy", "evaluator"]:
    """Return the part of the training judgments that a step's run learns from."""
    if step.kind == StepKind.TRAIN_EVALUATOR:
        return "evaluator"
    return "policy" if step.round.steps.filter(kind=StepKind.TRAIN_EVALUATOR).exists() else "all"


def _runs(round_: Round) -> list[Run]:
    return list(Run.objects.filter(round_step__round=round_).order_by("round_step__position"))


def _snapshot(round_: Round) -> Snapshot:
    if round_.snapshot is None:
        raise Refusal(
            "snapshot_missing",
            _("%(round)s has no snapshot. Take it back to labelling and start it again."),
            round=round_,
        )
    return round_.snapshot


# ── Automatic starts and decisions ──


logger = logging.getLogger(__name__)


def start_due_rounds() -> None:
    """Start the training of every round whose recipe says that it is time.

    One whose judgments teach nothing yet is looked at again by the next sweep.
    """
    for round_ in Round.objects.filter(state__in=CAN_START, starts_by_itself=True).select_related("project"):
        try:
            if not is_due(round_):
                continue
            start_round(round_=round_, started_by=None)
        except (Refusal, ContractError) as error:
            logger.info("%s: not started by itself, because %s", round_, error)
        else:
            logger.info("%s: started by itself", round_)


def is_due(round_: Round) -> bool:
    """Return whether the recipe's number of judgments is reached, or its time has come."""
    start = round_.parsed_recipe.start
    if start.time is not None and start.time <= timezone.now():
        return True
    if start.judgments is None:
        return False
    # What is not learnt from is no reason to begin.
    learnt = judgments_current(round_.project, [round_.number], machines=round_.parsed_recipe.ai_feedback)
    return learnt.count() >= start.judgments


def settle_decisions(round_id: int | None = None) -> None:
    """Decide every round, or this one, that has nothing left to do but that and needs no manager for it."""
    deciding = Round.objects.filter(
        state=RoundState.DECIDING, pause_requested=False, cancel_requested=False
    ).select_related("project", "policy")
    for round_ in deciding if round_id is None else deciding.filter(pk=round_id):
        if not unfinished(round_).exists():
            settle_decision(round_)
    if round_id is None:
        # People's judgments may have shown something since.
        for round_ in awaiting_evidence().select_related("project", "policy"):
            settle_decision(round_)


# ── Claims and ends of steps ──


_COST_HOURS = (
    StepKind.FREEZE_SNAPSHOT,
    StepKind.TRAIN_REWARD_MODEL,
    StepKind.TRAIN_EVALUATOR,
    StepKind.TRAIN_POLICY,
    StepKind.REGISTER_CHECKPOINTS,
)
"""Steps that a recipe's budget of hours covers."""


def advance_round(round_id: int) -> None:
    """Run a round's steps in order until one waits or fails.

    Safe to call at any time, from anywhere, twice at once: a step is done by who claims it.
    """
    while step_id := _next_step(round_id):
        step = claim_step(step_id)
        if step is None:
            return
        with speaking_for(step):
            may_go_on = _carry_out(step)
        if not may_go_on:
            return
    settle_requests(round_id)
    settle_decisions(round_id)


def claim_step(step_id: int) -> RoundStep | None:
    """Claim a step, with its round as it is now."""
    related = ("round__project", "round__policy", "round__started_by", "round__created_by", "run")
    return claim(RoundStep.objects.select_related(*related), step_id)


def rounds_with_work() -> list[int]:
    """Return the rounds with a step that waits or whose worker has gone silent.

    Those of an incomplete project are left to the process that writes it.
    """
    unfinished = RoundStep.objects.exclude(state=StepState.FINISHED).filter(position__gt=0)
    before = unfinished.filter(round=OuterRef("round"), position__lt=OuterRef("position"))
    active = Q(round__state__in=TRAINS, position__gt=0) | Q(round__state__in=CAN_START, position=0)
    steps = RoundStep.objects.filter(~Exists(before), active, round__project__is_incomplete=False)
    next_steps = claimable(steps)
    return sorted(set(next_steps.values_list("round_id", flat=True)))


def sweep() -> None:
    """Look for what nobody does: lost messages, dead workers, rounds that are due, open decisions."""
    settle_requests()
    start_due_rounds()
    settle_decisions()
    for round_id in rounds_with_work():
        send(TrainingTask.ADVANCE_ROUND, round_id)


def _carry_out(step: RoundStep) -> bool:
    """Do a claimed step; return True if the round may go on to the next one."""
    logger.info("%s: begins", step)
    try:
        try:
            if not enter(step):
                _give_back(step)
                return False
            heartbeat = StepHeartbeat(step, seconds_left=_seconds_left(step))
            heartbeat.write()
            outcome = do_step(step, heartbeat)
            release(step, **step.end_values(StepState.FINISHED, outcome), current=F("total"))
        except ClaimLostError:
            raise
        except Exception as error:
            _end_early(step, error)
            return False
    except ClaimLostError:
        logger.warning("%s: someone else has it now", step)
        return False
    logger.info("%s: finished, %s", step, outcome)
    return True


def _end_early(step: RoundStep, error: Exception) -> None:
    """Write down what it means for a step and its round that this ended it; called while it is handled."""
    match error:
        case CancelledError():
            _cancelled(step)
        case PausedError():
            _paused(step)
        case BudgetSpentError():
            _out_of_budget(step)
        case NoRoomError():
            logger.warning("%s: given back, because the disk is nearly full", step)
            _give_back(step, str(error))
        case WorkerStoppingError():
            logger.info("%s: given back, because this worker ends", step)
            _give_back(step)
        case InterruptedStepError():
            logger.warning("%s: given back, because %s", step, error)
            _give_back(step)
        case OperationalError():
            logger.exception("%s: the database did not answer; given back", step)
            _give_back(step)
        case Unavailable():
            logger.warning("%s: given back, because %s", step, error)
            _give_back(step, str(error))
        case Refusal() | ContractError():
            _failed(step, str(error))
        case _:
            logger.exception("%s: failed", step)
            _failed(step, f"Something went wrong that nobody foresaw ({error!r}). The worker's log has more.")


def _give_back(step: RoundStep, message: str = "waiting for a worker") -> None:
    release(step, **step.end_values(StepState.WAITING, message))


def _seconds_left(step: RoundStep) -> float | None:
    """Return the rest of the recipe's budget of hours; None where it sets none."""
    hours = step.round.parsed_recipe.budget.hours
    if hours is None or StepKind(step.kind) not in _COST_HOURS:
        return None
    steps = RoundStep.objects.filter(round=step.round_id, kind__in=_COST_HOURS)
    return 3600 * hours - float(steps.aggregate(worked=Sum("seconds_worked"))["worked"] or 0.0)


def _cancelled(step: RoundStep) -> None:
    with transaction.atomic():
        release(step, **step.end_values(StepState.CANCELLED, "cancelled; start again to go on where it was"))
        settle_cancel(step.round)


def _paused(step: RoundStep) -> None:
    logger.info("%s: paused", step)
    with transaction.atomic():
        _give_back(step, "paused; it goes on where it was")
        settle_pause(step.round)


def _out_of_budget(step: RoundStep) -> None:
    hours = step.round.parsed_recipe.budget.hours
    reason = f"its budget of {hours:g} hours is spent; start again to go on for as long once more"
    logger.warning("%s: %s", step, reason)
    with transaction.atomic():
        release(step, **step.end_values(StepState.CANCELLED, reason))
        settle_cancel(step.round)
        audit.record(
            action="round.cancel",
            subject=step.round,
            project=step.round.project,
            details={"reason": reason},
        )


def _failed(step: RoundStep, error: str) -> None:
    """Fail the round with its step, unless people label already: they can go on without the rest."""
    logger.error("%s: %s", step, error)
    with transaction.atomic():
        release(step, **step.end_values(StepState.FAILED, error))
        withdraw_questions(step.round)
        fails_in = TRAINS if step.position else (RoundState.SAMPLING,)
        move(step.round, RoundState.FAILED, sources=fails_in, finished_at=Now())
        Round.objects.filter(pk=step.round_id).update(cancel_requested=False, pause_requested=False)
        tell_managers_of_round(
            step.round,
            NotificationKind.ROUND_FAILED,
            key=f":{step.pk}:{timezone.now().isoformat()}",
            error=error,
        )


def _next_step(round_id: int) -> int | None:
    """Return the first unfinished step, if the round may go on with it."""
    round_ = Round.objects.filter(pk=round_id, state__in=IN_PROGRESS).first()
    if round_ is None:
        return None
    steps = RoundStep.objects.filter(round_id=round_id).exclude(state=StepState.FINISHED)
    steps = steps.filter(position__gt=0) if round_.state in TRAINS else steps.filter(position=0)
    first = steps.order_by("position").first()
    if first is None or first.state not in (StepState.WAITING, StepState.RUNNING):
        return None
    return first.pk
