"""The steps of a round. Each may be done again from its beginning."""

from typing import Literal

from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.services.jobs.claims import still_held
from training.choices import CheckpointKind, RoundState, StepKind, Verdict
from training.contract import Settings, log_lines
from training.engine import Engine
from training.models import Checkpoint, Round, RoundStep, Run, Snapshot
from training.services.evaluation.evaluations import evaluate_round
from training.services.evaluation.scores import score_if_wanted
from training.services.jobs.step_heartbeat import StepHeartbeat
from training.services.registry.checkpoints import register_checkpoint
from training.services.rounds.base_choice import base_of_run
from training.services.rounds.deciding import ask_people_to_decide, note_decision
from training.services.rounds.reward_models import with_reward_models
from training.services.rounds.transitions import move
from training.services.runs.runs import create_run, drive_run, trl_is_gone, unused_name
from training.services.sampling.answers import answer_prompts, rival_of
from training.services.snapshots import freeze_snapshot

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
    settings = with_reward_models(step.round, recipe.policy)
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
        drive_run(run, heartbeat=heartbeat)
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
        answer_prompts(round_=round_, rival=rival, heartbeat=heartbeat, engine=engine, first=first)
        move(round_, RoundState.LABELLING, sources=(RoundState.SAMPLING,))
        outcome = answer_prompts(round_=round_, rival=rival, heartbeat=heartbeat, engine=engine)
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
    if decision.verdict == Verdict.NOT_ENOUGH_EVIDENCE and step.round.parsed_recipe.promotion.by_hand:
        ask_people_to_decide(step.round, round_number=step.round.number)
    return str(Verdict(decision.verdict).label)


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
