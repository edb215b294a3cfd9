"""The next assignment of one person: a lease they hold, then qualification, a retest, gold, or work."""

from enum import IntEnum
from typing import Any

from django.db import IntegrityError, connection, transaction
from django.utils.translation import gettext as _

from annotation.choices import AcquisitionArm, AcquisitionStrategy, Role
from annotation.errors import NotAllowed, Refusal
from annotation.models import Assignment, Comparison, Membership, Project, User
from annotation.selectors import access, eligibility
from annotation.services.assignments import randomness
from annotation.services.assignments.leases import (
    MOST_HELD,
    expire_leases,
    extend,
    held_by,
    is_free,
    lease,
    require_owner,
)
from annotation.services.assignments.qualification import let_in_if_passed, next_qualification_item
from annotation.services.assignments.queue import any_open, first_open, first_open_waiting
from annotation.services.assignments.retests import draw_retest, is_retest_due, other_order
from annotation.services.assignments.slots import take_slot
from annotation.services.assignments.tallies import Turn, count_retest, take_turn
from annotation.services.quality.gold import next_gold_item

_ATTEMPTS = 20
_SHUFFLE_NUMBERS = 2**31


def assign_next(*, project: Project, annotator: User) -> Assignment | None:
    """Lease the next comparison to `annotator`, or give the one that they hold longest.

    Who has to qualify gets the qualification items in order and nothing else. Then, as the
    project's shares say, a retest or a gold item comes in place of work. Work comes newest round
    first, then by priority, by the project's strategy, by age; a share of it at random, as control.
    Returns None when nothing is left for this person, their day or share is full or the project is archived:
    `eligibility.why_nothing` says which. Leases that have run out come back first. Refuses who may not
    annotate here.
    """
    expire_leases(project=project)
    return _assign(project, annotator, after=None)


def assign_next_in_transaction(*, project: Project, annotator: User, turn: Turn) -> Assignment | None:
    """`assign_next` as a part of a larger transaction of the same person, which has taken `turn`.

    Leases that have run out must have come back before that transaction began: within it they would
    lock comparisons out of order. For the same reason it waits for nobody: what is in someone's hands
    right now is passed over, and None may mean no more than that. Ask `assign_next` afterwards. Where
    someone took the place between the look and the write, `IntegrityError` ends that transaction.
    """
    membership = _require_annotator(annotator, project)
    for _attempt in range(_ATTEMPTS):
        got = _look(project, annotator, membership, turn, waits_for=_WaitsFor.NOTHING)
        if not isinstance(got, _Lost):
            return got
        if isinstance(got, _AllInHands):
            break
    return None


def assign_ahead(*, project: Project, annotator: User, after: Assignment) -> Assignment | None:
    """Lease the comparison that comes after the one in hand, or give it when it is leased already.

    So the next can be loaded while one works. Nobody ever holds more than two. Returns None and
    refuses as `assign_next` does; refuses another person's assignment.
    """
    require_owner(after, annotator)
    expire_leases(project=project)
    return _assign(project, annotator, after=after)


def _assign(project: Project, annotator: User, *, after: Assignment | None) -> Assignment | None:
    membership = _require_annotator(annotator, project)
    waits_for = _WaitsFor.OWN
    for _attempt in range(_ATTEMPTS):
        try:
            with transaction.atomic():
                # One person's two tabs wait here for each other, and get the same comparison.
                turn = take_turn(project_id=project.pk, annotator_id=annotator.pk)
                got = _look(project, annotator, membership, turn, after=after, waits_for=waits_for)
                if not isinstance(got, _Lost):
                    return got
                if isinstance(got, _AllInHands):
                    # In a transaction of its own, which holds nothing that another waits for.
                    waits_for = _WaitsFor.WORK
        except IntegrityError:
            # Someone took the place between the look and the write; look again.
            continue
    raise Refusal(
        "too_many_requests_for_work",
        _("Too many people asked for work at the same moment. Reload the page to ask again."),
    )


class _WaitsFor(IntEnum):
    """Locks that a request waits for; each includes the ones before."""

    NOTHING = 0
    OWN = 1
    WORK = 2


class _Lost:
    """Another person was faster: look again."""


class _AllInHands(_Lost):
    """Whatever is left is in someone's hands right now."""


