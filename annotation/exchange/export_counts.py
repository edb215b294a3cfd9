"""Counts of an export before its download."""

from dataclasses import dataclass, replace
from itertools import islice

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from annotation.exchange.file_exports import Export
from annotation.models import Judgment, SpanFlag

_READ = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportCounts:
    """Counts of an export. Of a large one only the first judgments are read, and `rows` is an estimate."""

    judgments: int
    spans: int
    rows: int
    is_estimate: bool
    dropped: tuple[tuple[str, int], ...]
    """Reason → number, among the judgments read."""
    read: int
    why_empty: str = ""


def count_export(export: Export) -> ExportCounts:
    """Count what an export would contain. Reads at most 500 judgments; the export is not used up."""
    selected = export.selected()
    judgments = selected.count()
    tried = replace(export, at_most=_READ, dropped=type(export.dropped)(), on_drop=None)
    for _row in islice(tried.row_stream(), _READ * 100):
        pass
    is_estimate = judgments > tried.judgments
    rows = round(tried.rows * judgments / tried.judgments) if tried.judgments else 0
    return ExportCounts(
        judgments=judgments,
        spans=_spans_of(selected),
        rows=rows,
        is_estimate=is_estimate,
        dropped=tuple(sorted(tried.dropped.items())),
        read=tried.judgments,
        why_empty=_why_empty(export, judgments, rows),
    )


def _spans_of(selected: QuerySet[Judgment]) -> int:
    plain = selected.prefetch_related(None).order_by().values("pk")
    return SpanFlag.objects.filter(judgment__in=plain).count()


def _why_empty(export: Export, judgments: int, rows: int) -> str:
    """Return why nothing would be exported, and what to do; empty if there are rows."""
    if rows:
        return ""
    if judgments:
        return _("This format carries none of these annotations. Choose another format.")
    if export.without_filters().exists():
        return _("No annotation matches all filters. Remove one of them.")
    return _("The project has no annotations yet. Gold items, retests and earlier versions do not count.")
