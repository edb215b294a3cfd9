"""Bulk actions on chosen comparisons and prompts, each with a preview of its effect."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction
from django.db.models import Case, Exists, F, OuterRef, Q, QuerySet, When
from django.db.models.functions import Greatest
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from annotation.choices import AssignmentState, Purpose, ReviewReason, WithholdingState
from annotation.errors import Refusal
from annotation.models import (
    Assignment,
    Comparison,
    Judgment,
    Project,
    Prompt,
    Review,
    User,
    Withholding,
    bulk,
)
from annotation.models.bulk import json_value
from annotation.selectors import access
from annotation.services import audit
from annotation.services.texts import open_free_places

__all__ = [
    "Effect",
    "add_tag",
    "close",
    "open_comparisons",
    "quarantine",
    "raise_open_overlap",
    "raise_overlap",
    "release",
    "remove_tag",
    "requeue",
    "reserve",
    "send_to_review",
    "set_priority",
]


# The effect of a bulk action: previewed before it happens, reported after it.

MOST_ROWS = 10_000
"""Rows of one action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Numbers of rows that an action changes, and that it skips, by reason."""

    changed: int
    skipped: Mapping[str | Promise, int] = field(default_factory=dict)

    @property
    def chosen(self) -> int:
        """Return the number of rows that were chosen."""
        return self.changed + sum(self.skipped.values())


def check(*, project: Project, actor: User, rows: int) -> None:
    """Raise `NotAllowed` unless `actor` manages the project, `Refusal` for too many rows."""
    access.refuse_unless_manager(actor, project, "manager_changes_data")
    if rows > MOST_ROWS:
        raise Refusal(
            "too_many_selected_rows",
            _("An action changes at most %(most)s rows; these are more. Narrow the filters."),
            most=MOST_ROWS,
        )


MOST_OVERLAP = 20
MOST_PRIORITY = 1000
CLOSED: Mapping[str, Any] = {"overlap": Greatest(F("overlap") - F("open_slots"), 1), "open_slots": 0}
"""Values of a comparison that is asked of nobody else. Where nobody has answered the overlap stays 1."""

_WORK = Q(purpose=Purpose.WORK)
_FREE = Q(withholding__isnull=True) | Q(withholding__state=WithholdingState.RELEASED)
"""Not quarantined."""


@transaction.atomic
def requeue(*, project: Project, actor: User, chosen: Sequence[int], dry_run: bool = False) -> Effect:
    """Ask one more annotator for each chosen comparison whose annotations are all submitted.

    Annotations stay, and nobody annotates a comparison twice. Gold, qualification and quarantined comparisons
    are skipped, those that a review decided, those in the queue and those being labelled: twice asks
    once.
    """
    reviewed = Exists(Review.objects.filter(comparison=OuterRef("pk"), decided_at__isnull=False))
    keys, effect = _choose(
        project,
        actor,
        chosen,
        _WORK & _FREE,
        (Q(~reviewed), gettext_lazy("decided by a review")),
        (
            Q(~_leased(), open_slots=0, overlap__lt=MOST_OVERLAP),
            gettext_lazy("in the queue, being labelled, or at the highest overlap"),
        ),
    )
    if not dry_run:
        _update(keys, overlap=F("overlap") + 1, open_slots=F("open_slots") + 1)
        _note(project, actor, "data.requeue", effect)
    return effect


@transaction.atomic
def raise_overlap(
    *, project: Project, actor: User, chosen: Sequence[int], value: str, dry_run: bool = False
) -> Effect:
    """Raise the overlap of each chosen comparison to `value` annotators; never lower it."""
    overlap = _number(value, least=1, most=MOST_OVERLAP)
    lower = Q(overlap__lt=overlap), gettext_lazy("overlap is as high already")
    keys, effect = _choose(project, actor, chosen, _WORK & _FREE, lower)
    if not dry_run:
        _update(keys, open_slots=F("open_slots") + overlap - F("overlap"), overlap=overlap)
        _note(project, actor, "data.overlap", effect, overlap=overlap)
    return effect


def open_comparisons(project: Project) -> QuerySet[Comparison]:
    """Return the comparisons of work that wait for an annotator or are being labelled."""
    return Comparison.objects.filter(_WORK & _FREE, Q(open_slots__gt=0) | _leased(), project=project)


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
    other = ~Q(priority=priority), gettext_lazy("has this priority already")
    keys, effect = _choose(project, actor, chosen, _WORK, other)
    if not dry_run:
        _update(keys, priority=priority)
        _note(project, actor, "data.priority", effect, priority=priority)
    return effect


@transaction.atomic
def close(*, project: Project, actor: User, chosen: Sequence[int], dry_run: bool = False) -> Effect:
    """Ask nobody else about each chosen comparison. Annotations stay, and `requeue` asks again.

    Comparisons that somebody labels now are skipped: the place would open again when it is given back.
    """
    closable = Q(~_leased(), open_slots__gt=0), gettext_lazy("closed, or being labelled")
    keys, effect = _choose(project, actor, chosen, _WORK & _FREE, closable)
    if not dry_run:
        _update(keys, **CLOSED)
        _note(project, actor, "data.close", effect)
    return effect


@transaction.atomic
def send_to_review(*, project: Project, actor: User, chosen: Sequence[int], dry_run: bool = False) -> Effect:
    """Open a review of each chosen comparison that has an annotation and no review."""
    judged = Exists(Judgment.objects.filter(comparison=OuterRef("pk"), annotator__is_machine=False))
    unreviewed = Q(judged, review__isnull=True), gettext_lazy("not annotated yet, or reviewed already")
    keys, effect = _choose(project, actor, chosen, _WORK & _FREE, unreviewed)
    if not dry_run:
        Review.objects.bulk_create(Review(comparison_id=pk, reason=ReviewReason.REQUESTED) for pk in keys)
        _note(project, actor, "data.review", effect)
    return effect


@transaction.atomic
def release(*, project: Project, actor: User, chosen: Sequence[int], dry_run: bool = False) -> Effect:
    """Release each chosen comparison that is quarantined and not decided; it joins the queue."""
    pending = Q(withholding__state=WithholdingState.PENDING)
    why = gettext_lazy("not quarantined, or decided already")
    keys, effect = _choose(project, actor, chosen, Q(), (pending, why))
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
    keys, effect = _choose(
        project, actor, chosen, _WORK & _FREE, (Q(~_leased()), gettext_lazy("being labelled"))
    )
    if not dry_run:
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
    keys, effect = _choose(project, actor, chosen, _WORK)
    if not dry_run:
        through = Comparison.reserved_for.through
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


def _leased() -> Exists:
    """Ask whether somebody labels a comparison now."""
    return Exists(Assignment.objects.filter(comparison=OuterRef("pk"), state=AssignmentState.LEASED))


def _choose(
    project: Project,
    actor: User,
    chosen: Sequence[int],
    is_of_kind: Q,
    *conditions: tuple[Q, str | Promise],
) -> tuple[list[int], Effect]:
    """Hold the chosen comparisons until the transaction ends; return those to change, and the effect.

    is_of_kind: what the action is for at all.
    conditions: each with why a comparison is skipped that does not meet it; the first one missed counts.
    """
    check(project=project, actor=actor, rows=len(chosen))
    rows = Comparison.objects.filter(project=project, pk__in=list(chosen)).order_by("pk")
    # In the order of their keys: two managers who choose the same rows cannot block each other. Their
    # conditions are read after that, because PostgreSQL reads other tables as they were before the wait.
    list(rows.select_for_update(of=("self",)).values_list("pk", flat=True))
    reasons = [gettext_lazy("gold, qualification or quarantined"), *(why for _condition, why in conditions)]
    missed = Case(
        *(
            When(~condition, then=number)
            for number, condition in enumerate([is_of_kind, *(condition for condition, _why in conditions)])
            if condition
        ),
        default=len(reasons),
    )
    places = dict(rows.values_list("pk", missed))
    keys = [pk for pk, place in places.items() if place == len(reasons)]
    counts = Counter(places.values())
    skipped = {why: counts[place] for place, why in enumerate(reasons) if counts[place]}
    return keys, Effect(changed=len(keys), skipped=skipped)


def _update(keys: Sequence[int], **values: object) -> None:
    Comparison.objects.filter(pk__in=keys).update(**values)


def _number(value: str, *, least: int, most: int) -> int:
    text = value.strip()
    if text.removeprefix("-").isdecimal() and len(text) < 9 and least <= int(text) <= most:
        return int(text)
    raise Refusal(
        "number_out_of_range", _("Enter a whole number from %(least)s to %(most)s."), least=least, most=most
    )


# Tags of chosen prompts. With `dry_run` the effect is returned and nothing changes.

LONGEST_TAG = 40
TAG = r"\w[\w .:+-]{0,39}"
"""Form of a tag: letters, digits, spaces, dots, colons, plus signs and dashes, as for tags of runs."""
MOST_TAGS = 20


@transaction.atomic
def add_tag(
    *, project: Project, actor: User, chosen: Sequence[int], value: str, dry_run: bool = False
) -> Effect:
    """Add a tag to each chosen prompt. Refuses an empty tag, one of more than 40 characters, and a comma."""
    tag = _tag(value)
    prompts = _locked(project, actor, chosen)
    tagged = [prompt for prompt in prompts if tag in prompt.tags]
    full = [prompt for prompt in prompts if tag not in prompt.tags and len(prompt.tags) >= MOST_TAGS]
    changed = [prompt for prompt in prompts if tag not in prompt.tags and len(prompt.tags) < MOST_TAGS]
    if not dry_run:
        _store(changed, [[*prompt.tags, tag] for prompt in changed])
        _prompt_note(project, actor, "data.tag", tag, len(changed))
    skipped = {gettext_lazy("has the tag already"): len(tagged), gettext_lazy("has 20 tags"): len(full)}
    return Effect(changed=len(changed), skipped={why: number for why, number in skipped.items() if number})


@transaction.atomic
def remove_tag(
    *, project: Project, actor: User, chosen: Sequence[int], value: str, dry_run: bool = False
) -> Effect:
    """Remove a tag from each chosen prompt."""
    tag = _tag(value)
    prompts = _locked(project, actor, chosen)
    changed = [prompt for prompt in prompts if tag in prompt.tags]
    if not dry_run:
        _store(
            changed, [[prompt_tag for prompt_tag in prompt.tags if prompt_tag != tag] for prompt in changed]
        )
        _prompt_note(project, actor, "data.untag", tag, len(changed))
    others = len(prompts) - len(changed)
    return Effect(changed=len(changed), skipped={gettext_lazy("lacks the tag"): others} if others else {})


def _locked(project: Project, actor: User, chosen: Sequence[int]) -> list[Prompt]:
    check(project=project, actor=actor, rows=len(chosen))
    rows = Prompt.objects.filter(project=project, pk__in=list(chosen))
    return list(rows.select_for_update().only("tags").order_by("pk"))


def _store(prompts: Sequence[Prompt], tags: Sequence[list[str]]) -> None:
    values = ((prompt.pk, json_value(new)) for prompt, new in zip(prompts, tags, strict=True))
    bulk.update(Prompt, "tags", values)


def _prompt_note(project: Project, actor: User, action: str, tag: str, number: int) -> None:
    details = {"tag": tag, "prompts": number}
    audit.record(action=action, subject=project, actor=actor, project=project, details=details)


def _tag(value: str) -> str:
    tag = value.strip()
    if not re.fullmatch(TAG, tag):
        raise Refusal(
            "invalid_tag",
            _("Enter a tag of 1 to %(most)s letters, digits, spaces, dots, colons and dashes."),
            most=LONGEST_TAG,
        )
    return tag
