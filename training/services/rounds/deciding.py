"""A round is promoted, rejected or ends without enough evidence, and the next one opens; an open one may take
an earlier checkpoint."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now
from django.utils import translation
from django.utils.translation import gettext as _

from annotation.choices import NotificationKind, Purpose
from annotation.errors import Refusal
from annotation.models import Comparison, User
from annotation.services import audit
from annotation.services.jobs.messages import send_after_commit
from training.choices import (
    CAN_DECIDE,
    CAN_ROLL_BACK,
    WRITES_TEXT,
    CheckpointKind,
    RoundState,
    StepKind,
    StepState,
    TaskName,
    Verdict,
)
from training.models import Checkpoint, Round, RoundStep
from training.models.decision_reasons import reason_text
from training.selectors.evaluations import evaluation_of, trained_by
from training.selectors.projects import checkpoints_of
from training.selectors.round_states import can_decide
from training.services.evaluation.evaluations import ask_people
from training.services.jobs.events import tell_managers_of_round, tell_of_round
from training.services.rounds.base_choice import next_policy, note_base_of
from training.services.rounds.promotion import Decision, comparisons_wanted, decision_of
from training.services.rounds.transitions import FROM_THE_BEGINNING, move, unfinished

_SEEDS = 2**31


def candidate_of(round_: Round) -> Checkpoint | None:
    """Return the policy that a round trained; None before it is registered."""
    return trained_by(round_, CheckpointKind.POLICY, StepKind.TRAIN_POLICY)


def settle_decision(round_: Round) -> None:
    """Promote or reject a round by its recipe, or end it without enough evidence, if it may by itself.

    It waits for a manager where the recipe says so and for people's judgments where it wants them first. A
    round that ended without enough evidence is decided once people's judgments show something. Safe to call
    at any time, by several at once.
    """
    if round_.parsed_recipe.promotion.by_hand:
        if round_.state == RoundState.DECIDING:
            tell_managers_of_round(round_, NotificationKind.DECISION_WAITING)
        return
    decision = note_decision(round_)
    if decision.waits:
        return
    try:
        match decision.verdict:
            case Verdict.PROMOTE:
                promote_round(round_=round_, actor=None)
            case Verdict.REJECT:
                reject_round(round_=round_, actor=None)
            case _ if round_.state == RoundState.DECIDING:
                _end_without_evidence(round_)
    except Refusal:
        # Somebody was faster: their verdict stands.
        round_.refresh_from_db()


def note_decision(round_: Round) -> Decision:
    """Evaluate the recipe's conditions and store the result on the round."""
    decision = decision_of(round_=round_)
    Round.objects.filter(pk=round_.pk, state__in=CAN_DECIDE).update(
        reasons=list(decision.reasons), verdict=decision.verdict
    )
    return decision


def promote_round(*, round_: Round, actor: User | None, note: str = "") -> None:
    """Let the next round go on with the policy that this one trained. A worker is told after the commit.

    `actor` is None where the recipe's conditions decided it; a person gives a note where the evidence does
    not support it. A next round that is open already keeps its answers. Refuses a round that does not wait
    for its decision: of any number who decide at once, one does.
    """
    candidate = candidate_of(round_)
    with transaction.atomic():
        _refuse_without_note(round_, actor, note, Verdict.PROMOTE)
        if candidate is None or not _close(round_, RoundState.PROMOTED, note):
            raise _not_deciding(round_)
        _decided("round.promote", round_, actor, candidate, note)
        _go_on(round_, policy=candidate, opened_by=actor)
    round_.refresh_from_db()


def reject_round(*, round_: Round, actor: User | None, note: str = "") -> None:
    """Let the next round go on with the policy that this one had. A worker is told after the commit.

    The checkpoint stays in the registry. Wants a note and refuses as `promote_round` does.
    """
    with transaction.atomic():
        _refuse_without_note(round_, actor, note, Verdict.REJECT)
        if not _close(round_, RoundState.REJECTED, note):
            raise _not_deciding(round_)
        _decided("round.reject", round_, actor, candidate_of(round_), note)
        _go_on(round_, policy=round_.policy, opened_by=actor)
    round_.refresh_from_db()


