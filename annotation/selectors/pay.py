"""Pay of a project's annotators in a period, by hour or by annotation. Reads only."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from django.db.models import Count, Q, Sum
from django.utils import timezone

from annotation.choices import PayBasis, Purpose, Role
from annotation.models import Judgment, Membership, Project, User

_CENT = Decimal("0.01")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pay:
    """The work of one annotator in a period, and what it is paid."""

    user: User
    membership: Membership | None
    """None for a person who has left the project."""
    annotations: int
    """Submitted in the period; a revision is none."""
    measured: int
    """Submissions with a measured time, revisions among them."""
    unmeasured: int
    seconds: int
    """Active time of all submissions in the period."""
    rate: Decimal | None
    """None where neither the person nor the project has one."""
    is_own_rate: bool
    amount: Decimal | None


def pay_of(project: Project, *, since: date, until: date, basis: PayBasis) -> list[Pay]:
    """Return the pay of everybody who annotated from `since` to `until`, and of all annotators. Two queries.

    Days are those of the server's time zone. What counts is what people did: work, gold, qualification and
    retests, what was deleted later too; not what files brought, bulk answers, votes in arenas and AI
    annotators.
    """
    zone = timezone.get_default_timezone()
    done = {
        row["annotator"]: row
        for row in Judgment.everything.filter(
            comparison__project=project,
            annotator__is_machine=False,
            imported_from__isnull=True,
            in_bulk=False,
            created_at__gte=datetime.combine(since, time.min, tzinfo=zone),
            created_at__lt=datetime.combine(until + timedelta(days=1), time.min, tzinfo=zone),
        )
        .exclude(comparison__purpose=Purpose.ARENA)
        .order_by()
        .values("annotator")
        .annotate(
            annotations=Count("pk", filter=Q(supersedes__isnull=True)),
            submissions=Count("pk"),
            measured=Count("active_seconds"),
            seconds=Sum("active_seconds"),
        )
    }
    memberships = {
        membership.user_id: membership
        for membership in project.memberships.filter(user__is_machine=False).select_related("user")
    }
    people = {pk: membership.user for pk, membership in memberships.items()}
    gone = set(done) - people.keys()
    if gone:
        people.update(User.objects.in_bulk(gone))
    rows = [
        _pay(project, basis, people[pk], memberships.get(pk), done.get(pk))
        for pk in people
        if pk in done or memberships[pk].role == Role.ANNOTATOR
    ]
    return sorted(rows, key=lambda row: (str(row.user).casefold(), row.user.pk))


def _pay(
    project: Project,
    basis: PayBasis,
    user: User,
    membership: Membership | None,
    done: Mapping[str, Any] | None,
) -> Pay:
    name = "hourly_wage" if basis == PayBasis.HOUR else "item_pay"
    own: Decimal | None = getattr(membership, name, None)
    rate: Decimal | None = getattr(project, name) if own is None else own
    counts = done or {}
    annotations, seconds = counts.get("annotations") or 0, counts.get("seconds") or 0
    measured = counts.get("measured") or 0
    amount = None
    if rate is not None:
        units = Decimal(seconds) / 3600 if basis == PayBasis.HOUR else Decimal(annotations)
        amount = (rate * units).quantize(_CENT, ROUND_HALF_UP)
    return Pay(
        user=user,
        membership=membership,
        annotations=annotations,
        measured=measured,
        unmeasured=(counts.get("submissions") or 0) - measured,
        seconds=seconds,
        rate=rate,
        is_own_rate=own is not None,
        amount=amount,
    )
