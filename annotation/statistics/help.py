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
from django.db.models import QuerySet
from django.utils.formats import number_format
from django.utils.translation import gettext as _

from annotation.agreement.estimate import Estimate, Missing, absent
from annotation.agreement.intervals import RESAMPLES, Floats, estimate_of, ratio, share_of
from annotation.agreement.records import outcome_between
from annotation.choices import HelpArm
from annotation.models import (
    DecidedSuggestion,
    GoldAnswer,
    HelpReveal,
    HelpSettings,
    Judgment,
    Project,
    RankedCompletion,
)
from annotation.selectors.known_answers import agrees_with_known
from annotation.statistics.labels import REASONS
from annotation.statistics.page import Number, Row, written
from annotation.statistics.plots import SHARE

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
class HelpEffect:
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
    seconds: HelpEffect
    agreement: HelpEffect
    gold: HelpEffect
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
) -> HelpEffect:
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
    return HelpEffect(helped=helped, control=control, difference=difference)


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


# The report of a project's suggestions as its page writes it.


@dataclass(frozen=True, kw_only=True, slots=True)
class Warned:
    """An accuracy that help lowers, with its difference."""

    name: str
    difference: Number


class HelpPage:
    """One report with everything its template writes."""

    def __init__(self, report: HelpReport) -> None:
        self.report = report

    @property
    def decisions(self) -> list[Row]:
        """Shares of decisions on suggestions."""
        report = self.report
        return [
            _page_share(
                _("Planted errors rejected"),
                _("Of the suggestions that were wrong on purpose."),
                report.planted_rejected,
            ),
            _page_share(
                _("Suggestions accepted"),
                _("Of the suggestions as the model made them, without a change."),
                report.accepted,
            ),
            _page_share(
                _("Accepted unread"),
                _("Of the accepted ones: decided faster than the bound in the settings."),
                report.accepted_unread,
            ),
        ]

    @property
    def effects(self) -> list[Row]:
        """Each quantity with help, without it, and the difference."""
        report = self.report
        return [
            _effect(
                _("Time per comparison"),
                _("Active time over both passes; only the first pass without help."),
                report.seconds,
                is_share=False,
            ),
            _effect(
                _("Agreement with others"),
                _("Share of pairs decided as others decided them in their first passes."),
                report.agreement,
            ),
            _effect(_("Gold accuracy"), _("Share of gold items answered right."), report.gold),
        ]

    @property
    def changes(self) -> list[Row]:
        """Changes from the first to the final pass, on the same comparisons."""
        return [
            Row(
                name=name,
                note=_("Final pass minus first pass, of finished work with help."),
                numbers=(_number(estimate, is_difference=True),),
            )
            for name, estimate in (
                (_("Agreement with others"), self.report.agreement_change),
                (_("Gold accuracy"), self.report.gold_change),
            )
        ]

    @property
    def warnings(self) -> list[Warned]:
        """Accuracies that help lowers: the whole interval of the difference lies below zero."""
        named = {
            "agreement": (_("Agreement with others"), self.report.agreement),
            "gold": (_("Gold accuracy"), self.report.gold),
        }
        return [
            Warned(name=named[key][0], difference=_number(named[key][1].difference, is_difference=True))
            for key in self.report.lowers
        ]


def _page_share(name: str, note: str, estimate: Estimate) -> Row:
    return Row(name=name, note=note, numbers=(_number(estimate),))


def _effect(name: str, note: str, effect: HelpEffect, *, is_share: bool = True) -> Row:
    return Row(
        name=name,
        note=note,
        numbers=(
            _number(effect.helped, is_share=is_share),
            _number(effect.control, is_share=is_share),
            _number(effect.difference, is_share=is_share, is_difference=True),
        ),
    )


def _number(estimate: Estimate, *, is_share: bool = True, is_difference: bool = False) -> Number:
    def text(value: float | None) -> str:
        if value is None:
            return ""
        sign = "+" if is_difference and value > 0 else ""
        if not is_share:
            return sign + _("%(seconds)s s") % {"seconds": number_format(round(value, 1), 1)}
        return sign + written(value, share=True)

    return Number(
        value=text(estimate.value),
        interval=""
        if estimate.low is None
        else _("%(low)s to %(high)s") % {"low": text(estimate.low), "high": text(estimate.high)},
        items=estimate.items,
        reason="" if estimate.missing is None else str(REASONS[estimate.missing]),
        mark=SHARE.interval(estimate.value, estimate.low, estimate.high)
        if is_share and not is_difference
        else None,
        link="",
    )


# The experiment with suggestions as plain data, and its report. Loads NumPy where imported.

