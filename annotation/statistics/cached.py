"""The report from the cache, or computed now. Views import this; NumPy comes with the first report."""

from collections.abc import Callable
from datetime import timedelta

from django.core.cache import cache
from django.utils import timezone

from annotation.agreement.records import Selection
from annotation.choices import Shown
from annotation.models import Judgment, Project
from annotation.selectors.cached_counts import cached, is_cached
from annotation.selectors.comparisons import items_behind
from annotation.statistics.report import Report

KEPT_SECONDS = 15 * 60
"""A new judgment makes a new report, unless that takes long; this bounds how late a gold answer is seen."""
QUICK_SECONDS = 2.0
"""A report that took longer is shown for a hundred times its time, whatever was submitted meanwhile."""
_SHOWN_FOR = 100
STALE_SECONDS = 24 * 3600
"""So long a report is there for who would rather read an old one than wait."""
ITEMS_SECONDS = 60.0
"""The comparisons behind a figure of a large project, looked through one by one, are listed so rarely."""
BEGUN_SECONDS = 600
"""A computation that a worker has not ended by then, for it died, is asked for again."""
LARGE = 20_000
"""With more judgments than this nobody waits for a page until its report is computed."""


def report_of(project: Project, selection: Selection) -> Report:
    """Return the report of a selection: as kept, or computed now."""
    report = cached_report_of(project, selection)
    if report is None:
        # Here and not above: a web worker that never shows statistics never loads NumPy and SciPy.
        from annotation.statistics.compute import compute_report

        state = _state_of(project)
        report = compute_report(project, selection)
        cache.set(_key_of(project, selection), (state, report), STALE_SECONDS)
    return report


def report_without_waiting(
    project: Project, selection: Selection, *, request: Callable[..., bool]
) -> Report | None:
    """Return the report; in a large project as it was computed last, None where it never was.

    There a worker computes it again, once at a time. request: `request_report` of the services.
    """
    report = cached_report_of(project, selection)
    if report is not None or not is_large(project):
        return report or report_of(project, selection)
    begun = _begun_key_of(project, selection)
    is_first = cache.add(begun, True, BEGUN_SECONDS)
    if is_first and not request(project_id=project.pk, selection=selection):
        cache.delete(begun)
    return last_report_of(project, selection)


def compute_in_worker(*, project_id: int, selection: Selection) -> None:
    """Compute the report that a page waits for; nothing where its project is gone."""
    project = Project.objects.filter(pk=project_id).first()
    if project is None:
        return
    try:
        report_of(project, selection)
    finally:
        cache.delete(_begun_key_of(project, selection))


def cached_report_of(project: Project, selection: Selection) -> Report | None:
    """Return the report computed after the newest judgment, or a slow one of not long ago; else None."""
    entry: tuple[str, Report] | None = cache.get(_key_of(project, selection))
    if entry is None:
        return None
    state, report = entry
    age = timezone.now() - report.computed_at
    if age > timedelta(seconds=KEPT_SECONDS):
        return None
    is_recent = report.seconds > QUICK_SECONDS and age < timedelta(seconds=_SHOWN_FOR * report.seconds)
    return report if is_recent or state == _state_of(project) else None


def last_report_of(project: Project, selection: Selection) -> Report | None:
    """Return the report computed last, however old; None where none is kept. Computes nothing."""
    entry: tuple[str, Report] | None = cache.get(_key_of(project, selection))
    return None if entry is None else entry[1]


def is_large(project: Project) -> bool:
    """Return True where a report takes long to compute."""
    judgments = Judgment.objects.filter(comparison__project=project).order_by()
    return judgments[: LARGE + 1].count() > LARGE


def items_of(project: Project, selection: Selection, shown: Shown) -> list[int]:
    """Return the comparisons behind a figure: in a large project as they were a moment ago."""
    return cached(
        lambda: items_behind(project, selection, shown),
        *_items_of(project, selection, shown),
        at_least=ITEMS_SECONDS if is_large(project) else 0.0,
    )


def items_are_cached(project: Project, selection: Selection, shown: Shown) -> bool:
    """Return True where somebody has just listed the comparisons behind a figure."""
    return is_cached(*_items_of(project, selection, shown))


def _key_of(project: Project, selection: Selection) -> str:
    # The number changes with the fields of a report: an older one is not read again.
    return f"statistics:report:6:{project.pk}:{selection.key}"


def _begun_key_of(project: Project, selection: Selection) -> str:
    return f"{_key_of(project, selection)}:begun"


def _items_of(project: Project, selection: Selection, shown: Shown) -> tuple[str | int, ...]:
    return ("statistics items", project.pk, selection.key, shown)


def _state_of(project: Project) -> str:
    """The project, its newest judgment and what is hidden: judgments are only ever added."""
    newest = (
        Judgment.objects.filter(comparison__project=project)
        .order_by("-pk")
        .values_list("pk", flat=True)
        .first()
    )
    return f"{project.pk}:{project.calibration_seals}:{newest}"
