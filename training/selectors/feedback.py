"""Reads of stored requests and feedback: which of it counts, how far its authors are trusted, its figures."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from django.db.models import Count, Exists, OuterRef, Q, QuerySet
from django.db.models.functions import TruncDate

from annotation.models import Project
from training.choices import FeedbackKind
from training.models import ApplicationRequest, Feedback, FeedbackIncident

_DAYS = 90
_NEGATIVE = Q(scale="thumbs", value=0) | Q(scale="five", value__lt=3) | Q(scale="seven", value__lt=4)
_POSITIVE = Q(scale="thumbs", value=1) | Q(scale="five", value__gt=3) | Q(scale="seven", value__gt=4)


def with_exclusion(feedback: "QuerySet[Feedback]") -> "QuerySet[Any]":
    """Return feedback with `is_excluded`: an incident that no manager included has it."""
    through = FeedbackIncident.feedback.through.objects
    excluding = through.filter(feedback=OuterRef("pk"), feedbackincident__is_included=False)
    return feedback.annotate(is_excluded=Exists(excluding))


def usable_feedback(project: Project) -> "QuerySet[Feedback]":
    """Return the feedback of a project that no incident excludes."""
    return with_exclusion(Feedback.objects.filter(project=project)).filter(is_excluded=False)


def negative_feedback(project: Project) -> "QuerySet[Feedback]":
    """Return the usable feedback that calls a completion bad: thumbs down, low ratings."""
    return usable_feedback(project).filter(_NEGATIVE)


def trust_of_authors(project: Project) -> dict[str, float]:
    """Return the trust in each author, 0 to 1: (good + 1) / (all + 2) of their feedback.

    Good is what no incident excludes and what was changed at most once. Of someone new it is 1/2.
    """
    rows = with_exclusion(Feedback.objects.filter(project=project)).values("author")
    counted = rows.annotate(total=Count("pk"), good=Count("pk", filter=Q(is_excluded=False, changes__lte=1)))
    return {row["author"]: (row["good"] + 1) / (row["total"] + 2) for row in counted}


@dataclass(frozen=True, kw_only=True, slots=True)
class DayFigure:
    """Thumbs of one day on one checkpoint's completions, with the interval of the share of thumbs up."""

    day: date
    checkpoint: str
    up: int
    down: int
    low: float
    high: float

    @property
    def total(self) -> int:
        """Return the number of thumbs."""
        return self.up + self.down

    @property
    def share(self) -> float:
        """Return the share of thumbs up."""
        return self.up / self.total


def thumbs_by_day(project: Project) -> list[DayFigure]:
    """Return the usable thumbs by day and checkpoint, newest first, with Wilson's 95 % intervals."""
    # NumPy is loaded when somebody opens the page.
    from annotation.agreement.intervals import wilson_interval

    thumbs = usable_feedback(project).filter(kind=FeedbackKind.THUMB)
    rows = (
        thumbs.annotate(day=TruncDate("created_at"))
        .values("day", "request__checkpoint__name")
        .annotate(up=Count("pk", filter=Q(value=1)), down=Count("pk", filter=Q(value=0)))
        .order_by("-day", "request__checkpoint__name")
    )
    figures = []
    for row in rows[: _DAYS * 10]:
        low, high = wilson_interval(row["up"], row["up"] + row["down"])
        figures.append(
            DayFigure(
                day=row["day"],
                checkpoint=row["request__checkpoint__name"],
                up=row["up"],
                down=row["down"],
                low=low,
                high=high,
            )
        )
    return figures


def stored_requests(project: Project, filters: Mapping[str, Any]) -> "QuerySet[ApplicationRequest]":
    """Return the stored requests of a project, newest first, narrowed by what is in `filters`.

    kind, source (name of a token or key), checkpoint, rating ("positive", "negative"), since and until
    (moments), pseudonyms, excluded (feedback that counts for nothing), has_feedback.
    """
    rows = ApplicationRequest.objects.filter(project=project).select_related("checkpoint", "comparison")
    # The narrowed feedback: every condition on one piece of it.
    feedback = with_exclusion(Feedback.objects.filter(request=OuterRef("pk")))
    narrowed = feedback
    if kind := filters.get("kind"):
        narrowed = narrowed.filter(kind=kind)
    if rating := filters.get("rating"):
        narrowed = narrowed.filter(_NEGATIVE if rating == "negative" else _POSITIVE)
    if filters.get("excluded"):
        narrowed = narrowed.filter(is_excluded=True)
    if narrowed is not feedback or filters.get("has_feedback"):
        rows = rows.filter(Exists(narrowed))
    if source := filters.get("source"):
        rows = rows.filter(
            Q(token_name=source) | Exists(Feedback.objects.filter(request=OuterRef("pk"), source_name=source))
        )
    if checkpoint := filters.get("checkpoint"):
        rows = rows.filter(checkpoint__name=checkpoint)
    if since := filters.get("since"):
        rows = rows.filter(created_at__gte=since)
    if until := filters.get("until"):
        rows = rows.filter(created_at__lt=until)
    if names := filters.get("pseudonyms"):
        rows = rows.filter(
            Q(pseudonym__in=names) | Exists(Feedback.objects.filter(request=OuterRef("pk"), author__in=names))
        )
    return rows.order_by("-pk")


def with_counts(rows: "QuerySet[ApplicationRequest]") -> "QuerySet[ApplicationRequest]":
    """Return requests with `up`, `down` and `others`: how much feedback they have, excluded included."""
    thumb = Q(feedback__kind=FeedbackKind.THUMB)
    return rows.annotate(
        up=Count("feedback", filter=thumb & Q(feedback__value=1)),
        down=Count("feedback", filter=thumb & Q(feedback__value=0)),
        others=Count("feedback", filter=~thumb & Q(feedback__isnull=False)),
    )


def incidents_of(project: Project) -> "QuerySet[FeedbackIncident]":
    """Return the incidents of a project, newest first, with `rows`, the number of their feedback."""
    rows = FeedbackIncident.objects.filter(project=project).annotate(rows=Count("feedback"))
    return rows.order_by("-started_at", "-pk")
