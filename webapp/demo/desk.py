"""A desk of the demo project: hands out a round's comparisons and takes annotations in, in memory.

It hands out in the queue's order, with gold items and retests at the project's shares and display orders
from the same balanced draw as `assign_next`. `write` stores everything in few statements; agreement,
reviews, flags and questions then come from the services that make them elsewhere.
"""

import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, TypeVar

from django.db import transaction
from django.db.models import Model
from django.utils import timezone

from annotation.choices import SPENT_STATES, AssignmentState, Purpose
from annotation.models import (
    AnnotatorTally,
    Assignment,
    Comment,
    Comparison,
    Completion,
    Judgment,
    Membership,
    Project,
    User,
)
from annotation.record.judgment import JudgmentRecord
from annotation.selectors import access
from annotation.selectors.configuration import configuration_of
from annotation.services.assignments import display_order as randomness
from annotation.services.assignments.display_order import display_order, draw_number
from annotation.services.assignments.leases import lease_time
from annotation.services.assignments.next import QUEUE_ORDER, drawn_from, is_retest_due
from annotation.services.inbox import post_comment
from annotation.services.judgments.storing import PartKeys, StoredJudgment, store_parts
from annotation.services.judgments.submission import flag_item
from annotation.services.projects.projects import note_guideline_on_screen
from annotation.services.quality import record_agreement
from annotation.services.reviews import review_after_judgment

# A clock that the demo project sets, so that its weeks of work can be written within a minute.


