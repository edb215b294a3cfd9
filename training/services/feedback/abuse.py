"""Abuse of feedback: bursts, contradictions and dominance are found, shown and excluded until included."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta

from django.db import transaction
from django.db.models import Count, Max
from django.db.models.functions import TruncDate
from django.utils import timezone

from annotation.models import Project, User
from annotation.selectors import access
from annotation.services import audit
from training.choices import AbuseKind, FeedbackKind
from training.models import Feedback, FeedbackIncident, FeedbackSettings

BURST = 20
"""So much feedback of one user or address within `BURST_SECONDS` is a burst."""
BURST_SECONDS = 300
SURGE = 100
"""So much feedback of one token or key within an hour is a burst, …"""
SURGE_FACTOR = 10
"""… where it is this many times the hourly mean of the week before."""
FLIPS = 3
"""Feedback that was changed so often contradicts itself."""
DOMINANT_SHARE = 0.3
"""Share of a day's feedback from which on one user or address dominates it, …"""
SOURCE_SHARE = 0.8
"""… and one token or key that gave less than half of the week's before."""
ENOUGH = 50
"""Days with less feedback have nobody who dominates."""

_WEEK = timedelta(days=7)


@dataclass(frozen=True, kw_only=True, slots=True)
class FeedbackVote:
    """One piece of feedback, as detection reads it."""

    pk: int
    completion: tuple[int, int]
    is_thumb: bool
    is_good: bool | None
    """None of a kind that is neither good nor bad."""
    author: str
    address: str
    source: str
    changes: int
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class AbusePattern:
    """A pattern in one day's feedback."""

    kind: AbuseKind
    subject: str
    votes: frozenset[int]


def detect(votes: Sequence[FeedbackVote], before: Counter[str]) -> list[AbusePattern]:
    """Return the patterns in one day's feedback. before: feedback of the week before, by token or key."""
    findings: list[AbusePattern] = []
    for subject, theirs in _by_subject(votes).items():
        if subject.startswith("source:"):
            burst = _surge(theirs, before[subject.removeprefix("source:")])
        else:
            burst = _burst(theirs, BURST, BURST_SECONDS)
        findings += _finding(AbuseKind.BURST, subject, burst)
        findings += _finding(AbuseKind.CONTRADICTION, subject, _contradictions(subject, theirs))
        if _dominates(subject, theirs, len(votes), before):
            findings += _finding(AbuseKind.DOMINANCE, subject, {vote.pk for vote in theirs})
    return findings


def check_project(project: Project, *, now: datetime | None = None) -> int:
    """Search feedback since the last search for abuse, with all of its days; return how many incidents stand.

    One transaction; two at once take turns. An incident that is found again grows, and stays decided.
    """
    moment = now or timezone.now()
    with transaction.atomic():
        settings = FeedbackSettings.objects.select_for_update().filter(project=project).first()
        if settings is None:
            return 0
        since = settings.abuse_checked_at
        changed = Feedback.objects.filter(project=project)
        if since is not None:
            # A transaction may commit a moment after its row's time.
            changed = changed.filter(updated_at__gte=since - timedelta(minutes=5))
        days = set(changed.order_by().annotate(day=TruncDate("created_at")).values_list("day", flat=True))
        for day in sorted(days):
            _write(project, day, detect(_votes(project, day), _week_before(project, day)))
        FeedbackSettings.objects.filter(pk=settings.pk).update(abuse_checked_at=moment)
    return FeedbackIncident.objects.filter(project=project).count()


def sweep_abuse() -> None:
    """Search the projects whose feedback changed since it was searched last."""
    for settings in FeedbackSettings.objects.select_related("project"):
        newest = Feedback.objects.filter(project=settings.project_id).aggregate(at=Max("updated_at"))["at"]
        checked = settings.abuse_checked_at
        if newest is not None and (checked is None or newest > checked):
            check_project(settings.project)


@transaction.atomic
def decide_incident(*, incident: FeedbackIncident, included: bool, decided_by: User) -> None:
    """Include the feedback of an incident, or exclude it again."""
    access.refuse_unless_manager(decided_by, incident.project, "manager_decides_feedback")
    changed = FeedbackIncident.objects.filter(pk=incident.pk).exclude(is_included=included)
    if changed.update(is_included=included, decided_by=decided_by, decided_at=timezone.now()):
        audit.record(
            action="feedback.include" if included else "feedback.exclude",
            subject=incident,
            actor=decided_by,
            project=incident.project,
        )
    incident.refresh_from_db()


