"""Fill the agreement of comparisons that were judged before it was kept (annotation/services/quality.py)."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import combinations, groupby
from math import comb
from typing import Any

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

AT_ONCE = 2000


def fill(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    comparisons = apps.get_model("annotation", "Comparison").objects.filter(purpose="work")
    last = 0
    while pks := list(comparisons.filter(pk__gt=last).order_by("pk").values_list("pk", flat=True)[:AT_ONCE]):
        last = pks[-1]
        changed = [apps.get_model("annotation", "Comparison")(pk=pk, agreement=share) for pk, share in _shares(apps, pks)]
        comparisons.bulk_update(changed, ["agreement"], batch_size=500)


def _shares(apps: StateApps, pks: list[int]) -> Iterator[tuple[int, float]]:
    judgments = apps.get_model("annotation", "Judgment").objects.filter(
        comparison__in=pks,
        superseded_by__isnull=True,
        assignment__retest_of__isnull=True,
        annotator__is_machine=False,
    )
    ranks: dict[int, dict[int, int]] = defaultdict(dict)
    ranked = apps.get_model("annotation", "RankedCompletion").objects.filter(judgment__in=judgments)
    for judgment, completion, rank in ranked.values_list("judgment_id", "completion_id", "rank"):
        ranks[judgment][completion] = rank
    fields = ("comparison_id", "pk", "assignment__display_order", "imported_from")
    rows = judgments.order_by("comparison_id").values_list(*fields)
    for pk, group in groupby(rows, key=lambda row: row[0]):
        if (share := _share(ranks, list(group))) is not None:
            yield pk, share


def _share(ranks: dict[int, dict[int, int]], rows: list[Any]) -> float | None:
    said: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    for _, judgment, shown, imported in rows:
        ties = {
            frozenset((shown[left - 1], shown[right - 1]))
            for left, right in ((imported or {}).get("more") or {}).get("broken_ties", ())
        }
        for left, right in combinations(sorted(ranks[judgment]), 2):
            first, second = ranks[judgment][left], ranks[judgment][right]
            tied = frozenset((left, right)) in ties
            said[left, right][0 if tied else (second > first) - (second < first)] += 1
    total = sum(comb(counts.total(), 2) for counts in said.values())
    agreeing = sum(comb(number, 2) for counts in said.values() for number in counts.values())
    return agreeing / total if total else None


class Migration(migrations.Migration):
    dependencies = [("annotation", "0026_agreement")]

    operations = [migrations.RunPython(fill, migrations.RunPython.noop, elidable=True)]
