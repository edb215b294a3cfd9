"""Undo of bulk changes: what was before each is stored for a day, and what it deleted goes for good after it.

An undo restores what nothing has changed meanwhile. A place that somebody took, and a value that somebody set
again, stay as they are; their rows are counted.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from django.db import models, transaction
from django.db.models import Exists, F, ForeignObjectRel, OuterRef, ProtectedError, Q
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import AssignmentState, Purpose, ReviewReason, SourceKind, WithholdingState
from annotation.errors import Refusal
from annotation.models import (
    Assignment,
    BulkChange,
    Comparison,
    Completion,
    ItemFlag,
    Judgment,
    Project,
    Prompt,
    Review,
    User,
    Withholding,
    bulk,
)
from annotation.models.changes import UNDONE_WITHIN
from annotation.selectors import access
from annotation.services import audit
from annotation.services.assignments.leases import take_turn, uncount_submissions
from annotation.services.quality import record_agreement
from annotation.services.texts import open_free_places

Row = list[Any]
"""Id of a row, and what an undo needs of it."""


def record(
    *, project: Project, actor: User | None, action: str, before: Iterable[Sequence[Any]], value: str = ""
) -> BulkChange | None:
    """Store what was before a bulk change, in its transaction; nothing where no row changed."""
    rows = [list(row) for row in before]
    if not rows:
        return None
    return BulkChange.objects.create(
        project=project, actor=actor, action=action, value=value[:250], changed=len(rows), before=rows
    )


def record_more(
    change: BulkChange | None,
    *,
    project: Project,
    actor: User,
    action: str,
    row: Sequence[Any],
    value: str = "",
) -> BulkChange | None:
    """Store one more row of a change whose rows have a transaction each; None for `change` begins it."""
    if change is not None:
        rows = [*change.before, list(row)]
        # One that was undone meanwhile gets no more rows.
        standing = BulkChange.objects.filter(pk=change.pk, undone_at__isnull=True)
        if standing.update(before=rows, changed=len(rows)):
            change.before = rows
            return change
    return record(project=project, actor=actor, action=action, before=[row], value=value)


@transaction.atomic
def undo_change(*, change: BulkChange, undone_by: User) -> int:
    """Undo a bulk change; return the number of rows that are as before. Refuses one older than a day."""
    access.refuse_unless_manager(undone_by, change.project, "manager_changes_data")
    change = BulkChange.objects.select_for_update(of=("self",)).select_related("project").get(pk=change.pk)
    if not change.can_be_undone:
        raise Refusal(
            "change_not_undoable",
            _("A change can be undone once, within a day."),
            field="change",
        )
    ids = [row[0] for row in change.before]
    if change.action == "answer" and change.actor_id is not None:
        # Before the comparisons, as a submit does.
        take_turn(project_id=change.project_id, annotator_id=change.actor_id)
    if change.action not in ("tag", "untag", *_PURGES):
        # In the order of their keys, as the actions hold them.
        held = Comparison.objects.filter(project=change.project_id, pk__in=ids).order_by("pk")
        list(held.select_for_update(of=("self",)).values_list("pk", flat=True))
    restored = _UNDO[change.action](change)
    BulkChange.objects.filter(pk=change.pk).update(undone_at=timezone.now(), before=[])
    audit.record(
        action="data.undo",
        subject=change,
        actor=undone_by,
        project=change.project,
        details={"change": change.action, "rows": change.changed, "restored": restored},
    )
    return restored


def _free(ids: Iterable[int]) -> models.QuerySet[Comparison]:
    """Return the comparisons of these that nobody labels now."""
    leased = Assignment.objects.filter(comparison=OuterRef("pk"), state=AssignmentState.LEASED)
    return Comparison.objects.filter(~Exists(leased), pk__in=list(ids))


def _by_value(rows: Iterable[Row]) -> Iterator[tuple[tuple[Any, ...], list[int]]]:
    """Yield each combination of values with the ids of its rows: many rows share few."""
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for pk, *values in rows:
        groups[tuple(values)].append(pk)
    yield from groups.items()


def _undo_places(change: BulkChange) -> int:
    """Take back places that were added, as far as nobody took them. Rows: id, places."""
    restored = 0
    for (places,), ids in _by_value(change.before):
        free = Comparison.objects.filter(pk__in=ids, open_slots__gte=places, overlap__gt=places)
        restored += free.update(open_slots=F("open_slots") - places, overlap=F("overlap") - places)
    return restored


def _undo_close(change: BulkChange) -> int:
    """Open places that were closed. Rows: id, overlap and open places before."""
    restored = 0
    for (overlap, places), ids in _by_value(change.before):
        closed = Comparison.objects.filter(
            pk__in=ids, purpose=Purpose.WORK, open_slots=0, overlap__lte=overlap
        )
        restored += closed.update(overlap=overlap, open_slots=places)
    return restored


def _undo_priority(change: BulkChange) -> int:
    """Rows: id, priority before."""
    restored = 0
    for (priority,), ids in _by_value(change.before):
        same = Comparison.objects.filter(pk__in=ids, priority=int(change.value))
        restored += same.update(priority=priority)
    return restored


def _undo_review(change: BulkChange) -> int:
    """Remove reviews that were opened and not decided. Rows: id."""
    opened = Review.objects.filter(comparison__in=_ids(change), decided_at__isnull=True)
    return opened.delete()[1].get(Review._meta.label, 0)


def _undo_release(change: BulkChange) -> int:
    """Quarantine again what nobody labels now. Rows: id."""
    free = list(_free(_ids(change)).values_list("pk", flat=True))
    released = Withholding.objects.filter(comparison__in=free, state=WithholdingState.RELEASED)
    pks = list(released.values_list("comparison", flat=True))
    released.update(state=WithholdingState.PENDING, decided_by=None, decided_at=None)
    Comparison.objects.filter(pk__in=pks).update(open_slots=0)
    return len(pks)


def _undo_quarantine(change: BulkChange) -> int:
    """Release what is in quarantine still. Rows: id, whether it was released before."""
    restored: list[int] = []
    for (was_released,), ids in _by_value(change.before):
        pending = Withholding.objects.filter(comparison__in=ids, state=WithholdingState.PENDING)
        pks = list(pending.values_list("comparison", flat=True))
        if was_released:
            pending.update(state=WithholdingState.RELEASED, decided_at=timezone.now())
        else:
            pending.delete()
        restored += pks
    open_free_places(restored)
    return len(restored)


def _undo_reserve(change: BulkChange) -> int:
    """Rows: id, ids of the members before."""
    through = Comparison.reserved_for.through
    through.objects.filter(comparison__in=_ids(change)).delete()
    members = set(change.project.memberships.values_list("user_id", flat=True))
    pairs = ((pk, user) for pk, users in change.before for user in users if user in members)
    bulk.insert(through, ["comparison_id", "user_id"], pairs)
    return len(change.before)


def _undo_answer(change: BulkChange) -> int:
    """Take bulk answers back, but for those that were revised, reviewed or put into a snapshot.

    Rows: ids of the comparison, the judgment and the assignment.
    """
    by_judgment = {judgment: (comparison, assignment) for comparison, judgment, assignment in change.before}
    # A review that was asked for or decided is work of others; one that a rule opened goes with the answer.
    reviewed = Review.objects.filter(
        Q(decided_at__isnull=False) | Q(reason__in=(ReviewReason.FLAGGED, ReviewReason.REQUESTED)),
        comparison=OuterRef("comparison"),
    )
    standing = Judgment.everything.current().filter(
        ~Exists(reviewed), pk__in=by_judgment, in_bulk=True, comparison__purpose=Purpose.WORK
    )
    keys = dict(standing.values_list("pk", "comparison__round_number"))
    held = used_elsewhere(Judgment, list(keys))
    rounds: Counter[int] = Counter()
    restored = []
    for pk, round_number in keys.items():
        comparison, assignment = by_judgment[pk]
        if pk not in held and _take_back(pk, assignment):
            restored.append(comparison)
            rounds[round_number] += 1
    Review.objects.filter(comparison__in=restored, decided_at__isnull=True).delete()
    is_free = Q(withholding__isnull=True) | Q(withholding__state=WithholdingState.RELEASED)
    Comparison.objects.filter(is_free, pk__in=restored).update(open_slots=F("open_slots") + 1)
    record_agreement(comparisons=restored)
    if change.actor_id is not None:
        uncount_submissions(project_id=change.project_id, annotator_id=change.actor_id, rounds=rounds)
    return len(restored)


def _take_back(judgment: int, assignment: int) -> bool:
    """Delete a judgment with its assignment; False where another row holds one of them."""
    try:
        with transaction.atomic():
            Judgment._base_manager.filter(pk=judgment).delete()
            Assignment.objects.filter(pk=assignment).delete()
    except ProtectedError:
        return False
    return True


def _undo_tags(change: BulkChange) -> int:
    """Remove a tag that was added, or add one that was removed. Rows: id."""
    prompts = Prompt.objects.filter(pk__in=_ids(change)).order_by("pk")
    values = []
    for pk, tags in prompts.select_for_update().values_list("pk", "tags"):
        if change.action == "tag" and change.value in tags:
            values.append((pk, bulk.json_value([tag for tag in tags if tag != change.value])))
        elif change.action == "untag" and change.value not in tags:
            values.append((pk, bulk.json_value([*tags, change.value])))
    bulk.update(Prompt, "tags", values)
    return len(values)


def _undo_delete(change: BulkChange) -> int:
    """Bring comparisons back. Rows: id, overlap and open places before."""
    return _bring_back(change.before)


def _bring_back(rows: Iterable[Row]) -> int:
    restored = 0
    for (overlap, places), ids in _by_value(rows):
        deleted = Comparison.objects.filter(pk__in=ids, purpose=Purpose.DELETED)
        twins = Comparison.objects.filter(
            project=OuterRef("project"),
            round_number=OuterRef("round_number"),
            completion_set=OuterRef("completion_set"),
            purpose=Purpose.WORK,
        )
        back = list(deleted.filter(~Exists(twins)).values_list("pk", flat=True))
        restored += Comparison.objects.filter(pk__in=back).update(
            purpose=Purpose.WORK, overlap=overlap, open_slots=places
        )
        prompts = Prompt.with_deleted.filter(comparisons__in=back, deleted_at__isnull=False)
        Prompt.with_deleted.filter(pk__in=list(prompts.values_list("pk", flat=True))).update(deleted_at=None)
    return restored


def _undo_delete_prompts(change: BulkChange) -> int:
    """Bring prompts back with the comparisons that went with them. Rows: id, and rows of comparisons."""
    prompts = Prompt.with_deleted.filter(pk__in=_ids(change), deleted_at__isnull=False)
    restored = prompts.update(deleted_at=None)
    _bring_back(_nested(change))
    return restored


def _undo_delete_responses(change: BulkChange) -> int:
    """Bring responses back with the comparisons that went with them. Rows: id, and rows of comparisons."""
    responses = Completion._base_manager.filter(pk__in=_ids(change), deleted_at__isnull=False)
    restored = responses.update(deleted_at=None)
    _bring_back(_nested(change))
    return restored


def _nested(change: BulkChange) -> list[Row]:
    """Return the rows of the comparisons that went with other rows."""
    return [row for _pk, rows in change.before for row in rows]


def _ids(change: BulkChange) -> list[int]:
    return [row[0] for row in change.before]


_UNDO: Mapping[str, Callable[[BulkChange], int]] = {
    "requeue": _undo_places,
    "overlap": _undo_places,
    "close": _undo_close,
    "priority": _undo_priority,
    "review": _undo_review,
    "release": _undo_release,
    "quarantine": _undo_quarantine,
    "reserve": _undo_reserve,
    "answer": _undo_answer,
    "tag": _undo_tags,
    "untag": _undo_tags,
    "delete": _undo_delete,
    "delete_prompts": _undo_delete_prompts,
    "delete_responses": _undo_delete_responses,
}


# What was deleted goes for good once it cannot be undone. What others hold, such as snapshots, stays.

_BATCH = 200


def forget_changes(*, now: datetime | None = None) -> int:
    """Delete for good what bulk changes deleted more than a day ago; return how many comparisons went."""
    before = (now or timezone.now()) - UNDONE_WITHIN
    old = BulkChange.objects.filter(created_at__lt=before, undone_at__isnull=True, is_purged=False)
    gone = 0
    for change in old.order_by("pk"):
        if change.action in ("delete", *_PURGES):
            nested = change.action in _PURGES
            rows = _nested(change) if nested else change.before
            for batch in _batches([row[0] for row in rows]):
                gone += purge_comparisons(batch)
            if nested:
                for batch in _batches(_ids(change)):
                    _PURGES[change.action](batch)
        BulkChange.objects.filter(pk=change.pk).update(is_purged=True, before=[])
    return gone


def _batches(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(ids), _BATCH):
        yield ids[start : start + _BATCH]


def purge_comparisons(ids: Sequence[int]) -> int:
    """Delete deleted comparisons for good, with their annotations, but for those that others hold."""
    try:
        with transaction.atomic():
            return _purge_comparisons(ids)
    except ProtectedError:
        # One of them is held in a way that no other application knows of; the others go.
        return sum(purge_comparisons([pk]) for pk in ids) if len(ids) > 1 else 0


def _purge_comparisons(ids: Sequence[int]) -> int:
    rows = list(Comparison.objects.filter(pk__in=ids, purpose=Purpose.DELETED).values_list("pk", flat=True))
    judgments = dict(Judgment.everything.filter(comparison__in=rows).values_list("pk", "comparison_id"))
    held = used_elsewhere(Comparison, rows)
    held |= {judgments[pk] for pk in used_elsewhere(Judgment, list(judgments))}
    free = [pk for pk in rows if pk not in held]
    completions = list(
        Completion.objects.filter(candidacies__comparison__in=free).values_list("pk", flat=True).distinct()
    )
    remaining = {pk for pk, comparison in judgments.items() if comparison not in held}
    while remaining:
        # The newest versions first: each protects the one that it supersedes.
        superseded = Judgment.everything.filter(pk__in=remaining).values_list("supersedes", flat=True)
        newest = remaining.difference(superseded)
        Judgment._base_manager.filter(pk__in=newest).delete()
        remaining -= newest
    assignments = Assignment.objects.filter(comparison__in=free)
    ItemFlag._base_manager.filter(assignment__in=assignments).delete()
    assignments.filter(retest_of__isnull=False).delete()
    assignments.delete()
    Comparison.objects.filter(pk__in=free).delete()
    alone = Completion.objects.filter(
        pk__in=completions, candidacies__isnull=True, source__kind=SourceKind.IMPORT
    )
    unused = set(alone.values_list("pk", flat=True)) - used_elsewhere(Completion, completions)
    Completion._base_manager.filter(pk__in=unused).delete()
    return len(free)


def _purge_prompts(ids: Sequence[int]) -> None:
    rows = Prompt.with_deleted.filter(pk__in=ids, deleted_at__isnull=False, comparisons__isnull=True)
    keys = list(rows.values_list("pk", flat=True))
    completions = dict(Completion.objects.filter(prompt__in=keys).values_list("pk", "prompt_id"))
    held = used_elsewhere(Prompt, keys)
    held |= {completions[pk] for pk in used_elsewhere(Completion, list(completions))}
    for pk in keys:
        if pk not in held:
            with suppress(ProtectedError), transaction.atomic():
                Prompt.with_deleted.filter(pk=pk).delete()


def _purge_responses(ids: Sequence[int]) -> None:
    rows = Completion.objects.filter(pk__in=ids, deleted_at__isnull=False, candidacies__isnull=True)
    keys = list(rows.values_list("pk", flat=True))
    held = used_elsewhere(Completion, keys)
    for pk in keys:
        if pk not in held:
            with suppress(ProtectedError), transaction.atomic():
                Completion._base_manager.filter(pk=pk).delete()


_PURGES: Mapping[str, Callable[[Sequence[int]], None]] = {
    "delete_prompts": _purge_prompts,
    "delete_responses": _purge_responses,
}


def used_elsewhere(model: type[models.Model], ids: Sequence[int]) -> set[int]:
    """Return the rows of these that other applications, such as snapshots and evaluations, point to."""
    used: set[int] = set()
    if ids:
        for user, name in references_from_outside(model):
            found = user._base_manager.filter(Q(**{f"{name}__in": list(ids)}))
            used.update(found.values_list(name, flat=True).distinct())
    return used


def references_from_outside(model: type[models.Model]) -> Iterator[tuple[type[models.Model], str]]:
    """Yield the models of other applications that point to a model, with the name of their field.

    Rows that are computed from others (`IS_DERIVED`) hold nothing, and go with them.
    """
    for relation in model._meta.get_fields(include_hidden=True):
        user = getattr(relation, "related_model", None)
        if not (isinstance(relation, ForeignObjectRel) and isinstance(user, type)):
            continue
        if issubclass(user, models.Model) and user._meta.app_label != model._meta.app_label:
            if getattr(user, "IS_DERIVED", False):
                continue
            yield user, relation.field.name
