"""Bulk actions on chosen comparisons and prompts, each with a preview of its effect."""

import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Case, Count, Exists, F, OuterRef, Q, QuerySet, When
from django.db.models.functions import Greatest
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from annotation.choices import AssignmentState, Purpose, ReviewReason, Verdict, WithholdingState
from annotation.errors import InvalidAnswer, Refusal
from annotation.models import (
    Assignment,
    BulkChange,
    Candidate,
    Comparison,
    Completion,
    ConversationTurn,
    Judgment,
    Project,
    Prompt,
    Review,
    User,
    Withholding,
    bulk,
)
from annotation.models.bulk import json_value
from annotation.record.judgment import JudgmentRecord
from annotation.record.questions import as_text
from annotation.selectors import access, eligibility
from annotation.selectors.allocation import allotted_to
from annotation.services import audit, changes
from annotation.services.assignments.leases import lease, take_slot, take_turn
from annotation.services.judgments.checks import NO_WINNER, check_answer
from annotation.services.judgments.submission import submit_in_transaction
from annotation.services.texts import open_free_places

__all__ = [
    "Effect",
    "add_tag",
    "answer",
    "close",
    "delete_comparisons",
    "delete_prompts",
    "delete_responses",
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
    lost: Mapping[str | Promise, int] = field(default_factory=dict)
    """What hangs on the rows and goes with them, or stays for the record: in words, with its number."""

    @property
    def chosen(self) -> int:
        """Return the number of rows that were chosen."""
        return self.changed + sum(self.skipped.values())


def check(*, project: Project, actor: User, rows: int, most: int | None = None) -> None:
    """Raise `NotAllowed` unless `actor` manages the project, `Refusal` for too many rows."""
    access.refuse_unless_manager(actor, project, "manager_changes_data")
    bound = most or MOST_ROWS
    if rows > bound:
        raise Refusal(
            "too_many_selected_rows",
            _("An action changes at most %(most)s rows; these are more. Narrow the filters."),
            most=bound,
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
        _note(project, actor, "data.requeue", effect, before=[(pk, 1) for pk in keys])
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
        before = [(pk, overlap - old) for pk, old in _values(keys, "overlap")]
        _update(keys, open_slots=F("open_slots") + overlap - F("overlap"), overlap=overlap)
        _note(project, actor, "data.overlap", effect, before=before, value=value, overlap=overlap)
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
        before = _values(keys, "priority")
        _update(keys, priority=priority)
        _note(
            project,
            actor,
            "data.priority",
            effect,
            before=before,
            value=str(priority),
            priority=priority,
        )
    return effect


@transaction.atomic
def close(*, project: Project, actor: User, chosen: Sequence[int], dry_run: bool = False) -> Effect:
    """Ask nobody else about each chosen comparison. Annotations stay, and `requeue` asks again.

    Comparisons that somebody labels now are skipped: the place would open again when it is given back.
    """
    closable = Q(~_leased(), open_slots__gt=0), gettext_lazy("closed, or being labelled")
    keys, effect = _choose(project, actor, chosen, _WORK & _FREE, closable)
    if not dry_run:
        before = _values(keys, "overlap", "open_slots")
        _update(keys, **CLOSED)
        _note(project, actor, "data.close", effect, before=before)
    return effect


@transaction.atomic
def send_to_review(*, project: Project, actor: User, chosen: Sequence[int], dry_run: bool = False) -> Effect:
    """Open a review of each chosen comparison that has an annotation and no review."""
    judged = Exists(Judgment.objects.filter(comparison=OuterRef("pk"), annotator__is_machine=False))
    unreviewed = Q(judged, review__isnull=True), gettext_lazy("not annotated yet, or reviewed already")
    keys, effect = _choose(project, actor, chosen, _WORK & _FREE, unreviewed)
    if not dry_run:
        Review.objects.bulk_create(Review(comparison_id=pk, reason=ReviewReason.REQUESTED) for pk in keys)
        _note(project, actor, "data.review", effect, before=[(pk,) for pk in keys])
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
        _note(project, actor, "data.release", effect, before=[(pk,) for pk in keys])
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
        _note(project, actor, "data.quarantine", effect, before=[(pk, pk in known) for pk in keys])
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
        had: dict[int, list[int]] = {pk: [] for pk in keys}
        for pk, user in through.objects.filter(comparison__in=keys).values_list("comparison", "user"):
            had[pk].append(user)
        through.objects.filter(comparison__in=keys).delete()
        bulk.insert(
            through,
            ["comparison_id", "user_id"],
            ((pk, member) for pk in keys for member in members.values()),
        )
        if members:
            Project.objects.filter(pk=project.pk).update(has_reservations=True)
            project.has_reservations = True
        _note(
            project,
            actor,
            "data.reserve",
            effect,
            before=had.items(),
            value=value,
            members=sorted(members),
        )
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


# One judgment for many comparisons.

MOST_ANSWERED = 500
"""Comparisons of one bulk answer: each is stored like one of the labelling page."""
BULK_VERDICTS = (*NO_WINNER, Verdict.CANNOT_JUDGE)
"""Preferences that fit any two responses, whatever side each stands on."""


def answer(
    *, project: Project, actor: User, chosen: Sequence[int], answer: JudgmentRecord, dry_run: bool = False
) -> Effect:
    """Store one judgment of `actor` for each chosen comparison that is open to them.

    A preference without winner, answers to questions about the comparison, or both. Each comparison is
    checked and stored as from the labelling page, in a transaction of its own, and marked as given in bulk:
    its time was not measured, no guidelines were on screen. What `actor` holds themselves is answered; what
    others hold is skipped. Where the answer fits none of them, its refusal is raised.
    """
    check(project=project, actor=actor, rows=len(chosen), most=MOST_ANSWERED)
    if answer.verdict == Verdict.RANKED:
        raise InvalidAnswer(
            "bulk_answer_names_winner",
            _("An annotation of many comparisons names no winner: the order of responses differs."),
            field="verdict",
        )
    keys, skipped = _answerable(project, actor, chosen, answer)
    if dry_run:
        return Effect(changed=len(keys), skipped=dict(skipped))
    stored = 0
    change: BulkChange | None = None
    about: dict[str, Any] = {"action": "answer", "value": _in_short(answer)}
    for comparison in _with_prompts(project, keys):
        try:
            with transaction.atomic():
                row = _answer_one(comparison, actor, answer)
                if row is not None:
                    change = changes.record_more(change, project=project, actor=actor, row=row, **about)
        except (IntegrityError, Refusal) as error:
            # Of a clash: a request at the same moment was first.
            skipped[error.message if isinstance(error, Refusal) else _TAKEN] += 1
            continue
        stored += row is not None
        skipped[_TAKEN] += row is None
    details = {"comparisons": stored, "answer": _in_short(answer)}
    audit.record(action="data.answer", subject=project, actor=actor, project=project, details=details)
    return Effect(changed=stored, skipped=dict(+skipped))


_TAKEN = gettext_lazy("closed")


@transaction.atomic
def _choose_open(project: Project, actor: User, chosen: Sequence[int]) -> tuple[list[int], Effect]:
    """Return the chosen comparisons that `actor` may answer now, and why the others are skipped."""
    theirs = Assignment.objects.filter(comparison=OuterRef("pk"), annotator=actor)
    is_in_hand = Exists(theirs.filter(state=AssignmentState.LEASED, retest_of__isnull=True))
    is_open = Q(open_slots__gt=0) | Q(is_in_hand)
    allotted = allotted_to(project, actor)
    return _choose(
        project,
        actor,
        chosen,
        _WORK & _FREE,
        (Q(~Exists(theirs.filter(state=AssignmentState.SUBMITTED))), gettext_lazy("annotated by you")),
        (Q(~Exists(theirs.filter(state=AssignmentState.SKIPPED))), gettext_lazy("skipped by you")),
        (Q(~Exists(Review.objects.filter(comparison=OuterRef("pk")))), gettext_lazy("in review")),
        (
            Q(~Exists(ConversationTurn.objects.filter(comparison=OuterRef("pk"))), is_sealed=False),
            gettext_lazy("of a calibration session or a conversation"),
        ),
        (allotted and (allotted | Q(is_in_hand)), gettext_lazy("reserved for others")),
        (is_open | ~Q(_leased()), gettext_lazy("being labelled by somebody else")),
        (is_open, _TAKEN),
    )


def _answerable(
    project: Project, actor: User, chosen: Sequence[int], answer: JudgmentRecord
) -> tuple[list[int], Counter[str | Promise]]:
    """Return the comparisons that the answer is stored for, and why the others are skipped."""
    keys, effect = _choose_open(project, actor, chosen)
    skipped = Counter(effect.skipped)
    left = eligibility.left_to_submit(project, actor, access.membership_of(actor, project))
    if left is not None and len(keys) > left:
        skipped[gettext_lazy("beyond your limit of annotations")] = len(keys) - left
        keys = keys[:left]
    refused: dict[int, Refusal] = {}
    for comparison in _with_prompts(project, keys):
        try:
            check_answer(comparison=comparison, answer=answer)
        except Refusal as refusal:
            refused[comparison.pk] = refusal
    if refused and len(refused) == len(keys) and len({refusal.code for refusal in refused.values()}) == 1:
        raise next(iter(refused.values()))
    skipped.update(refusal.message for refusal in refused.values())
    return [pk for pk in keys if pk not in refused], skipped


def _with_prompts(project: Project, keys: Sequence[int]) -> Iterator[Comparison]:
    for comparison in Comparison.objects.filter(pk__in=keys).select_related("prompt").order_by("pk"):
        comparison.project = project
        yield comparison


def _answer_one(comparison: Comparison, actor: User, answer: JudgmentRecord) -> tuple[int, int, int] | None:
    """Store the judgment; return the ids of comparison, judgment and assignment, None where no place is left.

    Call it in a transaction.
    """
    take_turn(project_id=comparison.project_id, annotator_id=actor.pk)
    held = Assignment.objects.filter(
        comparison=comparison, annotator=actor, state=AssignmentState.LEASED, retest_of__isnull=True
    ).first()
    if held is None:
        slot = take_slot(comparison)
        if slot is None:
            return None
        held = lease(comparison, actor, slot=slot)
    held.comparison = comparison
    judgment, _turn = submit_in_transaction(
        assignment=held, annotator=actor, answer=answer, idempotency_key=uuid.uuid4(), in_bulk=True
    )
    return comparison.pk, judgment.pk, held.pk


def _in_short(answer: JudgmentRecord) -> str:
    """Return the preference and the answers by their keys."""
    answers = [f"{part.question} = {as_text(part.value)}" for part in answer.answers]
    verdict = [] if answer.verdict == Verdict.NOT_ASKED else [answer.verdict]
    return "; ".join([*verdict, *answers])


def _values(keys: Sequence[int], *names: str) -> list[tuple[Any, ...]]:
    """Return the id and the values of each comparison, for an undo."""
    return list(Comparison.objects.filter(pk__in=keys).order_by("pk").values_list("pk", *names))


def _note(
    project: Project,
    actor: User,
    action: str,
    effect: Effect,
    *,
    before: Iterable[Sequence[Any]] = (),
    value: str = "",
    **details: object,
) -> None:
    changes.record(
        project=project, actor=actor, action=action.removeprefix("data."), before=before, value=value
    )
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
        _prompt_note(project, actor, "data.tag", tag, changed)
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
        _prompt_note(project, actor, "data.untag", tag, changed)
    others = len(prompts) - len(changed)
    return Effect(changed=len(changed), skipped={gettext_lazy("lacks the tag"): others} if others else {})


def _locked(project: Project, actor: User, chosen: Sequence[int]) -> list[Prompt]:
    check(project=project, actor=actor, rows=len(chosen))
    rows = Prompt.objects.filter(project=project, pk__in=list(chosen))
    return list(rows.select_for_update().only("tags").order_by("pk"))


def _store(prompts: Sequence[Prompt], tags: Sequence[list[str]]) -> None:
    values = ((prompt.pk, json_value(new)) for prompt, new in zip(prompts, tags, strict=True))
    bulk.update(Prompt, "tags", values)


def _prompt_note(project: Project, actor: User, action: str, tag: str, prompts: Sequence[Prompt]) -> None:
    before = [(prompt.pk,) for prompt in prompts]
    changes.record(
        project=project, actor=actor, action=action.removeprefix("data."), before=before, value=tag
    )
    details = {"tag": tag, "prompts": len(prompts)}
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


# Deletion of comparisons and of prompts. They leave every list at once, can be brought back for a day, and
# then go for good, but for what snapshots and evaluations hold.


@transaction.atomic
def delete_comparisons(
    *, project: Project, actor: User, chosen: Sequence[int], dry_run: bool = False
) -> Effect:
    """Delete each chosen comparison of work with its annotations.

    Skipped are those that somebody labels now, and those in review.

    They leave every list, the queue, statistics and later snapshots at once; for a day they can be brought
    back. What a snapshot holds stays for the record.
    """
    keys, effect = _choose(
        project,
        actor,
        chosen,
        _WORK,
        (Q(~_leased()), gettext_lazy("being labelled")),
        (
            Q(~Exists(Review.objects.filter(comparison=OuterRef("pk"), decided_at__isnull=True))),
            gettext_lazy("in review"),
        ),
    )
    effect = replace(effect, lost=lost_with(keys))
    if not dry_run:
        before = _values(keys, "overlap", "open_slots")
        _update(keys, purpose=Purpose.DELETED, open_slots=0)
        _note(project, actor, "data.delete", effect, before=before, annotations=_annotations(keys))
    return effect


@transaction.atomic
def delete_prompts(*, project: Project, actor: User, chosen: Sequence[int], dry_run: bool = False) -> Effect:
    """Delete each chosen prompt with its responses, its comparisons and their annotations.

    Skipped are those with a comparison that somebody labels now, and those of gold and qualification items,
    arenas and conversations. As `delete_comparisons` does, it can be undone for a day.
    """
    check(project=project, actor=actor, rows=len(chosen))
    prompts = Prompt.objects.filter(project=project, pk__in=list(chosen)).order_by("pk")
    list(prompts.select_for_update(of=("self",)).values_list("pk", flat=True))
    of_prompt = Comparison.objects.filter(prompt=OuterRef("pk"))
    held = Assignment.objects.filter(comparison__prompt=OuterRef("pk"), state=AssignmentState.LEASED)
    in_review = Review.objects.filter(comparison__prompt=OuterRef("pk"), decided_at__isnull=True)
    marked = prompts.annotate(
        is_held=Exists(held),
        is_reviewed=Exists(in_review),
        is_other=Exists(of_prompt.exclude(purpose__in=(Purpose.WORK, Purpose.DELETED)))
        | Exists(ConversationTurn.objects.filter(prompt=OuterRef("pk"))),
    )
    keys, skipped = _free_of(marked.values_list("pk", "is_held", "is_reviewed", "is_other"))
    work = Comparison.objects.filter(project=project, prompt__in=keys, purpose=Purpose.WORK).order_by("pk")
    rows = list(work.select_for_update(of=("self",)).values_list("prompt", "pk", "overlap", "open_slots"))
    comparisons = [pk for _prompt, pk, _overlap, _places in rows]
    effect = Effect(changed=len(keys), skipped=skipped, lost=_lost_with_comparisons(comparisons))
    if not dry_run:
        by_prompt: dict[int, list[tuple[int, int, int]]] = {pk: [] for pk in keys}
        for prompt, *row in rows:
            by_prompt[prompt].append((row[0], row[1], row[2]))
        _update(comparisons, purpose=Purpose.DELETED, open_slots=0)
        Prompt.objects.filter(pk__in=keys).update(deleted_at=timezone.now())
        changes.record(project=project, actor=actor, action="delete_prompts", before=by_prompt.items())
        audit.record(
            action="data.delete_prompts",
            subject=project,
            actor=actor,
            project=project,
            details={
                "prompts": len(keys),
                "comparisons": len(rows),
                "annotations": _annotations(comparisons),
            },
        )
    return effect


@transaction.atomic
def delete_responses(
    *, project: Project, actor: User, chosen: Sequence[int], dry_run: bool = False
) -> Effect:
    """Delete each chosen response with the comparisons that hold it and their annotations.

    Skipped are those of a comparison that somebody labels or reviews now, and those of gold and qualification
    items and arenas. As `delete_comparisons` does, it can be undone for a day.
    """
    check(project=project, actor=actor, rows=len(chosen))
    responses = Completion.objects.filter(
        prompt__project=project, pk__in=list(chosen), deleted_at__isnull=True
    )
    candidates = Candidate.objects.filter(completion=OuterRef("pk"))
    marked = responses.order_by("pk").annotate(
        is_held=Exists(candidates.filter(comparison__assignments__state=AssignmentState.LEASED)),
        is_reviewed=Exists(
            candidates.filter(comparison__review__isnull=False, comparison__review__decided_at__isnull=True)
        ),
        is_other=Exists(candidates.exclude(comparison__purpose__in=(Purpose.WORK, Purpose.DELETED)))
        | Exists(ConversationTurn.objects.filter(comparison__candidates__completion=OuterRef("pk"))),
    )
    keys, skipped = _free_of(marked.values_list("pk", "is_held", "is_reviewed", "is_other"))
    held_by = Candidate.objects.filter(completion__in=keys, comparison__purpose=Purpose.WORK).order_by("pk")
    response_of = dict(held_by.values_list("comparison", "completion"))
    comparisons = sorted(response_of)
    locked = Comparison.objects.filter(pk__in=comparisons).order_by("pk").select_for_update(of=("self",))
    rows = list(locked.values_list("pk", "overlap", "open_slots"))
    effect = Effect(changed=len(keys), skipped=skipped, lost=_lost_with_comparisons(comparisons))
    if not dry_run:
        by_response: dict[int, list[Sequence[int]]] = {pk: [] for pk in keys}
        for row in rows:
            by_response[response_of[row[0]]].append(row)
        _update(comparisons, purpose=Purpose.DELETED, open_slots=0)
        Completion._base_manager.filter(pk__in=keys).update(deleted_at=timezone.now())
        changes.record(project=project, actor=actor, action="delete_responses", before=by_response.items())
        audit.record(
            action="data.delete_responses",
            subject=project,
            actor=actor,
            project=project,
            details={
                "responses": len(keys),
                "comparisons": len(rows),
                "annotations": _annotations(comparisons),
            },
        )
    return effect


def _free_of(marked: Iterable[tuple[int, bool, bool, bool]]) -> tuple[list[int], dict[str | Promise, int]]:
    """Return the rows that nobody labels or reviews and that no gold item holds, and the others by reason."""
    keys: list[int] = []
    counts: Counter[str | Promise] = Counter()
    for pk, is_held, is_reviewed, is_other in marked:
        if is_held:
            counts[gettext_lazy("being labelled")] += 1
        elif is_reviewed:
            counts[gettext_lazy("in review")] += 1
        elif is_other:
            counts[gettext_lazy("of gold items, arenas or conversations")] += 1
        else:
            keys.append(pk)
    return keys, dict(counts)


def _lost_with_comparisons(comparisons: Sequence[int]) -> dict[str | Promise, int]:
    themselves: dict[str | Promise, int] = {gettext_lazy("comparisons"): len(comparisons)}
    return {**themselves, **lost_with(comparisons)} if comparisons else {}


def lost_with(comparisons: Sequence[int]) -> dict[str | Promise, int]:
    """Return what hangs on comparisons, in words: annotations of people and of others, and snapshots."""
    judgments = Judgment.everything.filter(comparison__in=comparisons)
    counts = judgments.aggregate(
        people=Count("pk", filter=Q(annotator__is_machine=False, imported_from__isnull=True)),
        imported=Count("pk", filter=Q(annotator__is_machine=False, imported_from__isnull=False)),
        machines=Count("pk", filter=Q(annotator__is_machine=True)),
    )
    held = changes.used_elsewhere(Judgment, list(judgments.values_list("pk", flat=True)))
    lost: dict[str | Promise, int] = {
        gettext_lazy("annotations by people"): counts["people"],
        gettext_lazy("imported annotations"): counts["imported"],
        gettext_lazy("annotations by AI annotators"): counts["machines"],
        gettext_lazy("annotations in snapshots, which stay for the record"): len(held),
    }
    return {what: number for what, number in lost.items() if number}


def _annotations(comparisons: Sequence[int]) -> int:
    return Judgment.everything.filter(comparison__in=comparisons).count()
