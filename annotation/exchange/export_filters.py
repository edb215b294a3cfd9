"""Filters of an export: which of the current judgments leave. Shared by page, command and API."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import Split
from annotation.errors import Refusal
from annotation.models import Judgment, MissingInfo, Project, SpanFlag, User
from annotation.selectors import access
from annotation.selectors.allocation import tagged

MOST_COMPARISONS = 500
"""Comparisons that one export may name: they stand in its address."""

COMPARISONS = rf"^\d{{1,15}}(,\d{{1,15}}){{0,{MOST_COMPARISONS - 1}}}$"
"""Form of their ids: numbers with commas between."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportFilters:
    """The judgments of an export. What is empty restricts nothing."""

    rounds: Sequence[int] | None = None
    machines: bool = False
    """With the judgments of programs."""
    split: str = ""
    """`train` or `held-out`; empty for both."""
    annotator: str = ""
    """A pseudonym, as exports write it."""
    since: date | None = None
    until: date | None = None
    """The first and the last day on which a judgment was submitted, in the server's time zone."""
    tag: str = ""
    """A tag of the prompt."""
    category: str = ""
    """The key of a category that a span or missing information of the judgment has."""

    comparisons: Sequence[int] = ()
    """Ids of comparisons, `MOST_COMPARISONS` at most; empty for all."""

    def judgments(self, project: Project, *, unblinded: bool) -> QuerySet[Judgment]:
        """Return the current judgments that pass."""
        judgments = access.judgments_current(
            project, self.rounds, machines=self.machines, unblinded=unblinded
        )
        if self.split:
            judgments = judgments.filter(comparison__prompt__split=Split(self.split))
        if self.annotator:
            judgments = judgments.filter(annotator__pseudonym=self.annotator)
        if self.since:
            judgments = judgments.filter(created_at__gte=_midnight(self.since))
        if self.until:
            judgments = judgments.filter(created_at__lt=_midnight(self.until + timedelta(days=1)))
        if self.tag:
            judgments = judgments.filter(with_tag(self.tag))
        if self.category:
            judgments = judgments.filter(_with_category(self.category))
        if self.comparisons:
            judgments = judgments.filter(comparison__in=list(self.comparisons))
        return judgments

    def manifest(self) -> dict[str, Any]:
        """Return the filters as the manifest names them; those of later versions only where they restrict."""
        narrower = {
            "annotator": self.annotator,
            "since": self.since and self.since.isoformat(),
            "until": self.until and self.until.isoformat(),
            "tag": self.tag,
            "category": self.category,
            "comparisons": list(self.comparisons),
        }
        return {
            "rounds": list(self.rounds) if self.rounds is not None else "all",
            "split": self.split or "all",
            "programs that judge": self.machines,
            **{name: value for name, value in narrower.items() if value},
        }


def with_tag(tag: str) -> Q:
    """Judgments whose prompt has a tag. The only place of the export that knows where tags are stored."""
    return tagged("comparison__prompt__tags", tag)


def require_known(*, project: Project, filters: ExportFilters) -> None:
    """Refuse an annotator or category that the project does not have, and days in the wrong order."""
    if filters.since and filters.until and filters.since > filters.until:
        raise Refusal(
            "dates_reversed", _("The first day is after the last day. Exchange them."), field="until"
        )
    if filters.until and filters.until.year > 9000:
        raise Refusal("date_too_late", _("The last day is too far in the future."), field="until")
    if filters.category:
        keys = list(project.categories.order_by("position", "pk").values_list("key", flat=True))
        if filters.category not in keys:
            message = (
                _("The project has no category %(key)s. It has: %(keys)s.")
                if keys
                else _("The project has no category %(key)s, and no other.")
            )
            raise Refusal(
                "unknown_category", message, field="category", key=filters.category, keys=", ".join(keys)
            )
    if filters.annotator and not _has_judged(project, filters.annotator):
        raise Refusal(
            "unknown_annotator",
            _("No annotator of this project has the pseudonym %(name)s."),
            field="annotator",
            name=filters.annotator,
        )


def _has_judged(project: Project, pseudonym: str) -> bool:
    annotator = User.objects.filter(pseudonym=pseudonym).first()
    return annotator is not None and (
        project.memberships.filter(user=annotator).exists()
        or Judgment.objects.filter(annotator=annotator, comparison__project=project).exists()
    )


def _with_category(key: str) -> Q:
    return Q(Exists(SpanFlag.objects.filter(judgment=OuterRef("pk"), category__key=key))) | Q(
        Exists(MissingInfo.objects.filter(judgment=OuterRef("pk"), category__key=key))
    )


def _midnight(day: date) -> datetime:
    return timezone.make_aware(datetime.combine(day, time.min))
