"""The comparisons behind a figure. Plain Python: it loads no NumPy."""

from collections.abc import Callable, Iterable, Sequence

from django.db.models import BigIntegerField, Count, Exists, F, Max, OuterRef, Q, QuerySet
from django.db.models.functions import Cast

from annotation.agreement import records
from annotation.agreement.records import Judged, Selection, circles_among
from annotation.choices import Purpose, Shown
from annotation.models import (
    Assignment,
    Comparison,
    Judgment,
    MissingInfo,
    Project,
    SpanFlag,
)
from annotation.selectors.judged import current_in, gold_answered_in, judged_in

Finder = Callable[[Sequence[Judged]], Iterable[int]]
"""Judgments of the selected annotators → ids of the matching comparisons."""


def items_behind(project: Project, selection: Selection, shown: Shown) -> list[int]:
    """Return ids of the comparisons of a selection that `shown` names, newest first. At most three queries.

    Only judgments that can match are read one by one: of many annotations those are few.
    """
    listed = comparisons_behind(project, selection, shown)
    if listed is not None:
        return list(listed.order_by("-pk").values_list("pk", flat=True))
    if shown == Shown.FLAGGED:
        return _flagged_items(project, selection)
    if shown in (Shown.GOLD_RIGHT, Shown.GOLD_WRONG):
        return _gold_items(project, selection, right=shown == Shown.GOLD_RIGHT)
    if shown in (Shown.FIRST_WON, Shown.LATER_WON, Shown.NO_WINNER):
        decided = _decided(_first_work(project, selection), shown)
        ids: Iterable[int] = decided.order_by().values_list("comparison_id", flat=True)
    elif shown in (Shown.DISAGREE, Shown.AGREE):
        ids = _of_two(project, selection, differ=shown == Shown.DISAGREE)
    else:
        narrowed, finder = _FINDERS[shown]
        judged = judged_in(project, selection.rounds, narrowed=narrowed())
        ids = finder([judgment for judgment in judged if selection.is_of(judgment.annotator)])
    return sorted(set(ids), reverse=True)


def comparisons_behind(project: Project, selection: Selection, shown: Shown) -> QuerySet[Comparison] | None:
    """Return the comparisons that `shown` names where the database knows them by their rows; else None."""
    comparisons = Comparison.objects.filter(project=project).exclude(purpose=Purpose.DELETED)
    if selection.rounds is not None:
        comparisons = comparisons.filter(round_number__in=selection.rounds)
    if shown == Shown.OPEN:
        return comparisons.filter(open_slots__gt=0)
    if shown == Shown.JUDGED:
        return comparisons.filter(_has(current_in(project, selection.rounds), selection))
    if shown in (Shown.DISAGREE, Shown.AGREE) and len(selection.annotator_ids) < 2:
        differs = Q(agreement__lt=1) if shown == Shown.DISAGREE else Q(agreement=1)
        shared = comparisons.filter(differs, purpose=Purpose.WORK)
        if not selection.annotator_ids:
            return shared
        return shared.filter(_has(_first_work(project, selection), selection))
    return None


def _has(judgments: QuerySet[Judgment], selection: Selection) -> Exists:
    if selection.annotator_ids:
        judgments = judgments.filter(annotator__in=selection.annotator_ids)
    return Exists(judgments.filter(comparison=OuterRef("pk")))


def _first_work(project: Project, selection: Selection) -> QuerySet[Judgment]:
    """Return the selection's judgments of real work without its repetitions."""
    judgments = current_in(project, selection.rounds).filter(
        comparison__purpose=Purpose.WORK, assignment__retest_of__isnull=True
    )
    if selection.annotator_ids:
        judgments = judgments.filter(annotator__in=selection.annotator_ids)
    return judgments


def _of_two(project: Project, selection: Selection, *, differ: bool) -> Iterable[int]:
    """Yield the comparisons on which two annotators differ, or agree."""
    first, second = selection.annotator_ids
    judgments = Judgment.objects.filter(comparison=OuterRef("comparison"))
    both = Exists(judgments.filter(annotator=first)) & Exists(judgments.filter(annotator=second))
    narrowed = Q(both, annotator__in=(first, second))
    judged = judged_in(project, selection.rounds, narrowed=narrowed)
    for pk, item in records.together(judged, selection).items():
        if disagree(item) == differ:
            yield pk


