"""Work that waits for somebody in a project: the numbers beside the pages of the sidebar, in one query."""

from collections.abc import Callable, Collection, Mapping

from django.db.models import Case, IntegerField, Subquery, Value, When

from annotation.choices import WithholdingState
from annotation.models import Project, User, Withholding
from annotation.selectors.reviews import open_reviews_for
from training.choices import CAN_DECIDE, RoundState
from training.models import Round

MOST = 99
"""The highest number that is shown; more are shown as "99+"."""


class _Counted(Subquery):
    """Count the rows of a query within another, `MOST` + 1 at most."""

    template = "(SELECT COUNT(*) FROM (%(subquery)s) counted)"
    output_field = IntegerField()


def _reviews(project: Project, user: User) -> Subquery:
    return _Counted(open_reviews_for(project, user).order_by().values("pk")[: MOST + 1])


def _quarantined(project: Project, _user: User) -> Subquery:
    pending = Withholding.objects.filter(comparison__project=project, state=WithholdingState.PENDING)
    return _Counted(pending.order_by().values("pk")[: MOST + 1])


def _rounds(project: Project, _user: User) -> Subquery:
    """Only the newest round can wait: the ones before it were followed by another."""
    waits = Case(When(state__in=(*CAN_DECIDE, RoundState.FAILED), then=Value(1)), default=Value(0))
    newest = Round.objects.filter(project=project).order_by("-number")
    return Subquery(newest.values(waits=waits)[:1], output_field=IntegerField())


COUNTS: Mapping[str, Callable[[Project, User], Subquery]] = {
    "reviews": _reviews,
    "withheld": _quarantined,
    "rounds": _rounds,
}
"""URL name of a page → how much waits there."""


def waiting_on(url_names: Collection[str], project: Project, user: User) -> Mapping[str, int]:
    """Return how much waits for `user` on each of these pages of the sidebar where something can.

    URL name → number, at most `MOST` + 1; one query, none where nothing can wait.
    """
    names = [name for name in url_names if name in COUNTS]
    if not names:
        return {}
    row = Project.objects.values_list(*(COUNTS[name](project, user) for name in names)).get(pk=project.pk)
    return dict(zip(names, (count or 0 for count in row), strict=True))
