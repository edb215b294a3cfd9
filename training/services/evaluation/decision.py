"""The decision on a new policy: promote, reject, or not enough evidence. Pure arithmetic, no Django.

By people alone it rests on the confidence sequence of `training.figures.win_rates`, by people and an
evaluator on the e-process of `training.figures.win_rates`: both may be looked at whenever another
judgment arrives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from training.figures.win_rates import (
    LEVEL,
    MINIMUM,
    Answers,
    Claim,
    WinRateEstimate,
    answers_until_decision,
    chance_of_decision,
    checked_outcomes,
    estimate,
    log_capital,
    log_evidence,
    point_estimate,
    read_answers,
    sign_test,
)

LEAST_ANSWERS = 10
"""Prompts that people decided either way before they and a model decide anything."""
PLANNED_SHARE = 0.8
"""Part of the probability of a wrong verdict that a planned number of answers may spend: its exact test needs
far fewer answers than evidence that may be looked at after every one, and the rest lets clear cases end early
and open ones go on."""


class Decision(StrEnum):
    """The verdict of an evaluation on the new policy."""

    PROMOTE = "promote"
    REJECT = "reject"
    NOT_ENOUGH_EVIDENCE = "not_enough_evidence"


def decide(outcomes: Sequence[float], *, minimum: int = MINIMUM, level: float = LEVEL) -> Decision:
    """Decide between a new policy and its parent.

    Args:
        outcomes: one per held-out prompt, in [0, 1]: 1 the new policy wins, 1/2 a tie or identical
            responses, 0 it loses. An outcome must not change once it is included.
        minimum: prompts with an outcome other than 1/2 below which nothing is decided.
        level: confidence of the interval; each wrong verdict has at most the probability (1 − level)/2,
            however often the decision is looked at.

    Returns promote where the interval of the win rate lies above one half, reject where it lies below,
    else not enough evidence. Raises `ValueError` for an outcome outside [0, 1], and for a level outside
    (0, 1).
    """
    values = checked_outcomes(outcomes, level)
    if sum(value != 0.5 for value in values) < minimum:
        return Decision.NOT_ENOUGH_EVIDENCE
    threshold = math.log(2 / (1 - level))
    if log_capital(values, 0.5) >= threshold:
        return Decision.PROMOTE
    if log_capital([1 - value for value in values], 0.5) >= threshold:
        return Decision.REJECT
    return Decision.NOT_ENOUGH_EVIDENCE


def decide_with_model(
    answers: Sequence[tuple[int, float]],
    scores: Sequence[float | None],
    *,
    claim: Claim = "new_prompts",
    level: float = LEVEL,
    planned: int | None = None,
) -> Decision:
    """Decide between a new policy and its parent by people's outcomes and an evaluator's.

    Args:
        answers: (position in `scores`, outcome by people) in the order in which they came, of prompts drawn
            at random: 1 the new policy wins, 1/2 a tie, 0 it loses.
        scores: the evaluator's outcome of every held-out prompt, 0 to 1; None where it has none.
        claim: "new_prompts" decides about prompts like these, "these_prompts" about these alone: about what
            people would say of each of them, mistakes included.
        level: each wrong verdict has at most the probability (1 − level)/2, however often the decision is
            looked at and whatever the evaluator is worth.
        planned: answers after which an exact test of these answers alone decides beside the evidence, which
            pays for it with four fifths of its probability of error. To be set before the first answer.

    An evaluator that agrees with people saves answers, one that misleads costs some. Without any score,
    people alone decide, as by `decide`. Raises `ValueError` as `decide` and `read_answers` do, and for
    another claim.
    """
    if claim not in ("new_prompts", "these_prompts"):
        raise ValueError(f"The claim {claim!r} is neither 'new_prompts' nor 'these_prompts'.")
    checked_outcomes([], level)
    read = read_answers(answers, scores)
    if planned is None and claim == "new_prompts" and all(score is None for score in scores):
        return decide(read.outcomes.tolist(), level=level)
    if _are_few(read):
        return Decision.NOT_ENOUGH_EVIDENCE
    if planned is not None and (by_plan := _by_plan(read, planned, claim, level)) is not None:
        return by_plan
    is_better = point_estimate(read) >= 0.5
    evidence = log_evidence(read if is_better else read.mirrored, claim=claim)
    if evidence < math.log(2 / (1 - _level_beside(planned, level))):
        return Decision.NOT_ENOUGH_EVIDENCE
    return Decision.PROMOTE if is_better else Decision.REJECT


def _by_plan(read: Answers, planned: int, claim: Claim, level: float) -> Decision | None:
    """Return the verdict of the first `planned` answers by themselves; None where they show nothing yet."""
    if planned < 1:
        raise ValueError(f"The planned number of answers is {planned}: give 1 or more, or None.")
    first = read.outcomes[:planned]
    if len(first) < planned:
        return None
    pool = len(read.pool) if claim == "these_prompts" else None
    bound = PLANNED_SHARE * (1 - level) / 2
    if sign_test(first, pool=pool) <= bound:
        return Decision.PROMOTE
    return Decision.REJECT if sign_test(1 - first, pool=pool) <= bound else None


def _level_beside(planned: int | None, level: float) -> float:
    """Return the level that the evidence keeps beside a planned test."""
    return level if planned is None else 1 - (1 - PLANNED_SHARE) * (1 - level)


def _are_few(read: Answers) -> bool:
    """Return whether people decided too few prompts either way for any verdict."""
    return int((read.outcomes != 0.5).sum()) < min(LEAST_ANSWERS, len(read.pool))


# ── What a decision still takes ──

LEAST_CHANCE = 0.05
"""Probability of a decision by all prompts below which people are asked no further."""
_LARGER_POOLS = (2, 4, 8)
_WORTH_SAVING = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class LargerPool:
    """A number of scored prompts, and the answers that a decision would take with them in all."""

    prompts: int
    answers: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlook:
    """A decision by people and a model: its verdict, its estimate, and what it still takes."""

    verdict: Decision
    rate: WinRateEstimate
    """The win rate by people and model."""
    more_answers: int | None
    """Answers that are expected to decide; None where these prompts are too few for the estimate."""
    chance: float
    """Probability that answers to all prompts decide."""
    below_worth: bool
    """True once the win rate is shown to lie below what is worth having."""
    larger_pool: LargerPool | None
    """Scored prompts that would save answers, or make a decision possible at all."""

    @property
    def is_hopeless(self) -> bool:
        """Return whether further answers are not worth asking for."""
        undecided = self.verdict == Decision.NOT_ENOUGH_EVIDENCE
        return undecided and (self.below_worth or self.chance < LEAST_CHANCE)


def outlook(
    answers: Sequence[tuple[int, float]],
    scores: Sequence[float | None],
    *,
    worth_having: float,
    claim: Claim = "new_prompts",
    level: float = LEVEL,
    planned: int | None = None,
) -> Outlook:
    """Return the decision of `decide_with_model` with its estimate and what it still takes.

    worth_having: the win rate, above one half, below which a difference is none worth having. That it lies
    below is shown with the same guarantee as a verdict.
    """
    verdict = decide_with_model(answers, scores, claim=claim, level=level, planned=planned)
    read = read_answers(answers, scores)
    beside = _level_beside(planned, level)
    expected = answers_until_decision(read, claim=claim, level=beside)
    if planned is not None and len(answers) < planned and _would_decide(read, planned, claim, level):
        expected = planned if expected is None else min(expected, planned)
    rate = estimate(read, claim=claim, level=beside)
    # The planned test refutes one half and says nothing of other rates.
    if verdict == Decision.PROMOTE:
        rate = replace(rate, low=max(rate.low, 0.5), value=max(rate.value, 0.5))
    elif verdict == Decision.REJECT:
        rate = replace(rate, high=min(rate.high, 0.5), value=min(rate.value, 0.5))
    against = log_evidence(read.mirrored, 1 - worth_having, claim=claim)
    return Outlook(
        verdict=verdict,
        rate=rate,
        more_answers=None if expected is None else max(expected - len(answers), 1),
        chance=chance_of_decision(read, claim=claim, level=beside),
        below_worth=verdict != Decision.PROMOTE
        and not _are_few(read)
        and against >= math.log(2 / (1 - beside)),
        larger_pool=_larger_pool(read, expected, claim, beside),
    )


def _would_decide(read: Answers, planned: int, claim: Claim, level: float) -> bool:
    """Return whether the planned test decides if answers go on as they were, ties included."""
    import numpy as np

    mean = point_estimate(read)
    ties = float((read.outcomes == 0.5).mean()) if len(read.outcomes) else 0.0
    tied = round(planned * ties)
    won = min(max(round(planned * mean - tied / 2), 0), planned - tied)
    outcomes = np.repeat([1.0, 0.5, 0.0], [won, tied, planned - tied - won])
    return _by_plan(replace(read, outcomes=outcomes), planned, claim, level) is not None


def _larger_pool(read: Answers, expected: int | None, claim: Claim, level: float) -> LargerPool | None:
    """Return the smallest larger pool that saves a quarter of the answers that are still to come."""
    if claim == "these_prompts":
        return None
    answered = len(read.outcomes)
    for factor in _LARGER_POOLS:
        prompts = factor * len(read.pool)
        answers = answers_until_decision(read, pool=prompts, claim=claim, level=level)
        if answers is None or answers <= answered:
            continue
        if expected is None or answers - answered <= (1 - _WORTH_SAVING) * (expected - answered):
            return LargerPool(prompts=prompts, answers=answers)
    return None