# ── patterns ──────────────────────────────────────────────────────────────────────────


def _by_subject(votes: Iterable[FeedbackVote]) -> dict[str, list[FeedbackVote]]:
    groups: dict[str, list[FeedbackVote]] = defaultdict(list)
    for vote in sorted(votes, key=lambda vote: (vote.at, vote.pk)):
        groups[f"user:{vote.author}"].append(vote)
        groups[f"source:{vote.source}"].append(vote)
        if vote.address:
            groups[f"address:{vote.address}"].append(vote)
    return groups


def _finding(kind: AbuseKind, subject: str, votes: set[int]) -> Iterator[AbusePattern]:
    if votes:
        yield AbusePattern(kind=kind, subject=subject, votes=frozenset(votes))


def _burst(votes: Sequence[FeedbackVote], most: int, seconds: float) -> set[int]:
    """Return the votes, in order of time, that lie in a window with at least `most` of them."""
    burst: set[int] = set()
    first = 0
    for last, vote in enumerate(votes):
        while (vote.at - votes[first].at).total_seconds() > seconds:
            first += 1
        if last - first + 1 >= most:
            burst |= {item.pk for item in votes[first : last + 1]}
    return burst


def _surge(votes: Sequence[FeedbackVote], before: int) -> set[int]:
    usual = before / (7 * 24)
    return _burst(votes, max(SURGE, int(SURGE_FACTOR * usual) + 1), 3600)


def _contradictions(subject: str, votes: Sequence[FeedbackVote]) -> set[int]:
    """Return votes that were changed again and again, and those of one user or address for and against."""
    if subject.startswith("source:"):
        return set()
    contradictions = {vote.pk for vote in votes if vote.changes >= FLIPS}
    sides: dict[tuple[int, int], dict[bool, set[int]]] = defaultdict(lambda: defaultdict(set))
    for vote in votes:
        if vote.is_good is not None and (vote.is_thumb or subject.startswith("user:")):
            sides[vote.completion][vote.is_good].add(vote.pk)
    for side in sides.values():
        if len(side) == 2:
            contradictions |= side[True] | side[False]
    return contradictions


def _dominates(subject: str, theirs: Sequence[FeedbackVote], total: int, before: Counter[str]) -> bool:
    if total < ENOUGH:
        return False
    share = len(theirs) / total
    if not subject.startswith("source:"):
        return share > DOMINANT_SHARE
    # Of one application alone all feedback comes from one source: only a change says something.
    week = before.total()
    return share > SOURCE_SHARE and week >= ENOUGH and before[subject.removeprefix("source:")] < week / 2


# ── reading and writing ───────────────────────────────────────────────────────────────


def _votes(project: Project, day: date) -> list[FeedbackVote]:
    begins = _midnight(day)
    rows = Feedback.objects.filter(
        project=project, created_at__gte=begins, created_at__lt=begins + timedelta(days=1)
    )
    return [
        FeedbackVote(
            pk=row.pk,
            completion=(row.request_id, row.choice),
            is_thumb=row.kind == FeedbackKind.THUMB,
            is_good=row.is_good,
            author=row.author,
            address=row.address,
            source=row.source_name,
            changes=row.changes,
            at=row.created_at,
        )
        for row in rows.defer("text").iterator()
    ]


def _week_before(project: Project, day: date) -> Counter[str]:
    begins = _midnight(day)
    rows = (
        Feedback.objects.filter(project=project, created_at__gte=begins - _WEEK, created_at__lt=begins)
        .order_by()
        .values("source_name")
        .annotate(rows=Count("pk"))
    )
    return Counter({row["source_name"]: row["rows"] for row in rows})


def _write(project: Project, day: date, findings: Iterable[AbusePattern]) -> None:
    for finding in findings:
        incident, _created = FeedbackIncident.objects.get_or_create(
            project=project,
            kind=finding.kind,
            subject=finding.subject,
            started_at=_midnight(day),
            defaults={"ended_at": _midnight(day)},
        )
        incident.feedback.add(*finding.votes)
        newest = incident.feedback.aggregate(at=Max("created_at"))["at"]
        FeedbackIncident.objects.filter(pk=incident.pk).update(ended_at=newest)


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), tzinfo=timezone.get_current_timezone())