def _look(
    project: Project,
    annotator: User,
    membership: Membership | None,
    turn: Turn,
    *,
    after: Assignment | None = None,
    waits_for: _WaitsFor,
) -> Assignment | _Lost | None:
    """Return a lease they hold besides `after`, or else a new one, unless they hold enough for the day."""
    held = held_by(annotator, project)
    left = eligibility.left_to_submit(project, annotator, membership)
    if left == 0 or project.archived_at is not None:
        return None
    for assignment in held:
        if after is not None and assignment.pk == after.pk:
            continue
        if waits_for == _WaitsFor.NOTHING and not is_free(assignment):
            return None
        if extend(assignment):
            assignment.round_tally = turn.in_round
            return assignment
    if len(held) >= MOST_HELD or (left is not None and len(held) >= left):
        return None
    return _Hand(project, annotator, membership, turn, waits=waits_for == _WaitsFor.WORK).draw()


class _Hand:
    """One draw for one person, inside the transaction of their turn."""

    def __init__(
        self,
        project: Project,
        annotator: User,
        membership: Membership | None,
        turn: Turn,
        *,
        waits: bool,
    ) -> None:
        self.project = project
        self.annotator = annotator
        self.membership = membership
        self.turn = turn
        self.reviews = access.allows(annotator, membership, Role.REVIEWER)
        self.waits = waits

    def draw(self) -> Assignment | _Lost | None:
        if eligibility.has_to_qualify(self.annotator, self.project, self.membership):
            item = next_qualification_item(project=self.project, annotator=self.annotator)
            if item is not None:
                return self._lease_known(item)
            if not let_in_if_passed(project=self.project, annotator=self.annotator):
                return None
        if (retest := self._retest()) is not None:
            return retest
        walk = first_open_waiting if self.waits else first_open
        comparison = walk(self.project, self.annotator, reviews=self.reviews)
        if comparison is None:
            # Gold comes in place of work, never after it: the waiting page hands out nothing.
            may_be_in_hands = connection.features.has_select_for_update and not self.waits
            return _AllInHands() if may_be_in_hands else None
        if self._happens(self.project.gold_share, "gold"):
            gold = next_gold_item(project=self.project, annotator=self.annotator, turn=self.turn.number)
            if gold is not None:
                return self._lease_known(gold)
        return self._lease_work(comparison)

    def _lease(self, comparison: Comparison, **chosen: Any) -> Assignment:
        leased = lease(comparison, self.annotator, **chosen)
        leased.round_tally = self.turn.in_round
        return leased

    def _retest(self) -> Assignment | None:
        if not is_retest_due(self.project, self.turn):
            return None
        first = draw_retest(self.project, self.annotator, self.turn)
        if first is None:
            return None
        count_retest(turn=self.turn)
        return self._lease(first.comparison, slot=None, retest_of=first, display_order=other_order(first))

    def _lease_known(self, item: Comparison) -> Assignment:
        item.project = self.project
        return self._lease(item, slot=None)

    def _lease_work(self, comparison: Comparison) -> Assignment | _Lost:
        arm: AcquisitionArm | str = ""
        if self.project.acquisition != AcquisitionStrategy.AGE:
            arm = AcquisitionArm.STRATEGY
            if self._happens(self.project.control_share, "control"):
                arm = AcquisitionArm.CONTROL
                comparison = self._control(comparison)
        slot = take_slot(comparison)
        return _Lost() if slot is None else self._lease(comparison, slot=slot, arm=arm)

    def _control(self, comparison: Comparison) -> Comparison:
        start = randomness.number_below(
            _SHUFFLE_NUMBERS,
            "control-start",
            project=self.project,
            annotator=self.annotator,
            turn=self.turn.number,
        )
        drawn = any_open(
            self.project,
            self.annotator,
            round_number=comparison.round_number,
            start=start,
            reviews=self.reviews,
        )
        return drawn or comparison

    def _happens(self, share: float, what: str) -> bool:
        return randomness.happens(
            share, what, project=self.project, annotator=self.annotator, turn=self.turn.number
        )


def _require_annotator(annotator: User, project: Project) -> Membership | None:
    """Their membership; None for a superuser who is no member."""
    membership = access.membership_of(annotator, project)
    if not access.allows(annotator, membership, Role.ANNOTATOR):
        raise NotAllowed(
            "not_an_annotator",
            _("%(annotator)s is not an annotator of %(project)s. Ask its manager to add you."),
            annotator=annotator,
            project=project,
        )
    return membership
