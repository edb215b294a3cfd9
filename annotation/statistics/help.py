"""The effect of suggestions on annotators, from a randomised experiment. Plain data in, estimates out.

Every annotator × comparison is drawn into one of two arms before anything is shown, so the difference between
the arms is the effect of the help. All that was drawn counts in its arm, whether or not the final pass was
submitted. Intervals resample whole comparisons, because annotators of one comparison see the same texts.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from annotation.agreement.bootstrap import RESAMPLES, Floats, estimate_of, ratio
from annotation.agreement.estimate import Estimate, Missing, absent
from annotation.agreement.records import outcome_between
from annotation.agreement.shares import share_of

LEAST_ITEMS = 10
"""An arm with fewer items is too small for an interval that means anything."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Passes:
    """One annotator's work on one comparison of the experiment. Accuracies are shares; None: unknown."""

    comparison: int
    helped: bool
    finished: bool = True
    seconds: float | None = None
    """Active time over both passes."""
    agreement: float | None = None
    """Share of pairs decided as others decided them in their first passes; of the judgment that stands."""
    first_agreement: float | None = None
    """The same of the first pass."""
    gold: float | None = None
    """1 where the judgment that stands agrees with the known answer, else 0."""
    first_gold: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Decided:
    """One decision on one suggestion."""

    comparison: int
    planted: bool
    decision: str
    seconds: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """One quantity with help, without it, and the difference: with minus without."""

    helped: Estimate
    control: Estimate
    difference: Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class HelpReport:
    """All figures of a project's suggestions."""

    helped: int
    control: int
    unfinished: int
    """With help, but without a final pass so far; the first pass stands."""
    decisions: int
    planted_rejected: Estimate
    """Share of planted errors that were rejected."""
    accepted: Estimate
    """Share of genuine suggestions that were accepted as they were."""
    accepted_unread: Estimate
    """Share of accepted suggestions that were decided faster than the bound."""
    seconds: Effect
    agreement: Effect
    gold: Effect
    agreement_change: Estimate
    """From the first to the final pass of the helped arm."""
    gold_change: Estimate

    @property
    def lowers(self) -> tuple[str, ...]:
        """Return the accuracies that help lowers: the whole interval of the difference is below zero."""
        accuracies = {"agreement": self.agreement, "gold": self.gold}
        return tuple(
            name
            for name, effect in accuracies.items()
            if effect.difference.high is not None and effect.difference.high < 0
        )


def report_on(
    passes: Sequence[Passes],
    decided: Sequence[Decided],
    *,
    unread_seconds: float,
    resamples: int = RESAMPLES,
) -> HelpReport:
    """Return all figures of an experiment."""
    planted = [
        (suggestion.comparison, suggestion.decision == "rejected")
        for suggestion in decided
        if suggestion.planted
    ]
    genuine = [
        (suggestion.comparison, suggestion.decision == "accepted")
        for suggestion in decided
        if not suggestion.planted
    ]
    unread = [
        (suggestion.comparison, suggestion.seconds < unread_seconds)
        for suggestion in decided
        if suggestion.decision == "accepted" and suggestion.seconds is not None
    ]
    return HelpReport(
        helped=sum(assignment.helped for assignment in passes),
        control=sum(not assignment.helped for assignment in passes),
        unfinished=sum(not assignment.finished for assignment in passes),
        decisions=len(decided),
        planted_rejected=_share(planted, resamples),
        accepted=_share(genuine, resamples),
        accepted_unread=_share(unread, resamples),
        seconds=effect_of(passes, lambda assignment: assignment.seconds, resamples=resamples),
        agreement=effect_of(passes, lambda assignment: assignment.agreement, resamples=resamples),
        gold=effect_of(passes, lambda assignment: assignment.gold, resamples=resamples),
        agreement_change=_change(
            passes, lambda assignment: (assignment.first_agreement, assignment.agreement), resamples
        ),
        gold_change=_change(passes, lambda assignment: (assignment.first_gold, assignment.gold), resamples),
    )