def disagree(item: Sequence[Judged]) -> bool | None:
    """Return True where annotators differ on a pair; None where nobody shares one."""
    shared = [set(unit.values()) for unit in records.pair_units(item) if len(unit) > 1]
    return any(len(values) > 1 for values in shared) if shared else None


def _flagged_items(project: Project, selection: Selection) -> list[int]:
    ids: set[int] = set()
    for model in (SpanFlag, MissingInfo):
        rows = model.objects.filter(
            judgment__in=Judgment.objects.current().filter(comparison__project=project)
        )
        if selection.rounds is not None:
            rows = rows.filter(judgment__comparison__round_number__in=selection.rounds)
        if selection.category_id is not None:
            rows = rows.filter(category_id=selection.category_id)
        if selection.annotator_ids:
            rows = rows.filter(judgment__annotator_id__in=selection.annotator_ids)
        ids.update(rows.values_list("judgment__comparison_id", flat=True))
    return sorted(ids, reverse=True)


def _gold_items(project: Project, selection: Selection, *, right: bool) -> list[int]:
    ids = {
        answer.comparison
        for answer in gold_answered_in(project, selection.rounds)
        if answer.right == right and selection.is_of(answer.annotator)
    }
    return sorted(ids, reverse=True)


def _decided(judgments: QuerySet[Judgment], shown: Shown) -> QuerySet[Judgment]:
    """Keep judgments whose best response stood first alone, whose best stood elsewhere, or without a best."""
    first = Cast("assignment__display_order__0", BigIntegerField())
    is_best = Q(ranks__rank=1)
    counted = judgments.annotate(
        last_rank=Max("ranks__rank"),
        bests=Count("ranks", filter=is_best),
        first_is_best=Count("ranks", filter=is_best & Q(ranks__completion_id=first)),
    )
    # Where fewer than all have a rank, the others are below the best.
    has_winner = Q(last_rank__gt=1) | Q(last_rank=1, bests__lt=F("comparison__size"))
    if shown == Shown.NO_WINNER:
        return counted.filter(last_rank=1, bests__gte=F("comparison__size"))
    if shown == Shown.FIRST_WON:
        return counted.filter(has_winner, bests=1, first_is_best=1)
    return counted.filter(has_winner, first_is_best=0)


def _retests(alike: bool) -> Finder:
    def find(judged: Sequence[Judged]) -> Iterable[int]:
        return (
            again.comparison
            for again, same, pairs in records.retest_matches(judged)
            if pairs and (same == pairs) == alike
        )

    return find


def _was_retested() -> Q:
    return Q(comparison__in=Assignment.objects.filter(retest_of__isnull=False).values("comparison"))


def _circles(judged: Sequence[Judged]) -> Iterable[int]:
    """The comparisons with a pair of a circle."""
    for preferences in records.preferences_by_prompt(judged):
        circles = circles_among(preferences.wins, preferences.asked_together)
        judgments = {
            judgment
            for (left, right), judgment in preferences.asked_together.items()
            if any(left in three and right in three for three in circles.cyclic)
        }
        yield from (judgment.comparison for judgment in judged if judgment.pk in judgments)


def _says_more_of_its_prompt() -> Q:
    """Judgments whose annotator also judged another comparison of the prompt: a circle needs two."""
    others = Judgment.objects.filter(
        annotator=OuterRef("annotator"), comparison__prompt=OuterRef("comparison__prompt")
    )
    return Q(Exists(others.exclude(comparison=OuterRef("comparison"))))


_FINDERS: dict[Shown, tuple[Callable[[], Q], Finder]] = {
    Shown.RETEST_SAME: (_was_retested, _retests(True)),
    Shown.RETEST_CHANGED: (_was_retested, _retests(False)),
    Shown.CIRCLES: (_says_more_of_its_prompt, _circles),
}
"""The judgments to read, and the finder of the comparisons among them."""
