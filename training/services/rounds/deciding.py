"""A round is promoted, rejected or ends without enough evidence, and the next one opens."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from annotation.services.jobs import send_after_commit
from training.choices import (
    CAN_DECIDE,
    CAN_ROLL_BACK,
    WRITES_TEXT,
    CheckpointKind,
    RoundState,
    RoundVerdict,
    StepKind,
    StepState,
    TrainingTask,
)
from training.contract.methods.policy import PolicyGradientSettings
from training.figures.evaluation_statistics import EvaluationFigure, outcomes_of, win_rate
from training.figures.win_rates import WinRateEstimate, answers_needed, prompts_needed
from training.models import Checkpoint, Evaluation, Round, RoundStep
from training.models.rounds import Reason, reason, reason_text
from training.recipe.recipe import PromotionSettings, Recipe
from training.selectors.evaluations import (
    PeopleSay,
    evaluation_of,
    held_out_answers,
    judgment_progress,
    measurements_of,
    people_say,
    reward_model_validation,
    tolerance_in,
    trained_by,
)
from training.selectors.projects import checkpoints_of
from training.selectors.rounds import can_decide
from training.services.evaluation.decision import Decision as Shown
from training.services.evaluation.decision import Outlook, decide
from training.services.evaluation.decision import outlook as look_ahead
from training.services.evaluation.evaluating import ask_people, asked_of, stop_asking
from training.services.jobs import tell_managers_of_round, tell_of_round
from training.services.rounds.base_choice import next_policy, note_base_of
from training.services.rounds.controls import FROM_THE_BEGINNING, move, unfinished

# ── Evidence and the recipe's conditions, each with its figure ──


_HELD = {Shown.PROMOTE: True, Shown.REJECT: False, Shown.NOT_ENOUGH_EVIDENCE: None}


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundDecision:
    """Decision that the evidence on a round's new policy supports."""

    verdict: RoundVerdict
    waits: bool = False
    """True while judgments by people are missing that the recipe wants first."""
    is_hopeless: bool = False
    """True where more judgments by people would hardly decide."""
    reasons: tuple[Reason, ...]
    """Every condition with its figure, held or not, as the round keeps it."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """Return the reasons as sentences."""
        return tuple(map(reason_text, self.reasons))


@dataclass(frozen=True, kw_only=True, slots=True)
class PromotionCondition:
    """One thing that must hold."""

    held: bool | None
    """None: the evidence does not show it, or not yet."""
    reasons: list[Reason] = field(default_factory=list)
    waits: bool = False
    """True while judgments by people are missing."""
    is_hopeless: bool = False
    """True where more judgments by people would hardly decide."""


def decision_of(*, round_: Round) -> RoundDecision:
    """Hold what the round's evaluation found against its recipe's conditions.

    Promote where every condition holds, reject where one does not, else not enough evidence. The win rate
    decides by the judge that the recipe names, as people's judgments on held-out prompts come
    (`services.evaluation.decision`).
    """
    evaluation = evaluation_of(round_)
    if evaluation is None or evaluation.finished_at is None:
        return RoundDecision(
            verdict=RoundVerdict.NOT_ENOUGH_EVIDENCE, waits=True, reasons=(reason("not_evaluated"),)
        )
    conditions = list(_conditions(evaluation, round_.parsed_recipe))
    if any(condition.held is False for condition in conditions):
        verdict = RoundVerdict.REJECT
    elif all(condition.held for condition in conditions):
        verdict = RoundVerdict.PROMOTE
    else:
        verdict = RoundVerdict.NOT_ENOUGH_EVIDENCE
    reasons = [explanation for condition in conditions for explanation in condition.reasons]
    waits = any(condition.waits for condition in conditions)
    is_open = verdict == RoundVerdict.NOT_ENOUGH_EVIDENCE
    hopeless = is_open and any(condition.is_hopeless for condition in conditions)
    if is_open and not waits and not hopeless:
        reasons += _reasons_by_people(evaluation, round_.parsed_recipe.promotion.least_differing_prompts)
    return RoundDecision(verdict=verdict, waits=waits, is_hopeless=hopeless, reasons=tuple(reasons))


def comparisons_wanted(evaluation: Evaluation) -> int:
    """Return how many held-out prompts people should compare.

    As many as the recipe plans, else enough to show a win rate of 70 % with a power of 80 %, by people and
    the evaluator where the recipe lets both decide.
    """
    alone = prompts_needed(0.7, power=0.8)
    promotion = evaluation.round.parsed_recipe.promotion
    if promotion.judged_by != "people_and_model":
        return alone
    if promotion.planned_answers is not None:
        return promotion.planned_answers
    model = evaluation.reward_model
    validation = None if model is None else reward_model_validation(model)
    if validation is None or evaluation.figures["win_rate"] is None:
        return alone
    together = answers_needed(
        0.7, pool=max(_differing(evaluation), 1), agreement=min(max(validation.low, 0.5), 0.95)
    )
    return alone if together is None else min(together, alone)


def _differing(evaluation: Evaluation) -> int:
    return int(evaluation.figures["prompts"] - evaluation.figures["same"])


def _reasons_by_people(evaluation: Evaluation, minimum: int) -> Iterator[Reason]:
    """Say how many comparisons people are asked, and how many would show something; nothing where there are
    too few of them for a decision."""
    differing = _differing(evaluation)
    if differing >= max(minimum, 1):
        needed = comparisons_wanted(evaluation)
        yield reason("people_asked", asked=min(needed, differing), needed=needed)


def _conditions(evaluation: Evaluation, recipe: Recipe) -> Iterator[PromotionCondition]:
    promotion, figures = recipe.promotion, evaluation.figures
    if not figures["prompts"]:
        yield PromotionCondition(held=None, reasons=[reason("no_held_out")])
    if recipe.evaluation.people and figures["prompts"]:
        yield _people_came(evaluation, recipe.evaluation.people_judgments)
    by_win_rate = promotion.not_worse or promotion.least_win_rate is not None
    if by_win_rate:
        yield _by_win_rate(evaluation, recipe)
    bounds = list(_bounds(evaluation, promotion))
    yield from bounds
    if not by_win_rate and not bounds:
        yield PromotionCondition(held=None, reasons=[reason("no_conditions")])


def _bounds(evaluation: Evaluation, promotion: PromotionSettings) -> Iterator[PromotionCondition]:
    figures = evaluation.figures
    reward = figures.get("reward") or {}
    measured: list[tuple[dict[str, str], float | None, EvaluationFigure | None, bool]] = [
        ({"measure": "reward_gain"}, promotion.least_reward_gain, _figure(reward.get("gain")), True),
        ({"measure": "kl"}, promotion.most_kl, _figure(figures["kl"]), False),
        ({"measure": "length_ratio"}, promotion.most_length_ratio, _figure(figures["length_ratio"]), False),
    ]
    for name, least in promotion.rules.items():
        rule_figure = (figures["rules"].get(name) or {}).get("checkpoint")
        measured.append(({"measure": "rule", "rule": repr(name)}, least, _figure(rule_figure), True))
    for what, bound, figure, at_least in measured:
        if bound is not None:
            yield _bounded(what, bound, figure, at_least=at_least)


def _people_came(evaluation: Evaluation, requested: int) -> PromotionCondition:
    progress = judgment_progress(evaluation)
    enough = min(requested, progress.possible)
    if not progress.possible:
        return PromotionCondition(held=True, reasons=[reason("people_cannot_come")])
    came = reason("people_came", judgments=progress.judgments, wanted=enough)
    waits = progress.judgments < enough
    return PromotionCondition(held=None if waits else True, reasons=[came], waits=waits)


def _by_win_rate(evaluation: Evaluation, recipe: Recipe) -> PromotionCondition:
    """Decide by the judge that the recipe names."""
    people = people_say(evaluation.checkpoint, evaluation.parent)
    match recipe.promotion.judged_by:
        case "people":
            return _shown("people", people.outcomes, evaluation, recipe.promotion)
        case "people_and_model":
            return _by_people_and_model(evaluation, people, recipe.promotion)
        case "reward_model":
            return _by_reward_model(evaluation, people, recipe)


def _by_people_and_model(
    evaluation: Evaluation, people: PeopleSay, promotion: PromotionSettings
) -> PromotionCondition:
    """Decide by people's answers, which the evaluator's scores of all prompts make go further.

    People alone decide where it scored none.
    """
    known = held_out_answers(evaluation, people)
    if not known.are_scored or not known.answers or people.held_out is None:
        return _shown("people", people.outcomes, evaluation, promotion)
    outlook = look_ahead(
        known.answers,
        known.scores,
        worth_having=promotion.worth_having,
        claim=promotion.claim,
        planned=promotion.planned_answers,
    )
    parent = str(evaluation.parent)
    details = {"by": "people_and_model", "parent": parent, "value": _interval(outlook.rate)}
    if promotion.claim == "these_prompts":
        details["claim"] = promotion.claim
    alone = reason("win_rate_alone", by="people", parent=parent, value=_interval(people.held_out))
    if outlook.below_worth and outlook.verdict != Shown.REJECT:
        below = reason("not_worth_having", bound=promotion.worth_having, **details)
        return PromotionCondition(held=False, reasons=[below, alone])
    held = _HELD[outlook.verdict]
    if held and (least := promotion.least_win_rate) is not None:
        held = True if outlook.rate.low >= least else False if outlook.rate.high < least else None
        return PromotionCondition(
            held=held, reasons=[reason("win_rate_least", bound=least, **details), alone]
        )
    code = {True: "win_rate_better", False: "win_rate_worse", None: "win_rate_open"}[held]
    reasons = [reason(code, **details), alone, *(_still_needed(outlook) if held is None else ())]
    return PromotionCondition(held=held, reasons=reasons, is_hopeless=outlook.is_hopeless)


def _still_needed(outlook: Outlook) -> Iterator[Reason]:
    """Say what an open decision still takes."""
    if outlook.is_hopeless:
        yield reason("answers_cannot_decide", chance=outlook.chance)
    elif outlook.more_answers is not None:
        yield reason("answers_expected", answers=outlook.more_answers)
    if (larger := outlook.larger_pool) is not None:
        yield reason("larger_pool", prompts=larger.prompts, answers=larger.answers)


def _by_reward_model(evaluation: Evaluation, people: PeopleSay, recipe: Recipe) -> PromotionCondition:
    """Decide by the reward model where it is validated; by people where it shows nothing, and where people
    show the opposite."""
    rows = evaluation.rows.select_related("old", "new")
    outcomes = outcomes_of([measurements_of(row) for row in rows], tolerance_in(evaluation.figures))
    if evaluation.figures["win_rate"] is None:
        # Without scores, identical responses alone would be ties of nobody's.
        outcomes = []
    by_model = _shown("reward_model", outcomes, evaluation, recipe.promotion)
    by_people = _shown("people", people.outcomes, evaluation, recipe.promotion)
    doubts = list(_doubts(evaluation, recipe.promotion)) if outcomes else []
    if None not in (by_model.held, by_people.held) and by_model.held != by_people.held:
        doubts.append(reason("people_contradict"))
    if by_model.held is not None and not doubts:
        notes = list(_not_independent(evaluation, recipe))
        return PromotionCondition(held=by_model.held, reasons=[*by_model.reasons, *notes])
    reasons = [*by_model.reasons, *doubts]
    if not people.outcomes:
        return PromotionCondition(held=None, reasons=reasons)
    return PromotionCondition(held=by_people.held, reasons=[*reasons, *by_people.reasons])


def _shown(
    by: str, outcomes: list[float] | tuple[float, ...], evaluation: Evaluation, promotion: PromotionSettings
) -> PromotionCondition:
    """Return what one judge's outcomes show, one for each held-out prompt."""
    details: dict[str, Any] = {"by": by, "parent": str(evaluation.parent)}
    rate = win_rate(outcomes)
    if rate is None:
        return PromotionCondition(held=None, reasons=[reason("win_rate_not_measured", **details)])
    details["value"] = _interval(rate)
    minimum = promotion.least_differing_prompts
    differing = sum(outcome != 0.5 for outcome in outcomes)
    if differing < minimum:
        return PromotionCondition(
            held=None, reasons=[reason("few_differ", differing=differing, minimum=minimum, **details)]
        )
    shown = decide(outcomes, minimum=minimum)
    if shown == Shown.PROMOTE and (least := promotion.least_win_rate) is not None:
        held = True if (rate.low or 0) >= least else False if (rate.high or 1) < least else None
        return PromotionCondition(held=held, reasons=[reason("win_rate_least", bound=least, **details)])
    code = {True: "win_rate_better", False: "win_rate_worse", None: "win_rate_open"}[_HELD[shown]]
    return PromotionCondition(held=_HELD[shown], reasons=[reason(code, **details)])


