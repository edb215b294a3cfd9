"""The experiment with suggestions as plain data, and its report. Loads NumPy where imported."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from django.db.models import QuerySet

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
from annotation.statistics.help import Decided, HelpReport, Passes, agreement_with, report_on

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
    newest = HelpReveal.objects.filter(assignment__comparison__project=project).order_by("-pk")
    floor = newest.values_list("pk", flat=True)[NEWEST : NEWEST + 1].first()
    return newest if floor is None else newest.filter(pk__gt=floor)


def _seconds(first: int | None, final: int | None, *, two: bool) -> float | None:
    """Active time over all passes; None where one of them was not measured or is not there yet."""
    if first is None or (two and final is None):
        return None
    return float(first + (final or 0))
