"""The report from the cache, or computed now. Views import this; NumPy comes with the first report."""

from django.core.cache import cache

from annotation.choices import Shown
from annotation.models import Judgment, Project
from annotation.statistics.items import items_behind
from annotation.statistics.report import Report
from annotation.statistics.selection import Selection

KEPT_SECONDS = 15 * 60
"""A new judgment makes a new report at once; this bounds how late a new gold answer is seen."""


def report_of(project: Project, selection: Selection) -> Report:
    """The report of a selection: as it was computed after the newest judgment, or computed now."""
    key = f"statistics:report:{_state_of(project)}:{selection.key}"
    report: Report | None = cache.get(key)
    if report is None:
        # Here and not above: a web worker that never shows statistics never loads NumPy and SciPy.
        from annotation.statistics.compute import compute_report

        report = compute_report(project, selection)
        cache.set(key, report, KEPT_SECONDS)
    return report


def items_of(project: Project, selection: Selection, shown: Shown) -> list[int]:
    """The comparisons behind a figure, as they were after the newest judgment."""
    if shown == Shown.OPEN:
        # It changes with every lease, and costs one query.
        return items_behind(project, selection, shown)
    key = f"statistics:items:{_state_of(project)}:{selection.key}:{shown}"
    found: list[int] | None = cache.get(key)
    if found is None:
        found = items_behind(project, selection, shown)
        cache.set(key, found, KEPT_SECONDS)
    return found


def _state_of(project: Project) -> str:
    """The project and its newest judgment: judgments are only ever added."""
    newest = (
        Judgment.objects.filter(comparison__project=project)
        .order_by("-pk")
        .values_list("pk", flat=True)
        .first()
    )
    return f"{project.pk}:{newest}"
