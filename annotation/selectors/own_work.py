"""Work of one person for their own pages: today's count, pace, guidelines that they have not read.

Nobody is measured against anyone else. Reads only.
"""

import statistics
from dataclasses import dataclass, replace

from django.core.cache import cache
from django.utils.translation import gettext as _

from annotation.models import Guideline, Judgment, Membership, Project, RoundTally, User
from annotation.selectors import access
from annotation.selectors.eligibility import submitted_today, today_starts
from annotation.selectors.progress import Progress, progress_of

_RECENT = 50
_FEW = 10
_KEPT_SECONDS = 60
_TOTAL_KEPT_SECONDS = 7 * 24 * 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """Pace of one person in one project."""

    today: int
    """Comparisons that they submitted since midnight, by the server's clock; a change of mind adds none."""
    median_seconds: int | None
    """Median active time over their last 50 answers; None before there are any."""

    @property
    def clock(self) -> str:
        """The median in seconds, or in minutes and seconds from a minute on."""
        minutes, seconds = divmod(self.median_seconds or 0, 60)
        if not minutes:
            return _("%(seconds)s s") % {"seconds": seconds}
        return _("%(minutes)s min") % {"minutes": f"{minutes}:{seconds:02}"}

    @property
    def text(self) -> str:
        """Today's count, and the median if there is one."""
        today = _("%(today)s today") % {"today": self.today}
        return f"{today} · {_('median %(clock)s') % {'clock': self.clock}}" if self.median_seconds else today


def progress_and_pace(
    project: Project, annotator: User, round_number: int, counted: RoundTally | None = None
) -> tuple[Progress, Pace]:
    """Return the progress of `annotator` in a round, and their pace.

    The median active time may be a minute old. The total never falls while there is work left: others who
    take comparisons, or a skip, do not move the goal of the person who looks at it.
    `counted`: their tally, of somebody who was just handed work; then the total may be a minute old as well,
    and today's count goes on from what was counted in the last minute.
    """
    key = f"{project.pk}:{annotator.pk}:{round_number}"
    if counted is not None and counted.round_number == round_number:
        total = cache.get(f"annotation.shown:{key}", 0)
        if counted.round_done < total:
            progress = Progress(done=counted.round_done, total=total, unseen=counted.round_unseen)
            return progress, pace_of(project, annotator, counted)
    exact = progress_of(project, annotator, round_number, counted)
    progress = _never_falling(exact, f"annotation.most:{key}")
    cache.set(f"annotation.shown:{key}", progress.total, _KEPT_SECONDS)
    return progress, pace_of(project, annotator, counted)


def pace_of(project: Project, annotator: User, counted: RoundTally | None = None) -> Pace:
    """Return today's count and the median active time of `annotator`, which may be a minute old."""
    return Pace(today=_today(project, annotator, counted), median_seconds=_median_seconds(project, annotator))


def _today(project: Project, annotator: User, counted: RoundTally | None) -> int:
    """Return today's count: with a tally, what was counted in the last minute and the tally has grown by."""
    if counted is None:
        return submitted_today(project, annotator)
    in_round = counted.round_done + counted.round_unseen
    key = f"annotation.today:{project.pk}:{annotator.pk}:{counted.round_number}:{today_starts():%Y%m%d}"
    before: int | None = cache.get(key)
    if before is None:
        today = submitted_today(project, annotator)
        cache.set(key, today - in_round, _KEPT_SECONDS)
        return today
    return before + in_round


def _never_falling(progress: Progress, key: str) -> Progress:
    if progress.done >= progress.total:
        # Nothing is left: what was done is all there is.
        return progress
    shown: int = cache.get(key, 0)
    if progress.total > shown:
        cache.set(key, progress.total, _TOTAL_KEPT_SECONDS)
    return replace(progress, total=max(progress.total, shown))


def _median_seconds(project: Project, annotator: User) -> int | None:
    key = f"annotation.median:{project.pk}:{annotator.pk}"
    measured = cache.get(key)
    if measured is None:
        recent = (
            Judgment.objects.current()
            .filter(annotator=annotator, comparison__project=project)
            .order_by("-pk")
        )
        measured = list(recent.values_list("active_seconds", flat=True)[:_RECENT])
        # The first ones change the median most: the fewer there are, the sooner they are looked up again.
        if len(measured) >= _FEW:
            cache.set(key, measured, _KEPT_SECONDS * len(measured) / _RECENT)
    seconds = [duration for duration in measured if duration is not None]
    return round(statistics.median(seconds)) if seconds else None


def announced_guideline(project: Project, membership: Membership | None) -> Guideline | None:
    """Return the guidelines if this person has read or worked with an older version; else None.

    Nothing has changed for a person who has never had any on screen. Asks the database only for a person who
    has never acknowledged a version.
    """
    newest = access.current_guideline(project)
    if newest is None or membership is None:
        return None
    seen = membership.guideline_seen
    if not seen:
        seen = worked_by(project, membership.user_id)
    return newest if seen is not None and seen < newest.version else None


def worked_by(project: Project, annotator_id: int) -> int | None:
    """Return the version of the guidelines on screen at this person's last annotation, or None.

    Votes of side-by-side comparisons and imported annotations have no guidelines beside them.
    """
    versions = (
        Judgment.objects.filter(
            annotator_id=annotator_id,
            comparison__project=project,
            guideline__isnull=False,
            imported_from__isnull=True,
        )
        .order_by("-pk")
        .values_list("guideline__version", flat=True)
    )
    return versions.first()
