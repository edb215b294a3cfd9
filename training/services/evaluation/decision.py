"""The decision on a new policy: promote, reject, or not enough evidence. Pure arithmetic, no Django.

By people alone it rests on the confidence sequence of `training.figures.win_rates`, by people and an
evaluator on the e-process of `training.figures.win_rates`: both may be looked at whenever another
judgment arrives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
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
)

LEAST_ANSWERS = 10
"""Prompts that people decided either way before they and a model decide anything."""


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
) -> Decision:
    """Decide between a new policy and its parent by people's outcomes and an evaluator's.

    Args:
        answers: (position in `scores`, outcome by people) in the order in which they came, of prompts drawn
            at random: 1 the new policy wins, 1/2 a tie, 0 it loses.
        scores: the evaluator's outcome of every held-out prompt, 0 to 1; None where it has none.
        claim: "new_prompts" decides about prompts like these, "these_prompts" about these alone.
        level: each wrong verdict has at most the probability (1 − level)/2, however often the decision is
            looked at and whatever the evaluator is worth.

    An evaluator that agrees with people saves answers, one that misleads costs some. Without any score,
    people alone decide, as by `decide`. Raises `ValueError` as `decide` and `read_answers` do, and for
    another claim.
    """
    if claim not in ("new_prompts", "these_prompts"):
        raise ValueError(f"The claim {claim!r} is neither 'new_prompts' nor 'these_prompts'.")
    checked_outcomes([], level)
    read = read_answers(answers, scores)
    if claim == "new_prompts" and all(score is None for score in scores):
        return decide(read.outcomes.tolist(), level=level)
    if _are_few(read):
        return Decision.NOT_ENOUGH_EVIDENCE
    is_better = point_estimate(read) >= 0.5
    if log_evidence(read if is_better else read.mirrored, claim=claim) < math.log(2 / (1 - level)):
        return Decision.NOT_ENOUGH_EVIDENCE
    return Decision.PROMOTE if is_better else Decision.REJECT


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
) -> Outlook:
    """Return the decision of `decide_with_model` with its estimate and what it still takes.

    worth_having: the win rate, above one half, below which a difference is none worth having. That it lies
    below is shown with the same guarantee as a verdict.
    """
    verdict = decide_with_model(answers, scores, claim=claim, level=level)
    read = read_answers(answers, scores)
    expected = answers_until_decision(read, claim=claim, level=level)
    against = log_evidence(read.mirrored, 1 - worth_having, claim=claim)
    return Outlook(
        verdict=verdict,
        rate=estimate(read, claim=claim, level=level),
        more_answers=None if expected is None else max(expected - len(answers), 1),
        chance=chance_of_decision(read, claim=claim, level=level),
        below_worth=verdict != Decision.PROMOTE
        and not _are_few(read)
        and against >= math.log(2 / (1 - level)),
        larger_pool=_larger_pool(read, expected, claim, level),
    )


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
