"""Deletion of stored requests with their feedback: after the retention, and of one end user at once."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.models import Assignment, Comparison, Project, Prompt, User
from annotation.selectors import access
from annotation.services import audit
from training.models import ApplicationRequest, Feedback, FeedbackComparison, FeedbackSettings
from training.services.feedback.pseudonyms import pseudonyms

_AT_ONCE = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Erased:
    """Counts of an erasure."""

    requests: int
    feedback: int
    comparisons: int
    """Not yet annotated ones, which left with their requests."""
    remaining: int
    """Annotated comparisons, which stay: annotations stand on their texts."""


def erase_expired(*, now: datetime | None = None) -> int:
    """Delete the stored requests that are older than their projects' retention. Return how many."""
    moment, number = now or timezone.now(), 0
    for settings in FeedbackSettings.objects.select_related("project"):
        before = moment - timedelta(days=settings.retention_days)
        rows = ApplicationRequest.objects.filter(project=settings.project_id, created_at__lt=before)
        while some := list(rows.order_by("pk").values_list("pk", flat=True)[:_AT_ONCE]):
            with transaction.atomic():
                _erase(ApplicationRequest.objects.filter(pk__in=some))
            number += len(some)
    return number


def erase_user(*, project: Project, user_id: str, erased_by: User) -> Erased:
    """Delete all requests and all feedback of an end user, in one transaction; return what was deleted.

    user_id: as the application sends it in `user`. Frozen snapshots keep what they hold.
    """
    access.refuse_unless_manager(erased_by, project, "manager_erases_requests")
    if not user_id.strip():
        raise Refusal("end_user_missing", _("Enter the id that the application sends."), field="user")
    names = pseudonyms(project.pk, user_id)
    with transaction.atomic():
        requests = ApplicationRequest.objects.filter(project=project, pseudonym__in=names)
        feedback = Feedback.objects.filter(project=project).filter(
            Q(author__in=names) | Q(request__in=requests) | Q(alternative__in=requests)
        )
        feedback_count = feedback.count()
        Feedback.objects.filter(project=project, author__in=names).delete()
        number, comparisons, remaining = _erase(requests)
        erased = Erased(
            requests=number, feedback=feedback_count, comparisons=comparisons, remaining=remaining
        )
        audit.record(
            action="feedback.erase",
            subject=project,
            actor=erased_by,
            project=project,
            # Not whose: that is what goes.
            details={
                "requests": number,
                "feedback": feedback_count,
                "comparisons": comparisons,
                "remaining": remaining,
            },
        )
    return erased


def _erase(requests: "QuerySet[ApplicationRequest]") -> tuple[int, int, int]:
    """Delete requests; return how many, and how many comparisons left with them and remain."""
    origins = FeedbackComparison.objects.filter(request__in=requests).select_related("comparison")
    left = remaining = 0
    for origin in origins:
        if Assignment.objects.filter(comparison=origin.comparison_id).exists():
            remaining += 1
            continue
        left += 1
        _remove(origin)
    number = requests.count()
    requests.delete()
    return number, left, remaining


def _remove(origin: FeedbackComparison) -> None:
    """Delete a comparison that nobody has seen, and the prompt that it added where nothing else asks it."""
    others = origin.comparison.feedback_origins.exclude(pk=origin.pk).exclude(request=None)
    if others.exists():
        return
    prompt_id = origin.comparison.prompt_id
    origin.comparison.delete()
    if not origin.added_prompt or Comparison.objects.filter(prompt=prompt_id).exists():
        return
    Prompt.objects.get(pk=prompt_id).delete()