def _interval(rate: EvaluationFigure | WinRateEstimate) -> dict[str, float | None]:
    return {"value": rate.value, "low": rate.low, "high": rate.high}


def _doubts(evaluation: Evaluation, promotion: PromotionSettings) -> Iterator[Reason]:
    """Say why the reward model's scores do not decide; nothing for a validated one."""
    model = evaluation.reward_model
    validation = None if model is None else reward_model_validation(model)
    if validation is None:
        yield reason("reward_model_unknown")
        return
    minimum = promotion.least_reward_model_judgments
    if validation.decided < minimum:
        yield reason("reward_model_few", judgments=validation.decided, minimum=minimum)
    if validation.low <= 0.5:
        accuracy = {"value": validation.accuracy, "low": validation.low, "high": validation.high}
        code = "reward_model_wrong" if validation.high < 0.5 else "reward_model_chance"
        yield reason(code, by="accuracy", value=accuracy)


def _not_independent(evaluation: Evaluation, recipe: Recipe) -> Iterator[Reason]:
    """Say so where the policy was trained by the reward model that judges it, or with its judgments."""
    reward_model = trained_by(evaluation.round, CheckpointKind.REWARD, StepKind.TRAIN_REWARD_MODEL)
    if reward_model is None or reward_model.pk != evaluation.reward_model_id:
        return
    by_scores = isinstance(recipe.policy, PolicyGradientSettings)
    yield reason("same_reward_model" if by_scores else "same_judgments")