def ask_people_to_decide(round_: Round, *, round_number: int) -> None:
    """Put the evaluation's held-out pairs into the labelling queue, as many as would show something."""
    evaluation = evaluation_of(round_)
    if evaluation is not None and evaluation.finished_at is not None:
        ask_people(evaluation, round_number=round_number, most=comparisons_wanted())


def _end_without_evidence(round_: Round) -> None:
    """End a round that nothing decides: the next one goes on with its parent, and people are asked.

    The new policy answers the next round's prompts next to the parent, so blind judgments go on comparing
    the two, and the held-out pairs of the evaluation are asked first.
    """
    with transaction.atomic():
        if not _close(round_, RoundState.NOT_ENOUGH_EVIDENCE, ""):
            raise _not_deciding(round_)
        _decided("round.not_enough_evidence", round_, None, candidate_of(round_), "")
        tell_managers_of_round(round_, NotificationKind.NOT_ENOUGH_EVIDENCE)
        following = _open_next(round_, policy=round_.policy, opened_by=None)
        ask_people_to_decide(round_, round_number=following.number)
    round_.refresh_from_db()


def _refuse_without_note(round_: Round, actor: User | None, note: str, requested: Verdict) -> None:
    """Refuse a person's decision that the evidence does not support and that gives no reason."""
    verdict = Round.objects.values_list("verdict", flat=True).get(pk=round_.pk)
    if actor is None or note.strip() or verdict == requested or not can_decide(round_):
        return
    raise Refusal(
        "decision_reason_missing",
        _("The evidence does not decide this: write down why you do."),
        field="reason",
    )


def rollback_choices(round_: Round) -> Sequence[Checkpoint]:
    """Return the checkpoints that could replace the round's policy, newest first."""
    checkpoints = checkpoints_of(round_.project, writing=True).filter(files_deleted_at=None)
    return list(checkpoints.exclude(pk=round_.policy_id).order_by("-pk"))


def roll_back(*, round_: Round, checkpoint: Checkpoint, actor: User) -> None:
    """Let an open round go on from an earlier checkpoint: it answers the prompts, training continues it.

    What was judged of this round stays. What nobody has begun to judge comes after the new answers.
    Refuses once training has begun, and a checkpoint that is not one of `rollback_choices`.
    """
    with transaction.atomic():
        if checkpoint.kind not in WRITES_TEXT or checkpoint not in rollback_choices(round_):
            raise Refusal(
                "checkpoint_cannot_respond",
                _("%(name)s cannot respond in %(round)s: choose another checkpoint of the project."),
                name=checkpoint,
                round=round_,
            )
        locked = Round.objects.select_for_update().get(pk=round_.pk)
        recipe = _with_fresh_seed(locked.recipe, round_, checkpoint)
        changed = Round.objects.filter(pk=round_.pk, state__in=CAN_ROLL_BACK)
        if not changed.update(policy=checkpoint, recipe=recipe):
            raise Refusal(
                "next_round_trains",
                _("%(round)s trains or has trained: take it back to labelling first, or roll back the next."),
                round=round_,
            )
        audit.record(
            action="round.rollback",
            subject=round_,
            actor=actor,
            project=round_.project,
            details={"from": round_.policy.name, "to": checkpoint.name},
        )
        note_base_of(checkpoint, round_.project)
        if round_.state != RoundState.DRAFT:
            _answer_anew(round_)
    round_.refresh_from_db()


def _close(round_: Round, end: RoundState, note: str) -> bool:
    """Move a round that waits for its decision to its end, once; whether it was this call that did."""
    if unfinished(round_).exclude(kind=StepKind.DECIDE).exists():
        return False
    values = {"finished_at": Now(), "cancel_requested": False, "pause_requested": False}
    if not move(round_, end, sources=CAN_DECIDE, decision_note=note.strip(), **values):
        return False
    # A person may be faster than the step that would have decided it.
    unfinished(round_).update(
        state=StepState.FINISHED, worker="", heartbeat_at=None, message="decided", finished_at=Now()
    )
    return True