def effect_of(
    passes: Iterable[Passes], value: Callable[[Passes], float | None], *, resamples: int = RESAMPLES
) -> Effect:
    """Return the means of a quantity in both arms and their difference, each with its interval.

    With fewer than `LEAST_ITEMS` in an arm, that arm and the difference are too few.
    """
    sums: dict[int, list[float]] = defaultdict(lambda: [0.0] * 4)
    for assignment in passes:
        if (known := value(assignment)) is not None:
            at = 0 if assignment.helped else 2
            sums[assignment.comparison][at] += known
            sums[assignment.comparison][at + 1] += 1
    rows = np.array(list(sums.values()) or np.zeros((0, 4)), dtype=np.float64)
    counts = [int(rows[:, 1].sum()), int(rows[:, 3].sum())]
    helped = _mean(rows[:, :2], counts[0], ratio, resamples)
    control = _mean(rows[:, 2:], counts[1], ratio, resamples)
    difference = _mean(rows, min(counts), _difference, resamples)
    return Effect(helped=helped, control=control, difference=difference)


def outcomes_of(ranks: Mapping[int, int], completions: Iterable[int]) -> dict[tuple[int, int], int]:
    """Return for each pair that was ordered: 1 where the older is better, −1 the younger, 0 neither."""
    return {
        (left, right): outcome
        for left, right in combinations(sorted(completions), 2)
        if (outcome := outcome_between(ranks, left, right)) is not None
    }


def agreement_with(
    ranks: Mapping[int, int], others: Iterable[Mapping[int, int]], completions: Sequence[int]
) -> float | None:
    """Return the share of pairs decided alike, over all others; None where nobody else decided a pair.

    completions: all that were compared.
    """
    mine = outcomes_of(ranks, completions)
    alike = total = 0
    for other in others:
        theirs = outcomes_of(other, completions)
        shared = mine.keys() & theirs.keys()
        total += len(shared)
        alike += sum(mine[pair] == theirs[pair] for pair in shared)
    return alike / total if total else None


def _difference(sums: Floats) -> Floats:
    result: Floats = sums[:, 0] / sums[:, 1] - sums[:, 2] / sums[:, 3]
    return result


def _mean(rows: Floats, count: int, statistic: Callable[[Floats], Floats], resamples: int) -> Estimate:
    if count < LEAST_ITEMS:
        return absent(Missing.TOO_FEW if count else Missing.NO_DATA, items=count)
    estimate = estimate_of(rows, statistic, resamples=resamples)
    return Estimate(
        value=estimate.value, low=estimate.low, high=estimate.high, items=count, missing=estimate.missing
    )


def _share(results: Sequence[tuple[int, bool]], resamples: int) -> Estimate:
    """The share of decisions that are true, with an interval over comparisons."""
    if len(results) < LEAST_ITEMS:
        return absent(Missing.TOO_FEW if results else Missing.NO_DATA, items=len(results))
    sums: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for comparison, result in results:
        sums[comparison][0] += result
        sums[comparison][1] += 1
    estimate = share_of([(hits, total) for hits, total in sums.values()], resamples=resamples)
    return Estimate(
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        items=len(results),
        missing=estimate.missing,
    )


def _change(
    passes: Iterable[Passes],
    values: Callable[[Passes], tuple[float | None, float | None]],
    resamples: int,
) -> Estimate:
    """The mean change from the first to the final pass of finished work with help."""
    sums: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for assignment in passes:
        first, final = values(assignment)
        if assignment.helped and assignment.finished and first is not None and final is not None:
            sums[assignment.comparison][0] += final - first
            sums[assignment.comparison][1] += 1
    count = int(sum(total for _change, total in sums.values()))
    rows = np.array(list(sums.values()) or np.zeros((0, 2)), dtype=np.float64)
    return _mean(rows, count, ratio, resamples)