def _bounded(
    what: dict[str, str], bound: float, figure: EvaluationFigure | None, *, at_least: bool
) -> PromotionCondition:
    code = "at_least" if at_least else "at_most"
    if figure is None:
        return PromotionCondition(held=None, reasons=[reason(f"{code}_not_known", bound=bound, **what)])
    held = figure.value >= bound if at_least else figure.value <= bound
    return PromotionCondition(held=held, reasons=[reason(code, bound=bound, value=figure.value, **what)])


def _figure(values: dict[str, Any] | None) -> EvaluationFigure | None:
    return EvaluationFigure.from_json(values)


# ── Promotion, rejection, rollback ──


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
            case RoundVerdict.PROMOTE:
                promote_round(round_=round_, actor=None)
            case RoundVerdict.REJECT:
                reject_round(round_=round_, actor=None)
            case _ if round_.state == RoundState.DECIDING:
                _end_without_evidence(round_)
            case _ if round_.parsed_recipe.promotion.judged_by == "people_and_model":
                _ask_on(round_, decision)
    except Refusal:
        # Somebody was faster: their verdict stands.
        round_.refresh_from_db()


def note_decision(round_: Round) -> RoundDecision:
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
        _refuse_without_note(round_, actor, note, RoundVerdict.PROMOTE)
        if candidate is None or not _close(round_, RoundState.PROMOTED, note):
            raise _not_deciding(round_)
        _decided("round.promote", round_, actor, candidate, note)
        _ask_nobody_further(round_)
        _go_on(round_, policy=candidate, opened_by=actor)
    round_.refresh_from_db()


