"""The comparisons behind a figure. Plain Python: it loads no NumPy."""

from collections.abc import Callable, Iterable, Sequence

from django.db.models import Exists, OuterRef, QuerySet

from annotation.agreement import readings
from annotation.agreement.circles import circles_among
from annotation.agreement.records import Judged
from annotation.agreement.selection import Selection
from annotation.choices import Shown
from annotation.models import Comparison, Judgment, MissingInfo, Project, SpanFlag
from annotation.selectors.judged import current_in, gold_answered_in, judged_in

Finder = Callable[[Sequence[Judged]], Iterable[int]]
"""What the chosen annotators said → the comparisons that are meant."""


def items_behind(project: Project, selection: Selection, shown: Shown) -> list[int]:
    """The ids of the comparisons of a selection that `shown` names, newest first. At most three queries."""
    if shown == Shown.OPEN:
        return _open_items(project, selection)
    if shown == Shown.JUDGED:
        return list(judged_comparisons(project, selection).order_by("-pk").values_list("pk", flat=True))
    if shown == Shown.FLAGGED:
        return _flagged_items(project, selection)
    if shown in (Shown.GOLD_RIGHT, Shown.GOLD_WRONG):
        return _gold_items(project, selection, right=shown == Shown.GOLD_RIGHT)
    judged = judged_in(project, selection.rounds)
    if shown in (Shown.DISAGREE, Shown.AGREE):
        wanted = shown == Shown.DISAGREE
        found: Iterable[int] = (
            pk
            for pk, item in readings.together(judged, selection).items()
            if (differ := disagree(item)) is not None and differ == wanted
        )
    else:
        own = [one for one in judged if selection.is_of(one.annotator)]
        found = _FINDERS[shown](own)
    return sorted(set(found), reverse=True)


def judged_comparisons(project: Project, selection: Selection) -> QuerySet[Comparison]:
    """Return the comparisons that have a current annotation of the selection."""
    judgments = current_in(project, selection.rounds)
    if selection.annotator_ids:
        judgments = judgments.filter(annotator__in=selection.annotator_ids)
    return Comparison.objects.filter(Exists(judgments.filter(comparison=OuterRef("pk"))), project=project)


def disagree(item: Sequence[Judged]) -> bool | None:
    """Return True where annotators differ on a pair; None where nobody shares one."""
    shared = [set(unit.values()) for unit in readings.pair_units(item) if len(unit) > 1]
    return any(len(values) > 1 for values in shared) if shared else None


def _open_items(project: Project, selection: Selection) -> list[int]:
    found = Comparison.objects.filter(project=project, open_slots__gt=0)
    if selection.round_number is not None:
        found = found.filter(round_number=selection.round_number)
    return list(found.order_by("-pk").values_list("pk", flat=True))


def _flagged_items(project: Project, selection: Selection) -> list[int]:
    found: set[int] = set()
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
        found.update(rows.values_list("judgment__comparison_id", flat=True))
    return sorted(found, reverse=True)


def _gold_items(project: Project, selection: Selection, *, right: bool) -> list[int]:
    found = {
        one.comparison
        for one in gold_answered_in(project, selection.rounds)
        if one.right == right and selection.is_of(one.annotator)
    }
    return sorted(found, reverse=True)


def _best(one: Judged) -> set[int]:
    """The positions of the completions that nothing beats, from 0; none where nobody was beaten."""
    if len(set(one.ranks.values())) < 2:
        return set()
    return {place for place, completion in enumerate(one.shown) if one.ranks.get(completion) == 1}


def _where(test: Callable[[Judged], bool]) -> Finder:
    def find(own: Sequence[Judged]) -> Iterable[int]:
        return (one.comparison for one in own if one.is_first_work and test(one))

    return find


def _retests(alike: bool) -> Finder:
    def find(own: Sequence[Judged]) -> Iterable[int]:
        return (
            again.comparison
            for again, same, pairs in readings.retest_matches(own)
            if pairs and (same == pairs) == alike
        )

    return find


def _circles(own: Sequence[Judged]) -> Iterable[int]:
    """The comparisons with a pair of a circle."""
    for said in readings.said_of_prompts(own):
        found = circles_among(said.wins, said.asked_together)
        judgments = {
            judgment
            for (left, right), judgment in said.asked_together.items()
            if any(left in three and right in three for three in found.cyclic)
        }
        yield from (one.comparison for one in own if one.pk in judgments)


_FINDERS: dict[Shown, Finder] = {
    Shown.FIRST_WON: _where(lambda one: _best(one) == {0}),
    Shown.LATER_WON: _where(lambda one: bool(_best(one)) and 0 not in _best(one)),
    Shown.NO_WINNER: _where(lambda one: bool(one.ranks) and not _best(one)),
    Shown.RETEST_SAME: _retests(True),
    Shown.RETEST_CHANGED: _retests(False),
    Shown.CIRCLES: _circles,
}
