"""Whether a round's new policy may be promoted: the recipe's conditions, each with its figure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from training.decision_reasons import Reason, reason, said
from training.evaluation import Figure
from training.models import Evaluation, Round
from training.recipe import PromotionSettings, Recipe
from training.selectors_evaluation import asked_of_people, evaluation_of, people_say


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """Whether a round's new policy may be promoted."""

    ready: bool
    """Whether all the evidence that the recipe asks for is in."""
    promote: bool
    """Whether every condition holds that is known; meant once it is ready."""
    reasons: tuple[Reason, ...]
    """Every condition with its figure, held or not, as the round keeps it."""

    @property
    def said(self) -> tuple[str, ...]:
        """The reasons as sentences."""
        return tuple(map(said, self.reasons))


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """One thing that must hold."""

    held: bool | None
    """None: what it asks for is not known, or not yet."""
    reason: Reason


def decision_of(*, round_: Round) -> Decision:
    """Hold what the round's evaluation found against its recipe's conditions.

    Not ready while people's judgments are waited for, and where a condition asks for what could not be
    measured: then a manager decides.
    """
    evaluation = evaluation_of(round_)
    if evaluation is None or evaluation.finished_at is None:
        return Decision(ready=False, promote=False, reasons=(reason("not_evaluated"),))
    conditions = list(_conditions(evaluation, round_.parsed_recipe))
    return Decision(
        ready=all(one.held is not None for one in conditions),
        promote=all(one.held for one in conditions),
        reasons=tuple(one.reason for one in conditions),
    )


def _conditions(evaluation: Evaluation, recipe: Recipe) -> Iterator[Condition]:
    promotion, figures = recipe.promotion, evaluation.figures
    if not figures["prompts"]:
        yield Condition(held=True, reason=reason("no_held_out"))
    if recipe.evaluation.people and figures["prompts"]:
        yield _people_came(evaluation, recipe.evaluation.people_judgments)
    yield from _win_rate_conditions(evaluation, promotion)
    reward = figures.get("reward") or {}
    measured: list[tuple[dict[str, str], float | None, Figure | None, bool]] = [
        ({"measure": "reward_gain"}, promotion.least_reward_gain, _figure(reward.get("gain")), True),
        ({"measure": "kl"}, promotion.most_kl, _figure(figures["kl"]), False),
        ({"measure": "length_ratio"}, promotion.most_length_ratio, _figure(figures["length_ratio"]), False),
    ]
    for name, least in promotion.rules.items():
        found = (figures["rules"].get(name) or {}).get("checkpoint")
        measured.append(({"measure": "rule", "rule": repr(name)}, least, _figure(found), True))
    for what, bound, figure, at_least in measured:
        if bound is not None:
            yield _bounded(what, bound, figure, at_least=at_least)


def _people_came(evaluation: Evaluation, wanted: int) -> Condition:
    asked = asked_of_people(evaluation)
    enough = min(wanted, asked.possible)
    if not asked.possible:
        return Condition(held=True, reason=reason("people_cannot_come"))
    came = reason("people_came", judgments=asked.judgments, wanted=enough)
    return Condition(held=True if asked.judgments >= enough else None, reason=came)


def _win_rate_conditions(evaluation: Evaluation, promotion: PromotionSettings) -> Iterator[Condition]:
    by_people = promotion.judged_by == "people"
    if by_people:
        rate = people_say(evaluation.checkpoint, evaluation.parent).held_out
    else:
        rate = _figure(evaluation.figures["win_rate"])
    told: dict[str, Any] = {
        "by": "people" if by_people else "reward_model",
        "parent": str(evaluation.parent),
    }
    if rate is not None:
        told["value"] = {"value": rate.value, "low": rate.low, "high": rate.high}
    if promotion.not_worse:
        worse = rate is not None and rate.high is not None and rate.high < 0.5
        code = (
            "win_rate_not_measured" if rate is None else "win_rate_worse" if worse else "win_rate_not_worse"
        )
        yield Condition(held=not worse, reason=reason(code, **told))
    if (least := promotion.least_win_rate) is not None:
        if rate is None or rate.low is None:
            yield Condition(held=None, reason=reason("win_rate_not_known", bound=least, **told))
        else:
            yield Condition(held=rate.low >= least, reason=reason("win_rate_least", bound=least, **told))


def _bounded(what: dict[str, str], bound: float, figure: Figure | None, *, at_least: bool) -> Condition:
    code = "at_least" if at_least else "at_most"
    if figure is None:
        return Condition(held=None, reason=reason(f"{code}_not_known", bound=bound, **what))
    held = figure.value >= bound if at_least else figure.value <= bound
    return Condition(held=held, reason=reason(code, bound=bound, value=figure.value, **what))


def _figure(values: dict[str, Any] | None) -> Figure | None:
    return Figure.from_json(values)
