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
from annotation.models import Assignment, Comparison, Judgment, Project, Review, User, Withholding, bulk
from annotation.services import audit
from annotation.services.bulk.effect import Effect, check
from annotation.services.texts.quarantine import open_free_places

MOST_OVERLAP = 20
MOST_PRIORITY = 1000

_QUARANTINED = Q(withholding__isnull=False) & ~Q(withholding__state=WithholdingState.RELEASED)


@transaction.atomic
def requeue(*, project: Project, actor: User, chosen: Sequence[int], dry_run: bool = False) -> Effect:
    """Ask one more annotator for each chosen comparison whose annotations are all submitted.

    Annotations stay, and nobody annotates a comparison twice. Gold, qualification and quarantined comparisons
    are skipped, those that a review decided, those in the queue and those being labelled: twice asks
    once.
    """
    rows = _locked(project, actor, chosen)
    work = rows.filter(purpose=Purpose.WORK).exclude(_QUARANTINED)
    reviewed = Exists(Review.objects.filter(comparison=OuterRef("pk"), decided_at__isnull=False))
    leased = Assignment.objects.filter(comparison=OuterRef("pk"), state=AssignmentState.LEASED)
    closed = work.filter(~reviewed, ~Exists(leased), open_slots=0, overlap__lt=MOST_OVERLAP)
    why = gettext_lazy("in the queue, being labelled, or at the highest overlap")
    effect = _effect(rows, work, closed, why)
    if decided := work.filter(reviewed).count():
        skipped = {**effect.skipped, why: effect.skipped[why] - decided}
        skipped[gettext_lazy("decided by a review")] = decided
        effect = Effect(
            changed=effect.changed, skipped={why: count for why, count in skipped.items() if count}
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


def open_comparisons(project: Project) -> QuerySet[Comparison]:
    """Return the comparisons of work that wait for an annotator or are being labelled."""
    leased = Assignment.objects.filter(comparison=OuterRef("pk"), state=AssignmentState.LEASED)
    work = Comparison.objects.filter(project=project, purpose=Purpose.WORK).exclude(_QUARANTINED)
    return work.filter(Q(open_slots__gt=0) | Exists(leased))


@transaction.atomic
def raise_open_overlap(*, project: Project, actor: User) -> int:
    """Raise the overlap of the open comparisons to that of the project; return how many there were."""
    lower = open_comparisons(project).filter(overlap__lt=project.overlap)
    keys = list(lower.order_by("pk").values_list("pk", flat=True))
    Comparison.objects.filter(pk__in=keys, overlap__lt=project.overlap).update(
        open_slots=F("open_slots") + project.overlap - F("overlap"), overlap=project.overlap
    )
    if keys:
        _note(project, actor, "data.overlap", Effect(changed=len(keys)), overlap=project.overlap)
    return len(keys)


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
    closable = work.filter(~Exists(leased), open_slots__gt=0)
    effect = _effect(rows, work, closable, gettext_lazy("closed, or being labelled"))
    if not dry_run:
        # Where nobody has answered the overlap stays: it is at least 1.
        _update(closable, overlap=Greatest(F("overlap") - F("open_slots"), 1), open_slots=0)
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
        open_free_places(keys)
        _note(project, actor, "data.release", effect)
    return effect


@transaction.atomic
def quarantine(*, project: Project, actor: User, chosen: Sequence[int], dry_run: bool = False) -> Effect:
    """Keep each chosen comparison from annotators until a manager releases or discards it.

    Annotations stay. Comparisons that somebody labels now are skipped, and those that are quarantined.
    """
    rows = _locked(project, actor, chosen)
    work = rows.filter(purpose=Purpose.WORK).exclude(_QUARANTINED)
    leased = Assignment.objects.filter(comparison=OuterRef("pk"), state=AssignmentState.LEASED)
    free = work.filter(~Exists(leased))
    effect = _effect(rows, work, free, gettext_lazy("being labelled"))
    if not dry_run:
        keys = list(free.order_by("pk").values_list("pk", flat=True))
        released = Withholding.objects.filter(comparison__in=keys)
        known = set(released.values_list("comparison", flat=True))
        released.update(state=WithholdingState.PENDING, requested_by=actor, decided_by=None, decided_at=None)
        now = bulk.time_value(timezone.now())
        bulk.insert(
            Withholding,
            ["comparison_id", "requested_by_id", "state", "quote", "created_at"],
            ((pk, actor.pk, WithholdingState.PENDING.value, "", now) for pk in keys if pk not in known),
        )
        Comparison.objects.filter(pk__in=keys).update(open_slots=0)
        _note(project, actor, "data.quarantine", effect)
    return effect


@transaction.atomic
def reserve(
    *, project: Project, actor: User, chosen: Sequence[int], value: str, dry_run: bool = False
) -> Effect:
    """Reserve each chosen comparison for members, by names with commas between; for nobody by none.

    Only they get it from the queue. What somebody labels now, or has annotated, stays theirs.
    """
    members = _members(project, value)
    rows = _locked(project, actor, chosen)
    work = rows.filter(purpose=Purpose.WORK)
    effect = _effect(rows, work, work, "")
    if not dry_run:
        through = Comparison.reserved_for.through
        keys = list(work.values_list("pk", flat=True))
        through.objects.filter(comparison__in=keys).delete()
        bulk.insert(
            through,
            ["comparison_id", "user_id"],
            ((pk, member) for pk in keys for member in members.values()),
        )
        if members:
            Project.objects.filter(pk=project.pk).update(has_reservations=True)
            project.has_reservations = True
        _note(project, actor, "data.reserve", effect, members=sorted(members))
    return effect


def _members(project: Project, value: str) -> dict[str, int]:
    """Return the ids of the named members by name; refuse names that the project does not have."""
    names = list(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    members = dict(
        project.memberships.filter(user__username__in=names).values_list("user__username", "user_id")
    )
    if unknown := [name for name in names if name not in members]:
        raise Refusal(
            "unknown_members",
            _("No member of this project has the name %(names)s. Names stand with commas between."),
            names=", ".join(unknown),
        )
    return members


def _note(project: Project, actor: User, action: str, effect: Effect, **details: object) -> None:
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
    rows: QuerySet[Comparison], work: QuerySet[Comparison], changed: QuerySet[Comparison], why: str | Promise
) -> Effect:
    chosen, counted, done = rows.count(), work.count(), changed.count()
    skipped: dict[str | Promise, int] = {
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
    raise Refusal(
        "number_out_of_range", _("Enter a whole number from %(least)s to %(most)s."), least=least, most=most
    )