class DemoClock:
    """A time that moves only when somebody moves it."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def forward(self, **parts: float) -> None:
        """Move on by the parts of a `timedelta`."""
        self.now += timedelta(**parts)

    @contextmanager
    def in_charge(self) -> Iterator[None]:
        """Let this process's services write this time in place of the real one.

        The services ask `timezone.now`, and no other process works on the incomplete project meanwhile. Times
        that the database writes itself stay real: `project` moves them afterwards.
        """
        real = timezone.now
        timezone.now = lambda: self.now
        try:
            yield
        finally:
            timezone.now = real


_Question = tuple[Assignment, str, str]
"""An assignment, why it is flagged, and the comment."""
_Value = TypeVar("_Value")
_BATCH = 500
"""Rows of a transaction: on SQLite others who write wait for its end."""


class Desk:
    """One round of a project, from its first annotation to `write`."""

    def __init__(self, project: Project, clock: DemoClock) -> None:
        self._project = project
        self._clock = clock
        self._guideline = access.current_guideline(project)
        rows = Comparison.objects.filter(project=project, turns=None).select_related("prompt", "project")
        in_order = rows.prefetch_related("candidates__completion").order_by(*QUEUE_ORDER)
        self._open = list(in_order.filter(purpose=Purpose.WORK, open_slots__gt=0))
        self._gold = list(in_order.filter(purpose=Purpose.GOLD))
        self._had: dict[int, set[int]] = defaultdict(set)
        self._done: dict[int, list[Assignment]] = defaultdict(list)
        self._retested: set[int] = set()
        self._slots: dict[int, set[int | None]] = defaultdict(set)
        self._look_back(rows)
        self._tallies = {
            tally.annotator_id: tally for tally in AnnotatorTally.objects.filter(project=project)
        }
        self._assignments: list[Assignment] = []
        self._rows: list[tuple[Judgment, JudgmentRecord]] = []
        self._questions: list[_Question] = []

    def _look_back(self, rows: Any) -> None:
        """Remember what each annotator had in earlier rounds."""
        comparisons = {comparison.pk: comparison for comparison in rows}
        for assignment in Assignment.objects.filter(
            comparison__in=comparisons, state__in=SPENT_STATES
        ).order_by("closed_at", "pk"):
            assignment.comparison = comparisons[assignment.comparison_id]
            self._had[assignment.annotator_id].add(assignment.comparison_id)
            if assignment.state == AssignmentState.SUBMITTED and assignment.slot is not None:
                self._slots[assignment.comparison_id].add(assignment.slot)
            if assignment.retest_of_id is not None:
                self._retested.add(assignment.retest_of_id)
            elif (
                assignment.state == AssignmentState.SUBMITTED
                and assignment.comparison.purpose == Purpose.WORK
            ):
                self._done[assignment.annotator_id].append(assignment)

    # ── handing out ────────────────────────────────────────────────────────────────────

    def next(self, annotator: User) -> Assignment | None:
        """Return an assignment, not stored yet; None when nothing is left for this person."""
        tally = self._tallies.setdefault(
            annotator.pk, AnnotatorTally(project=self._project, annotator=annotator)
        )
        tally.turns += 1
        if (first := self._retest(annotator, tally)) is not None:
            tally.retests += 1
            order = [*first.display_order[1:], first.display_order[0]]
            return self._lease(first.comparison, annotator, order=order, retest_of=first)
        had = self._had[annotator.pk]
        work = next(
            (comparison for comparison in self._open if comparison.open_slots and comparison.pk not in had),
            None,
        )
        if work is None:
            return None
        drawn: dict[str, Any] = {"project": self._project, "annotator": annotator, "turn": tally.turns}
        gold = [comparison for comparison in self._gold if comparison.pk not in had]
        if gold and randomness.happens(self._project.gold_share, "gold", **drawn):
            return self._lease(gold[randomness.number_below(len(gold), "gold-item", **drawn)], annotator)
        held = self._slots[work.pk]
        slot = next(number for number in range(work.overlap) if number not in held)
        return self._lease(work, annotator, slot=slot)

    def _retest(self, annotator: User, tally: AnnotatorTally) -> Assignment | None:
        if not is_retest_due(self._project, tally):
            return None
        lain = self._done[annotator.pk][::-1][drawn_from(self._project)]
        waiting = [assignment for assignment in lain if id(assignment) not in self._retested]
        waiting = [
            assignment
            for assignment in waiting
            if assignment.pk is None or assignment.pk not in self._retested
        ]
        if not waiting:
            return None
        place = randomness.number_below(
            len(waiting), "retest", project=self._project, annotator=annotator, turn=tally.turns
        )
        self._retested.add(id(waiting[place]))
        return waiting[place]

    def _lease(
        self,
        comparison: Comparison,
        annotator: User,
        *,
        slot: int | None = None,
        order: list[int] | None = None,
        retest_of: Assignment | None = None,
    ) -> Assignment:
        completions = [candidate.completion for candidate in comparison.candidates.all()]
        if order is None:
            drawn: dict[str, Any] = {"project": self._project, "annotator": annotator}
            number = draw_number(**drawn, size=len(completions))
            order = display_order(
                **drawn, completion_ids=[completion.pk for completion in completions], number=number
            )
        now = self._clock.now
        leased = Assignment(
            comparison=comparison,
            annotator=annotator,
            slot=slot,
            retest_of=retest_of,
            display_order=order,
            leased_at=now,
            lease_expires_at=now + lease_time(self._project),
        )
        leased.fresh_completions = completions
        return leased

    # ── taking in ──────────────────────────────────────────────────────────────────────

    def skip(self, assignment: Assignment, reason: str) -> None:
        """Take a comparison back; its place stays open to others."""
        self._close(assignment, AssignmentState.SKIPPED)
        assignment.reason = reason

    def ask(self, assignment: Assignment, *, flag: str, text: str) -> None:
        """Flag a comparison and ask about it, once it is stored."""
        self._questions.append((assignment, flag, text))

    def submit(self, assignment: Assignment, answer: JudgmentRecord, key: uuid.UUID) -> None:
        """Take an annotation in."""
        self._close(assignment, AssignmentState.SUBMITTED)
        comparison, annotator = assignment.comparison, assignment.annotator
        judgment = Judgment(
            assignment=assignment,
            comparison=comparison,
            annotator=annotator,
            guideline=self._guideline,
            verdict=answer.verdict,
            comment=answer.comment,
            active_seconds=answer.active_seconds,
            idempotency_key=key,
            created_at=self._clock.now,
        )
        self._rows.append((judgment, answer))
        tally = self._tallies[annotator.pk]
        if assignment.slot is None:
            tally.round_unseen += 1
            return
        same_round = tally.round_number in (None, comparison.round_number)
        tally.submitted += 1
        tally.round_done = tally.round_done + 1 if same_round else 1
        tally.round_unseen *= int(same_round)
        tally.round_number = comparison.round_number
        comparison.open_slots -= 1
        self._slots[comparison.pk].add(assignment.slot)
        self._done[annotator.pk].append(assignment)

    def _close(self, assignment: Assignment, state: AssignmentState) -> None:
        assignment.state = state
        assignment.closed_at = self._clock.now
        self._had[assignment.annotator_id].add(assignment.comparison_id)
        self._assignments.append(assignment)

    # ── storing ────────────────────────────────────────────────────────────────────────

    def write(self) -> None:
        """Store all annotations, then what services derive from them, in short transactions."""
        ends = self._clock.now
        _store(assignment for assignment in self._assignments if assignment.retest_of is None)
        _store(assignment for assignment in self._assignments if assignment.retest_of is not None)
        with _times_as_written():
            _store(judgment for judgment, _answer in self._rows)
        self._write_parts()
        judged = {comparison.pk: comparison for comparison in self._open if len(self._slots[comparison.pk])}
        for some in _in_batches(judged.values()):
            Comparison.objects.bulk_update(some, ["open_slots"])
        AnnotatorTally.objects.bulk_create(
            self._tallies.values(),
            update_conflicts=True,
            unique_fields=["project", "annotator"],
            update_fields=["turns", "submitted", "retests", "round_number", "round_done", "round_unseen"],
        )
        if self._guideline is not None:
            for membership in Membership.objects.filter(project=self._project, user__in=self._tallies):
                note_guideline_on_screen(membership=membership, guideline=self._guideline)
        for pks in _in_batches(judged):
            record_agreement(comparisons=pks)
        events: list[Judgment | _Question] = [*self._questions, *self._last_judgments()]
        for event in sorted(events, key=_time_of):
            self._clock.now = _time_of(event)
            with transaction.atomic():
                if isinstance(event, Judgment):
                    review_after_judgment(comparison=event.comparison)
                else:
                    self._ask(*event)
        self._clock.now = ends

    def _last_judgments(self) -> Iterator[Judgment]:
        """Return the last judgment of each comparison that has all; a retest comes after these."""
        last = {
            judgment.comparison_id: judgment
            for judgment, _answer in self._rows
            if judgment.assignment.slot is not None
        }
        return (judgment for judgment in last.values() if not judgment.comparison.open_slots)

    def _ask(self, assignment: Assignment, flag: str, text: str) -> None:
        flag_item(assignment=assignment, annotator=assignment.annotator, reason=flag)
        comment = post_comment(assignment=assignment, author=assignment.annotator, text=text)
        # Its default is the real time.
        Comment.objects.filter(pk=comment.pk).update(created_at=self._clock.now)

    def _write_parts(self) -> None:
        """Store what the annotations say."""
        configured = configuration_of(self._project)
        keys = PartKeys(
            categories={category.key: category.pk for category in configured.categories},
            criteria={criterion.key: criterion.pk for criterion in configured.criteria},
        )
        for some in _in_batches(self._rows):
            with transaction.atomic():
                store_parts(
                    [
                        StoredJudgment(
                            judgment=judgment.pk,
                            assignment=judgment.assignment_id,
                            record=answer,
                            completions={str(pk): pk for pk in judgment.assignment.display_order},
                        )
                        for judgment, answer in some
                    ],
                    keys,
                )


def _store(rows: Iterable[Model]) -> None:
    """Insert rows of one table, each batch in a transaction of its own."""
    for some in _in_batches(rows):
        type(some[0])._default_manager.bulk_create(some)


def _in_batches(values: Iterable[_Value]) -> Iterator[list[_Value]]:
    waiting = iter(values)
    while some := list(islice(waiting, _BATCH)):
        yield some


def shown_in(assignment: Assignment) -> list[Completion]:
    """Return the completions of an assignment in the order in which its annotator sees them."""
    known = {completion.pk: completion for completion in assignment.fresh_completions or ()}
    shown = known or Completion.objects.in_bulk(assignment.display_order)
    return [shown[pk] for pk in assignment.display_order]


def _time_of(event: Judgment | _Question) -> datetime:
    """Return when a judgment came, or when a question about an assignment was asked."""
    return event.created_at if isinstance(event, Judgment) else _closed(event[0])


def _closed(assignment: Assignment) -> datetime:
    assert assignment.closed_at is not None  # noqa: S101 - closed when it was taken in
    return assignment.closed_at


@contextmanager
def _times_as_written() -> Iterator[None]:
    """Let judgments keep the times that their rows carry: the field writes the time of storing otherwise."""
    field: Any = Judgment._meta.get_field("created_at")
    field.auto_now_add = False
    try:
        yield
    finally:
        field.auto_now_add = True