def _not_deciding(round_: Round) -> Refusal:
    round_.refresh_from_db()
    return Refusal(
        "round_not_deciding",
        _("%(round)s does not wait for a decision: it is %(state)s."),
        round=round_,
        state=round_.get_state_display(),
    )


def _decided(action: str, round_: Round, actor: User | None, candidate: Checkpoint | None, note: str) -> None:
    reasons = Round.objects.values_list("reasons", flat=True).get(pk=round_.pk)
    # The log is one for all who read it, whoever decided.
    with translation.override("en"):
        reason_texts = [reason_text(reason) for reason in reasons]
    audit.record(
        action=action,
        subject=round_,
        actor=actor,
        project=round_.project,
        details={
            "checkpoint": candidate.name if candidate else None,
            "reasons": reason_texts,
            **({"note": note.strip()} if note.strip() else {}),
        },
    )


def _go_on(round_: Round, *, policy: Checkpoint, opened_by: User | None) -> None:
    """Let the next round go on with this policy; one that is open already takes it before it trains."""
    following = _open_next(round_, policy=policy, opened_by=opened_by)
    if following.policy_id == policy.pk or following.policy.base_id != policy.base_id:
        # Of another base it begins anew.
        return
    still_open = Round.objects.filter(pk=following.pk, state__in=CAN_ROLL_BACK)
    if not still_open.update(policy=policy):
        raise Refusal(
            "next_round_trains",
            _("%(round)s trains or has trained: take it back to labelling first, or roll back the next."),
            round=following,
        )


def _open_next(round_: Round, *, policy: Checkpoint, opened_by: User | None) -> Round:
    """Open the next round, in sampling, with the same recipe except its start time.

    Where the project has chosen another base model meanwhile, it begins from that.
    """
    policy = next_policy(round_.project, policy)
    recipe = _with_fresh_seed(round_.recipe, round_, policy)
    if recipe.get("start"):
        recipe["start"] = {**recipe["start"], "at": None}
    following, created = Round.objects.get_or_create(
        project=round_.project,
        number=round_.number + 1,
        defaults={
            "policy": policy,
            "recipe": recipe,
            "state": RoundState.SAMPLING,
            "created_by": opened_by or round_.started_by,
        },
    )
    RoundStep.objects.get_or_create(round=following, position=0, defaults={"kind": StepKind.ANSWER_PROMPTS})
    if created:
        tell_of_round(following, RoundState.SAMPLING)
    send_after_commit(TaskName.ADVANCE_ROUND, following.pk)
    return following


def _with_fresh_seed(recipe: Mapping[str, Any], round_: Round, policy: Checkpoint) -> dict[str, Any]:
    """Return the recipe, with another seed if `policy` answered an earlier round with this one.

    A checkpoint that is asked the same with the same seed says the same, and there would be nothing new
    to judge.
    """
    rounds = Round.objects.filter(project=round_.project, policy=policy)
    used = {dict(used_recipe).get("seed", 0) for used_recipe in rounds.values_list("recipe", flat=True)}
    seed = recipe.get("seed", 0)
    while seed in used:
        seed = (seed + 1) % _SEEDS
    return {**recipe, "seed": seed}


def _answer_anew(round_: Round) -> None:
    begun = Comparison.objects.filter(
        project=round_.project_id, round_number=round_.number, purpose=Purpose.WORK
    )
    begun.filter(open_slots=F("overlap")).update(priority=F("priority") - 1)
    move(round_, RoundState.SAMPLING, sources=(RoundState.LABELLING,))
    RoundStep.objects.update_or_create(
        round=round_, position=0, defaults={"kind": StepKind.ANSWER_PROMPTS, **FROM_THE_BEGINNING}
    )
    send_after_commit(TaskName.ADVANCE_ROUND, round_.pk)
