"""Bulk actions on comparisons. With `dry_run` they return their effect and change nothing."""

from collections.abc import Sequence

from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Greatest
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from annotation.choices import AssignmentState, Purpose, ReviewReason, WithholdingState
from annotation.errors import Refusal
from annotation.models import Assignment, Comparison, Judgment, Project, Review, User, Withholding
from annotation.services import audit
from annotation.services.bulk.effect import Effect, check

MOST_OVERLAP = 20
MOST_PRIORITY = 1000

_QUARANTINED = Q(withholding__isnull=False) & ~Q(withholding__state=WithholdingState.RELEASED)


@transaction.atomic
def requeue(*, project: Project, actor: User, chosen: Sequence[int], dry_run: bool = False) -> Effect:
    """Ask one more annotator for each chosen comparison whose annotations are all submitted.

    Annotations stay. Gold, qualification and quarantined comparisons are skipped, those in the queue,
    and those being labelled: doing it twice asks once.
    """
    rows = _locked(project, actor, chosen)
    work = rows.filter(purpose=Purpose.WORK).exclude(_QUARANTINED)
    leased = Assignment.objects.filter(comparison=OuterRef("pk"), state=AssignmentState.LEASED)
    closed = work.filter(~Exists(leased), open_slots=0, overlap__lt=MOST_OVERLAP)
    effect = _effect(
        rows, work, closed, gettext_lazy("in the queue, being labelled, or at the highest overlap")
    )
    if not dry_run:
        _update(closed, overlap=F("overlap") + 1, open_slots=F("open_slots") + 1)
        _note(project, actor, "data.requeue", effect)
    return effect


@transaction.atomic
def raise_overlap(
    *, project: Project, actor: User, chosen: Sequence[int], value: str, dry_run: bool = False
) -> Effect:
    """Raise the overlap of each chosen comparison to `value` annotators; never lower it."""
    overlap = _number(value, least=1, most=MOST_OVERLAP)
    rows = _locked(project, actor, chosen)
    work = rows.filter(purpose=Purpose.WORK).exclude(_QUARANTINED)
    lower = work.filter(overlap__lt=overlap)
    effect = _effect(rows, work, lower, gettext_lazy("overlap is as high already"))
    if not dry_run:
        _update(lower, open_slots=F("open_slots") + overlap - F("overlap"), overlap=overlap)
        _note(project, actor, "data.overlap", effect, overlap=overlap)
    return effect


@transaction.atomic
def set_priority(
    *, project: Project, actor: User, chosen: Sequence[int], value: str, dry_run: bool = False
) -> Effect:
    """Set the priority of each chosen comparison; within a round higher ones are handed out first."""
    priority = _number(value, least=-MOST_PRIORITY, most=MOST_PRIORITY)
    rows = _locked(project, actor, chosen)
    work = rows.filter(purpose=Purpose.WORK)
    other = work.exclude(priority=priority)
    effect = _effect(rows, work, other, gettext_lazy("has this priority already"))
    if not dry_run:
        _update(other, priority=priority)
        _note(project, actor, "data.priority", effect, priority=priority)
    return effect


@transaction.atomic
def close(*, project: Project, actor: User, chosen: Sequence[int], dry_run: bool = False) -> Effect:
    """Ask nobody else about each chosen comparison. Annotations stay, and `requeue` asks again.

    Comparisons that somebody labels now are skipped: the place would open again when it is given back.
    """
    rows = _locked(project, actor, chosen)
    work = rows.filter(purpose=Purpose.WORK).exclude(_QUARANTINED)
    leased = Assignment.objects.filter(comparison=OuterRef("pk"), state=AssignmentState.LEASED)
    asked = work.filter(~Exists(leased), open_slots__gt=0)
    effect = _effect(rows, work, asked, gettext_lazy("asks nobody, or is being labelled"))
    if not dry_run:
        # Where nobody has answered the overlap stays: it is at least 1.
        _update(asked, overlap=Greatest(F("overlap") - F("open_slots"), 1), open_slots=0)
        _note(project, actor, "data.close", effect)
    return effect


@transaction.atomic
def send_to_review(*, project: Project, actor: User, chosen: Sequence[int], dry_run: bool = False) -> Effect:
    """Open a review of each chosen comparison that has an annotation and no review."""
    rows = _locked(project, actor, chosen)
    work = rows.filter(purpose=Purpose.WORK).exclude(_QUARANTINED)
    judged = Judgment.objects.filter(comparison=OuterRef("pk"), annotator__is_machine=False)
    unreviewed = work.filter(Exists(judged), review__isnull=True)
    effect = _effect(rows, work, unreviewed, gettext_lazy("not annotated yet, or reviewed already"))
    if not dry_run:
        Review.objects.bulk_create(
            Review(comparison_id=pk, reason=ReviewReason.REQUESTED)
            for pk in unreviewed.order_by("pk").values_list("pk", flat=True)
        )
        _note(project, actor, "data.review", effect)
    return effect


@transaction.atomic
def release(*, project: Project, actor: User, chosen: Sequence[int], dry_run: bool = False) -> Effect:
    """Release each chosen comparison that is quarantined and not decided; it joins the queue."""
    rows = _locked(project, actor, chosen)
    pending = rows.filter(withholding__state=WithholdingState.PENDING)
    keys = list(pending.order_by("pk").values_list("pk", flat=True))
    others = rows.count() - len(keys)
    why = gettext_lazy("not quarantined, or decided already")
    effect = Effect(changed=len(keys), skipped={why: others} if others else {})
    if not dry_run:
        Withholding.objects.filter(comparison__in=keys).update(
            state=WithholdingState.RELEASED, decided_by=actor, decided_at=timezone.now()
        )
        # Nobody has had them: all their places are free.
        Comparison.objects.filter(pk__in=keys).update(open_slots=F("overlap"))
        _note(project, actor, "data.release", effect)
    return effect


def _note(project: Project, actor: User, action: str, effect: Effect, **details: int) -> None:
    audit.record(
        action=action,
        subject=project,
        actor=actor,
        project=project,
        details={"comparisons": effect.changed, **details},
    )


def _locked(project: Project, actor: User, chosen: Sequence[int]) -> QuerySet[Comparison]:
    """Return the chosen comparisons of the project, held until the transaction ends.

    In the order of their keys: two managers who choose the same rows cannot block each other.
    """
    check(project=project, actor=actor, rows=len(chosen))
    rows = Comparison.objects.filter(project=project, pk__in=list(chosen))
    list(rows.select_for_update(of=("self",)).order_by("pk").values_list("pk", flat=True))
    return rows


def _effect(
    rows: QuerySet[Comparison], work: QuerySet[Comparison], changed: QuerySet[Comparison], why: Promise
) -> Effect:
    chosen, counted, done = rows.count(), work.count(), changed.count()
    skipped: dict[Promise, int] = {
        gettext_lazy("gold, qualification or quarantined"): chosen - counted,
        why: counted - done,
    }
    return Effect(changed=done, skipped={reason: number for reason, number in skipped.items() if number})


def _update(rows: QuerySet[Comparison], **values: object) -> None:
    # By key: an UPDATE cannot join the table of quarantined comparisons.
    Comparison.objects.filter(pk__in=list(rows.values_list("pk", flat=True))).update(**values)


def _number(value: str, *, least: int, most: int) -> int:
    text = value.strip()
    if text.removeprefix("-").isdecimal() and len(text) < 9 and least <= int(text) <= most:
        return int(text)
    raise Refusal(_("Enter a whole number from %(least)s to %(most)s.") % {"least": least, "most": most})
