"""The decision on a round's new policy: the evidence and the recipe's conditions, each with its figure."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from training.choices import CheckpointKind, StepKind, Verdict
from training.contract import PolicyGradientSettings
from training.figures.evaluation_statistics import Figure, outcomes_of, win_rate
from training.figures.win_rate_interval import prompts_needed
from training.models import Evaluation, Round
from training.models.decision_reasons import Reason, reason, reason_text
from training.recipe import PromotionSettings, Recipe
from training.selectors.evaluations import (
    evaluation_of,
    judgment_progress,
    measurements_of,
    people_say,
    tolerance_in,
    trained_by,
)
from training.selectors.validation import reward_model_validation
from training.services.evaluation.decision import Decision as Shown
from training.services.evaluation.decision import decide

_HELD = {Shown.PROMOTE: True, Shown.REJECT: False, Shown.NOT_ENOUGH_EVIDENCE: None}


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """Decision that the evidence on a round's new policy supports."""

    verdict: Verdict
    waits: bool = False
    """True while judgments by people are missing that the recipe wants first."""
    reasons: tuple[Reason, ...]
    """Every condition with its figure, held or not, as the round keeps it."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """Return the reasons as sentences."""
        return tuple(map(reason_text, self.reasons))


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """One thing that must hold."""

    held: bool | None
    """None: the evidence does not show it, or not yet."""
    reasons: list[Reason] = field(default_factory=list)
    waits: bool = False
    """True while judgments by people are missing."""


def decision_of(*, round_: Round) -> Decision:
    """Hold what the round's evaluation found against its recipe's conditions.

    Promote where every condition holds, reject where one does not, else not enough evidence. The win rate
    decides as `services.evaluation.decision.decide` says: by the reward model if it is validated, and by
    people's judgments on held-out prompts as they come.
    """
    evaluation = evaluation_of(round_)
    if evaluation is None or evaluation.finished_at is None:
        return Decision(verdict=Verdict.NOT_ENOUGH_EVIDENCE, waits=True, reasons=(reason("not_evaluated"),))
    conditions = list(_conditions(evaluation, round_.parsed_recipe))
    if any(condition.held is False for condition in conditions):
        verdict = Verdict.REJECT
    elif all(condition.held for condition in conditions):
        verdict = Verdict.PROMOTE
    else:
        verdict = Verdict.NOT_ENOUGH_EVIDENCE
    reasons = [explanation for condition in conditions for explanation in condition.reasons]
    waits = any(condition.waits for condition in conditions)
    if verdict == Verdict.NOT_ENOUGH_EVIDENCE and not waits:
        reasons += _reasons_by_people(evaluation, round_.parsed_recipe.promotion.least_differing_prompts)
    return Decision(verdict=verdict, waits=waits, reasons=tuple(reasons))


def comparisons_wanted() -> int:
    """Return how many held-out prompts people should compare: enough to show a win rate of 70 % with a
    power of 80 %."""
    return prompts_needed(0.7, power=0.8)


def _reasons_by_people(evaluation: Evaluation, minimum: int) -> Iterator[Reason]:
    """Say how many comparisons people are asked, and how many would show something; nothing where there are
    too few of them for a decision."""
    differing = evaluation.figures["prompts"] - evaluation.figures["same"]
    if differing >= max(minimum, 1):
        needed = comparisons_wanted()
        yield reason("people_asked", asked=min(needed, differing), needed=needed)


def _conditions(evaluation: Evaluation, recipe: Recipe) -> Iterator[Condition]:
    promotion, figures = recipe.promotion, evaluation.figures
    if not figures["prompts"]:
        yield Condition(held=None, reasons=[reason("no_held_out")])
    if recipe.evaluation.people and figures["prompts"]:
        yield _people_came(evaluation, recipe.evaluation.people_judgments)
    by_win_rate = promotion.not_worse or promotion.least_win_rate is not None
    if by_win_rate:
        yield _by_win_rate(evaluation, recipe)
    bounds = list(_bounds(evaluation, promotion))
    yield from bounds
    if not by_win_rate and not bounds:
        yield Condition(held=None, reasons=[reason("no_conditions")])


def _bounds(evaluation: Evaluation, promotion: PromotionSettings) -> Iterator[Condition]:
    figures = evaluation.figures
    reward = figures.get("reward") or {}
    measured: list[tuple[dict[str, str], float | None, Figure | None, bool]] = [
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


def _people_came(evaluation: Evaluation, requested: int) -> Condition:
    progress = judgment_progress(evaluation)
    enough = min(requested, progress.possible)
    if not progress.possible:
        return Condition(held=True, reasons=[reason("people_cannot_come")])
    came = reason("people_came", judgments=progress.judgments, wanted=enough)
    waits = progress.judgments < enough
    return Condition(held=None if waits else True, reasons=[came], waits=waits)


def _by_win_rate(evaluation: Evaluation, recipe: Recipe) -> Condition:
    """Decide by the judge that the recipe names; by people where a reward model shows nothing, and where
    people show the opposite."""
    people = people_say(evaluation.checkpoint, evaluation.parent)
    if recipe.promotion.judged_by == "people":
        return _shown("people", people.outcomes, evaluation, recipe.promotion)
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
        return Condition(held=by_model.held, reasons=[*by_model.reasons, *notes])
    reasons = [*by_model.reasons, *doubts]
    if not people.outcomes:
        return Condition(held=None, reasons=reasons)
    return Condition(held=by_people.held, reasons=[*reasons, *by_people.reasons])


def _shown(
    by: str, outcomes: list[float] | tuple[float, ...], evaluation: Evaluation, promotion: PromotionSettings
) -> Condition:
    """Return what one judge's outcomes show, one for each held-out prompt."""
    details: dict[str, Any] = {"by": by, "parent": str(evaluation.parent)}
    rate = win_rate(outcomes)
    if rate is None:
        return Condition(held=None, reasons=[reason("win_rate_not_measured", **details)])
    details["value"] = {"value": rate.value, "low": rate.low, "high": rate.high}
    minimum = promotion.least_differing_prompts
    differing = sum(outcome != 0.5 for outcome in outcomes)
    if differing < minimum:
        return Condition(
            held=None, reasons=[reason("few_differ", differing=differing, minimum=minimum, **details)]
        )
    shown = decide(outcomes, minimum=minimum)
    if shown == Shown.PROMOTE and (least := promotion.least_win_rate) is not None:
        held = True if (rate.low or 0) >= least else False if (rate.high or 1) < least else None
        return Condition(held=held, reasons=[reason("win_rate_least", bound=least, **details)])
    code = {True: "win_rate_better", False: "win_rate_worse", None: "win_rate_open"}[_HELD[shown]]
    return Condition(held=_HELD[shown], reasons=[reason(code, **details)])


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


def _bounded(what: dict[str, str], bound: float, figure: Figure | None, *, at_least: bool) -> Condition:
    code = "at_least" if at_least else "at_most"
    if figure is None:
        return Condition(held=None, reasons=[reason(f"{code}_not_known", bound=bound, **what)])
    held = figure.value >= bound if at_least else figure.value <= bound
    return Condition(held=held, reasons=[reason(code, bound=bound, value=figure.value, **what)])


def _figure(values: dict[str, Any] | None) -> Figure | None:
    return Figure.from_json(values)
