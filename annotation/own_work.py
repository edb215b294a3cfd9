"""What a person's own pages say of their work: today's count, their pace, rules that they have not read.

Nobody is measured against anyone else. Reads only.
"""

import statistics
from dataclasses import dataclass

from django.core.cache import cache
from django.db.models.functions import Coalesce

from annotation import selectors
from annotation.models import Guideline, Judgment, Membership, Project, User
from annotation.standing import submitted_today

_RECENT = 50
_KEPT_SECONDS = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How one person gets on in one project."""

    today: int
    """Comparisons that they submitted since midnight, by the server's clock; a change of mind adds none."""
    median_seconds: int | None
    """Median active time over their last 50 answers; None before there are any."""

    @property
    def clock(self) -> str:
        """The median as minutes and seconds."""
        minutes, seconds = divmod(self.median_seconds or 0, 60)
        return f"{minutes}:{seconds:02}"


def pace_of(project: Project, annotator: User) -> Pace:
    """Today's count, exact, and the median active time of `annotator`, which may be a minute old."""
    today = submitted_today(project, annotator)
    key = f"annotation.median:{project.pk}:{annotator.pk}"
    measured = cache.get(key)
    if measured is None:
        recent = Judgment.objects.filter(
            annotator=annotator, comparison__project=project, superseded_by__isnull=True
        ).order_by("-pk")
        measured = list(recent.values_list("active_seconds", flat=True)[:_RECENT])
        # The first ones change the median most: it is kept once there are as many as it is taken of.
        if len(measured) == _RECENT:
            cache.set(key, measured, _KEPT_SECONDS)
    seconds = [one for one in measured if one is not None]
    return Pace(today=today, median_seconds=round(statistics.median(seconds)) if seconds else None)


def announced_guideline(project: Project, membership: Membership | None) -> Guideline | None:
    """The rules, if they have changed since this person read them or worked by them; else None.

    Whoever begins reads the rules as they are: nothing has changed for them. Asks the database only
    of a person who has never acknowledged any.
    """
    newest = selectors.current_guideline(project)
    if newest is None or membership is None:
        return None
    seen = membership.guideline_seen
    if seen is None:
        seen = worked_by(project, membership.user_id)
    return newest if seen is not None and seen < newest.version else None


def worked_by(project: Project, annotator_id: int) -> int | None:
    """The version of the rules beside this person's last answer: 0 without rules, None without answers."""
    versions = (
        Judgment.objects.filter(annotator_id=annotator_id, comparison__project=project)
        .order_by("-pk")
        .values_list(Coalesce("guideline__version", 0), flat=True)
    )
    return versions.first()
