"""A round is promoted or rejected and the next one opens; an open one may take an earlier checkpoint."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now
from django.utils import translation
from django.utils.translation import gettext as _

from annotation.choices import Purpose
from annotation.errors import Refusal
from annotation.models import Comparison, User
from annotation.services import audit
from training.choices import CAN_START, WRITES_TEXT, CheckpointKind, RoundState, StepKind, StepState
from training.decision_reasons import said
from training.doorbell import ring_after_commit
from training.models import Checkpoint, Round, RoundStep
from training.selectors import checkpoints_of
from training.selectors_evaluation import trained_by
from training.services.promotion import Decision, decision_of
from training.services.rounds.transitions import move, unfinished
from training.services.telling import tell_of_round

CAN_ROLL_BACK = (RoundState.DRAFT, *CAN_START)
_SEEDS = 2**31


def candidate_of(round_: Round) -> Checkpoint | None:
    """The policy that a round trained; None before it is registered."""
    return trained_by(round_, CheckpointKind.POLICY, StepKind.TRAIN_POLICY)


def settle_decision(round_: Round) -> None:
    """Promote or reject a round by its recipe, if it may decide that by itself.

    It waits for a manager where the recipe says so and where evidence is missing. Safe to call at
    any time, by several at once.
    """
    if round_.parsed_recipe.promotion.by_hand:
        return
    decision = note_decision(round_)
    if not decision.ready:
        return
    try:
        if decision.promote:
            promote_round(round_=round_, actor=None)
        else:
            reject_round(round_=round_, actor=None)
    except Refusal:
        # Somebody was faster: their verdict stands.
        round_.refresh_from_db()


def note_decision(round_: Round) -> Decision:
    """What the recipe's conditions say now; the round keeps it for people to read."""
    decision = decision_of(round_=round_)
    Round.objects.filter(pk=round_.pk, state=RoundState.DECIDING).update(reasons=list(decision.reasons))
    return decision


def promote_round(*, round_: Round, actor: User | None) -> None:
    """Let the next round go on with the policy that this one trained. A worker is told after the commit.

    `actor` is None where the recipe's conditions decided it. Refuses a round that does not wait for its
    decision: of any number who decide at once, one does.
    """
    candidate = candidate_of(round_)
    with transaction.atomic():
        if candidate is None or not _close(round_, RoundState.PROMOTED):
            raise _not_deciding(round_)
        _decided("round.promote", round_, actor, candidate)
        _open_next(round_, policy=candidate, opened_by=actor)
    round_.refresh_from_db()


def reject_round(*, round_: Round, actor: User | None) -> None:
    """Let the next round go on with the policy that this one had. A worker is told after the commit.

    The checkpoint stays in the registry. Refuses as `promote_round` does.
    """
    with transaction.atomic():
        if not _close(round_, RoundState.REJECTED):
            raise _not_deciding(round_)
        _decided("round.reject", round_, actor, candidate_of(round_))
        _open_next(round_, policy=round_.policy, opened_by=actor)
    round_.refresh_from_db()


def rollback_choices(round_: Round) -> Sequence[Checkpoint]:
    """The checkpoints that a round may take as its policy instead of the one it has, newest first."""
    found = checkpoints_of(round_.project, writing=True).filter(files_deleted_at=None)
    return list(found.exclude(pk=round_.policy_id).order_by("-pk"))


def roll_back(*, round_: Round, checkpoint: Checkpoint, actor: User) -> None:
    """Let an open round go on from an earlier checkpoint: it answers the prompts, training continues it.

    What was judged of this round stays. What nobody has begun to judge comes after the new answers.
    Refuses once training has begun, and a checkpoint that is not one of `rollback_choices`.
    """
    with transaction.atomic():
        if checkpoint.kind not in WRITES_TEXT or checkpoint not in rollback_choices(round_):
            raise Refusal(
                _("%(name)s cannot answer for %(round)s: choose another checkpoint of the project.")
                % {"name": checkpoint, "round": round_}
            )
        locked = Round.objects.select_for_update().get(pk=round_.pk)
        recipe = _with_fresh_seed(locked.recipe, round_, checkpoint)
        changed = Round.objects.filter(pk=round_.pk, state__in=CAN_ROLL_BACK)
        if not changed.update(policy=checkpoint, recipe=recipe):
            raise Refusal(
                _("%(round)s trains or has trained: take it back to labelling first, or roll back the next.")
                % {"round": round_}
            )
        audit.record(
            action="round.rollback",
            subject=round_,
            actor=actor,
            project=round_.project,
            details={"from": round_.policy.name, "to": checkpoint.name},
        )
        if round_.state != RoundState.DRAFT:
            _answer_anew(round_)
    round_.refresh_from_db()


def _close(round_: Round, verdict: RoundState) -> bool:
    """Move a round that waits for its decision to the verdict, once; whether it was this call that did."""
    if unfinished(round_).exclude(kind=StepKind.DECIDE).exists():
        return False
    if not move(round_, verdict, finished_at=Now(), cancel_requested=False, pause_requested=False):
        return False
    # A person may be faster than the step that would have decided it.
    unfinished(round_).update(
        state=StepState.FINISHED, worker="", heartbeat_at=None, message="decided", finished_at=Now()
    )
    return True


def _not_deciding(round_: Round) -> Refusal:
    round_.refresh_from_db()
    return Refusal(
        _("%(round)s does not wait for a decision: it is %(state)s.")
        % {"round": round_, "state": round_.get_state_display()}
    )


def _decided(action: str, round_: Round, actor: User | None, candidate: Checkpoint | None) -> None:
    reasons = Round.objects.values_list("reasons", flat=True).get(pk=round_.pk)
    # The log is one for all who read it, whoever decided.
    with translation.override("en"):
        reasons_said = [said(reason) for reason in reasons]
    audit.record(
        action=action,
        subject=round_,
        actor=actor,
        project=round_.project,
        details={
            "checkpoint": candidate.name if candidate else None,
            "reasons": reasons_said,
        },
    )


def _open_next(round_: Round, *, policy: Checkpoint, opened_by: User | None) -> None:
    """The round after this one, in sampling, with the same recipe. A time that was set was for this one."""
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
    ring_after_commit(following.pk)


def _with_fresh_seed(recipe: Mapping[str, Any], round_: Round, policy: Checkpoint) -> dict[str, Any]:
    """The recipe; with another seed where `policy` answered an earlier round with this one.

    A checkpoint that is asked the same with the same seed says the same, and there would be nothing new
    to judge.
    """
    rounds = Round.objects.filter(project=round_.project, policy=policy)
    used = {dict(one).get("seed", 0) for one in rounds.values_list("recipe", flat=True)}
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
        round=round_,
        position=0,
        defaults={
            "kind": StepKind.ANSWER_PROMPTS,
            "state": StepState.WAITING,
            "current": 0,
            "total": 0,
            "message": "",
            "error": "",
            "worker": "",
            "heartbeat_at": None,
            "finished_at": None,
        },
    )
    ring_after_commit(round_.pk)