NEWEST = 5000
"""Number of a project's newest reveals that are analysed."""


def help_report(project: Project) -> HelpReport:
    """Return the report of a project's newest reveals, in a fixed number of queries."""
    bound = HelpSettings.objects.filter(project=project).values_list("unread_seconds", flat=True).first()
    decided = DecidedSuggestion.objects.filter(reveal__in=_newest(project).values("pk")).values_list(
        "reveal__assignment__comparison_id", "suggestion__is_planted", "decision", "seconds"
    )
    return report_on(
        passes_in(project),
        [
            Decided(comparison=comparison, planted=planted, decision=decision, seconds=seconds)
            for comparison, planted, decision, seconds in decided
        ],
        unread_seconds=2.0 if bound is None else bound,
    )


def passes_in(project: Project) -> list[Passes]:
    """Return the newest work of a project's experiment, newest first.

    Others are represented by their first passes, so that both arms are held against judgments that no
    suggestion has touched.
    """
    reveals = list(
        _newest(project).values_list(
            *("pk", "arm", "finished_at", "assignment_id", "assignment__comparison_id"),
            *("assignment__annotator_id", "first_judgment_id"),
            *("first_judgment__active_seconds", "final_judgment__active_seconds"),
            "assignment__display_order",
        )
    )
    comparisons = {row[4] for row in reveals}
    firsts = _first_passes(comparisons)
    standing = dict(
        Judgment.objects.current()
        .filter(assignment__in=[row[3] for row in reveals])
        .values_list("assignment_id", "pk")
    )
    answers = GoldAnswer.objects.filter(comparison__in=comparisons).select_related("comparison")
    gold = {known.comparison_id: known for known in answers}
    ids = {*standing.values(), *(pk for of_one in firsts.values() for pk in of_one.values())}
    ranks, verdicts = _ranks(ids), dict(Judgment.objects.filter(pk__in=ids).values_list("pk", "verdict"))

    def known(comparison: int, judgment: int) -> float | None:
        answer = gold.get(comparison)
        if answer is None:
            return None
        return float(agrees_with_known(answer, verdict=verdicts[judgment], ranks=ranks.get(judgment, {})))

    def agreed(comparison: int, annotator: int, judgment: int, completions: list[int]) -> float | None:
        others = [ranks.get(pk, {}) for who, pk in firsts[comparison].items() if who != annotator]
        return agreement_with(ranks.get(judgment, {}), others, completions)

    passes = []
    for _pk, arm, finished, assignment, comparison, annotator, first, before, after, completions in reveals:
        helped = arm == HelpArm.HELPED
        stands = standing[assignment]
        passes.append(
            Passes(
                comparison=comparison,
                helped=helped,
                finished=finished is not None,
                seconds=_seconds(before, after, two=helped),
                agreement=agreed(comparison, annotator, stands, completions),
                first_agreement=agreed(comparison, annotator, first, completions),
                gold=known(comparison, stands),
                first_gold=known(comparison, first),
            )
        )
    return passes


def _first_passes(comparisons: Iterable[int]) -> dict[int, dict[int, int]]:
    """Comparison → annotator → their first judgment, which no suggestion has touched."""
    judgments: dict[int, dict[int, int]] = defaultdict(dict)
    rows = Judgment.objects.filter(
        comparison__in=comparisons,
        supersedes__isnull=True,
        annotator__is_machine=False,
        assignment__retest_of__isnull=True,
    ).values_list("comparison_id", "annotator_id", "pk")
    for comparison, annotator, pk in rows:
        judgments[comparison][annotator] = pk
    return judgments


def _ranks(judgments: Iterable[int]) -> Mapping[int, dict[int, int]]:
    ranks: dict[int, dict[int, int]] = defaultdict(dict)
    rows = RankedCompletion.objects.filter(judgment__in=judgments)
    for judgment, completion, rank in rows.values_list("judgment_id", "completion_id", "rank"):
        ranks[judgment][completion] = rank
    return ranks


def _newest(project: Project) -> QuerySet[HelpReveal]:
    newest = HelpReveal.objects.filter(
        assignment__comparison__project=project, assignment__comparison__is_sealed=False
    ).order_by("-pk")
    floor = newest.values_list("pk", flat=True)[NEWEST : NEWEST + 1].first()
    return newest if floor is None else newest.filter(pk__gt=floor)


def _seconds(first: int | None, final: int | None, *, two: bool) -> float | None:
    """Active time over all passes; None where one of them was not measured or is not there yet."""
    if first is None or (two and final is None):
        return None
    return float(first + (final or 0))