def reject_round(*, round_: Round, actor: User | None, note: str = "") -> None:
    """Let the next round go on with the policy that this one had. A worker is told after the commit.

    The checkpoint stays in the registry. Wants a note and refuses as `promote_round` does.
    """
    with transaction.atomic():
        _refuse_without_note(round_, actor, note, RoundVerdict.REJECT)
        if not _close(round_, RoundState.REJECTED, note):
            raise _not_deciding(round_)
        _decided("round.reject", round_, actor, candidate_of(round_), note)
        _ask_nobody_further(round_)
        _go_on(round_, policy=round_.policy, opened_by=actor)
    round_.refresh_from_db()


def ask_people_to_decide(round_: Round, *, round_number: int) -> None:
    """Put the evaluation's held-out pairs into the labelling queue, as many as would show something."""
    evaluation = evaluation_of(round_)
    if evaluation is not None and evaluation.finished_at is not None:
        ask_people(evaluation, round_number=round_number, most=comparisons_wanted(evaluation))


_AHEAD, _BATCH = 10, 25
"""With fewer open comparisons than this, so many more are asked."""


def _ask_on(round_: Round, decision: RoundDecision) -> None:
    """Ask people for the next held-out pairs while these may decide a round that ended without evidence."""
    following = Round.objects.filter(project=round_.project_id, number=round_.number + 1).first()
    evaluation = evaluation_of(round_)
    if evaluation is None or following is None or following.state not in CAN_ROLL_BACK:
        return
    if decision.is_hopeless:
        stop_asking(evaluation)
        return
    asked = asked_of(evaluation)
    if asked.exists() and asked.filter(open_slots__gt=0).count() < _AHEAD:
        ask_people(evaluation, round_number=following.number, most=asked.count() + _BATCH)


def _ask_nobody_further(round_: Round) -> None:
    evaluation = evaluation_of(round_)
    if evaluation is not None:
        stop_asking(evaluation)


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


def _refuse_without_note(round_: Round, actor: User | None, note: str, requested: RoundVerdict) -> None:
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
    send_after_commit(TrainingTask.ADVANCE_ROUND, following.pk)
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
    send_after_commit(TrainingTask.ADVANCE_ROUND, round_.pk)
