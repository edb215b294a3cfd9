"""Give a person the next comparison: of the qualification set, a repeated one, gold, or of the queue."""

import math
import random
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from django.db import IntegrityError, connection, transaction
from django.db.models import BooleanField, Exists, F, OuterRef, Q, QuerySet
from django.db.models.expressions import RawSQL
from django.utils.crypto import salted_hmac
from django.utils.translation import gettext as _

from annotation.choices import (
    AcquisitionArm,
    AcquisitionStrategy,
    AssignmentState,
    Purpose,
    Role,
)
from annotation.errors import NotAllowed, Refusal
from annotation.models import (
    AnnotatorTally,
    Assignment,
    CalibrationAnswer,
    Comparison,
    Membership,
    Project,
    Review,
    User,
)
from annotation.models.work import HOLDS_A_SLOT
from annotation.selectors import access, eligibility
from annotation.selectors.allocation import allotted_to
from annotation.selectors.calibration import next_item
from annotation.services.assignments import display_order
from annotation.services.assignments.leases import (
    MOST_HELD,
    Turn,
    count_retest,
    expire_leases,
    extend,
    held_by,
    is_free,
    lease,
    let_in_if_passed,
    next_qualification_item,
    only_self,
    require_owner,
    take_slot,
    take_turn,
)
from annotation.services.quality import next_gold_item

# ── The queue ───────────────────────────────────────────────────────────────────────────


QUEUE_ORDER = ("-round_number", "-priority", "-acquisition_score", "id")

_LOOK_AHEAD = 50
"""So many at the head are looked at before the walk starts further back: what is new and urgent
stands there, so nobody misses it."""


def first_open(project: Project, annotator: User, *, reviews: bool = False) -> Comparison | None:
    """The first open comparison that this person has not had. On PostgreSQL its row is locked.

    Twenty people who ask at once get twenty comparisons without waiting for each other: what others
    have locked right now counts as not left. When nothing is found behind the person's place, the
    whole queue is walked.
    """
    place: Mapping[str, Any] | None = None
    if project.overlap + project.extra_overlap > 1 and _has_had_the_head(project, annotator):
        place = _own_place(project, annotator)
    for stretch in [*(_BEHIND if place else ()), _EVERYTHING]:
        comparison = _walk(stretch, project, annotator, place or {}, skip_locked=True, reviews=reviews)
        if comparison is not None:
            return comparison
    return None


def first_open_waiting(project: Project, annotator: User, *, reviews: bool = False) -> Comparison | None:
    """`first_open` that waits for what others have in hand. Never None while one is left.

    Call it in a transaction that has locked no comparison. PostgreSQL keeps the lock of a row that it
    waited for, or passed over, even where the row has been taken meanwhile; so all who wait walk the
    whole queue in one order, and two of them never wait for each other.
    """
    return _walk(_EVERYTHING, project, annotator, {}, skip_locked=False, reviews=reviews)


def any_open(
    project: Project, annotator: User, *, round_number: int, start: int, reviews: bool = False
) -> Comparison | None:
    """An open comparison of a round for the control arm: the first in random order from `start` on.

    None when others hold all of them right now.
    """
    in_round = (
        open_to(project, annotator, reviews=reviews).filter(round_number=round_number).order_by("shuffle")
    )
    for part in (Q(shuffle__gte=start), Q(shuffle__lt=start)):
        if (comparison := _first(in_round.filter(part), project, skip_locked=True)) is not None:
            return comparison
    return None


def open_to(project: Project, annotator: User, *, reviews: bool = False) -> QuerySet[Comparison]:
    """Return the comparisons open to this person, in no order; `reviews`: they are a reviewer, too."""
    unseen = Comparison.objects.filter(
        ~_had_by(annotator), allotted_to(project, annotator), project=project, open_slots__gt=0
    )
    if reviews:
        # Who decided on others' votes has no fresh eye for it.
        unseen = unseen.filter(~Exists(Review.objects.filter(comparison=OuterRef("pk"), reviewer=annotator)))
    return unseen.select_related("prompt")


_HAD_BY = f"""EXISTS (
    SELECT 1 FROM annotation_assignment had
    WHERE had.comparison_id = annotation_comparison.id AND had.annotator_id = %s
        AND had.state IN ({", ".join(["%s"] * len(access.SPENT_STATES))})
)"""  # noqa: S608 - placeholders


def _had_by(annotator: User) -> RawSQL:
    """Comparisons that this person has had; not in a subquery, where the table of comparisons is renamed.

    `Exists`, written out: the ORM took 4 % of the processor time of every label to put it together.
    """
    return RawSQL(_HAD_BY, (annotator.pk, *access.SPENT_STATES), output_field=BooleanField())  # noqa: S611


def _first(comparisons: QuerySet[Comparison], project: Project, *, skip_locked: bool) -> Comparison | None:
    comparison = _locked(comparisons, skip_locked=skip_locked).first()
    if comparison is not None:
        comparison.project = project
    return comparison


def _locked(comparisons: QuerySet[Comparison], *, skip_locked: bool) -> QuerySet[Comparison]:
    return comparisons.select_for_update(skip_locked=skip_locked, no_key=True, of=only_self())


_EVERYTHING = 0
_BEHIND = (1, 2, 3, 4)
"""The queue behind one's own place, in stretches that the index can seek."""


def _walk(
    stretch: int,
    project: Project,
    annotator: User,
    place: Mapping[str, Any],
    *,
    skip_locked: bool,
    reviews: bool,
) -> Comparison | None:
    """Return the first comparison of a stretch of the queue, locked."""
    part = Q()
    if stretch != _EVERYTHING:
        here, same = {"round_number": place["round_number"]}, {"priority": place["priority"]}
        part = {
            1: Q(**here, **same, acquisition_score=place["score"], id__gt=place["pk"]),
            2: Q(**here, **same, acquisition_score__lt=place["score"]),
            3: Q(**here, priority__lt=place["priority"]),
            4: Q(round_number__lt=place["round_number"]),
        }[stretch]
    opened = open_to(project, annotator, reviews=reviews).filter(part)
    return _first(opened.order_by(*QUEUE_ORDER), project, skip_locked=skip_locked)


def _has_had_the_head(project: Project, annotator: User) -> bool:
    head = Comparison.objects.filter(allotted_to(project, annotator), project=project, open_slots__gt=0)
    seen = (
        head.order_by(*QUEUE_ORDER)
        .annotate(had=_had_by(annotator))
        .values_list("had", flat=True)[:_LOOK_AHEAD]
    )
    return len(seen) == _LOOK_AHEAD and all(seen)


def _own_place(project: Project, annotator: User) -> Mapping[str, Any] | None:
    """Return where in the queue that stands which this person got last from it."""
    return (
        Assignment.objects.filter(
            annotator=annotator,
            state=AssignmentState.SUBMITTED,
            comparison__project=project,
            slot__isnull=False,
        )
        .exclude(arm=AcquisitionArm.CONTROL)
        .order_by("-closed_at", "-id")
        .values(
            round_number=F("comparison__round_number"),
            priority=F("comparison__priority"),
            score=F("comparison__acquisition_score"),
            pk=F("comparison_id"),
        )
        .first()
    )


# ── Repeated comparisons ────────────────────────────────────────────────────────────────


APART = 10
"""So many of their own submissions lie between a comparison and its return, at least."""

_FEWEST_DRAWN_FROM = 20
_MOST_DRAWN_FROM = 200


def is_retest_due(project: Project, counted: Turn | AnnotatorTally) -> bool:
    """Return True where this person has had fewer retests than the project's share of what they submitted."""
    due = project.retest_share * counted.submitted + 1e-9
    return counted.submitted > APART and counted.retests + 1 <= due


def drawn_from(project: Project) -> slice:
    """Return which of a person's submissions, the newest first, a retest is drawn from."""
    window = min(max(math.ceil(2 / project.retest_share), _FEWEST_DRAWN_FROM), _MOST_DRAWN_FROM)
    return slice(APART, APART + window)


def draw_retest(project: Project, annotator: User, turn: Turn) -> Assignment | None:
    """One of their earlier assignments, drawn by chance; None when none has lain long enough.

    Only work comes back, and each once. It is drawn from the most recent that have lain long
    enough, so that a person who has judged thousands costs no more than another.
    """
    retests = Assignment.objects.filter(retest_of=OuterRef("pk")).exclude(
        state__in=[AssignmentState.RELEASED, AssignmentState.EXPIRED]
    )
    lain = list(
        Assignment.objects.filter(
            annotator=annotator,
            state=AssignmentState.SUBMITTED,
            comparison__project=project,
            comparison__purpose=Purpose.WORK,
            retest_of__isnull=True,
        )
        .annotate(came_back=Exists(retests))
        .select_related("comparison__prompt", "comparison__project")
        .order_by("-closed_at", "-id")[drawn_from(project)]
    )
    waiting = [assignment for assignment in lain if not assignment.came_back]
    if not waiting:
        return None
    place = display_order.number_below(
        len(waiting), "retest", project=project, annotator=annotator, turn=turn.number
    )
    return waiting[place]


def other_order(first: Assignment) -> list[int]:
    """A display order in which every completion stands elsewhere than it did; a pair is swapped."""
    shown = list(first.display_order)
    if len(shown) < 2:
        return shown
    seed = salted_hmac("annotation.retest-order", str(first.pk), algorithm="sha256").digest()
    chances = random.Random(seed)  # noqa: S311 - the seed is a keyed hash
    order = shown[::-1]
    while any(before == now for before, now in zip(shown, order, strict=True)):
        chances.shuffle(order)
    return order


# ── Next ────────────────────────────────────────────────────────────────────────────────


_ATTEMPTS = 20
_SHUFFLE_NUMBERS = 2**31


def assign_next(*, project: Project, annotator: User) -> Assignment | None:
    """Lease the next comparison to `annotator`, or give the one that they hold longest.

    Who has to qualify gets the qualification items in order and nothing else. Then come the comparisons of
    calibration sessions that they take part in. Then, as the project's shares say, a retest or a gold item
    comes in place of work. Work comes newest round first, then by priority, by the project's strategy, by
    age; a share of it at random, as control. Returns None when nothing is left for this person, their day or
    share is full or the project is archived: `eligibility.why_nothing` says which. Leases that have run out
    come back first. Refuses who may not annotate here.
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
        if (calibrated := self._calibration()) is not None:
            return calibrated
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

    def _calibration(self) -> Assignment | _Lost | None:
        """Lease the next comparison of a calibration session; it takes a place where one is free.

        One that they have annotated before comes as its retest. Nobody else's place is opened or closed.
        """
        while (item := next_item(self.project, self.annotator)) is not None:
            mine = Assignment.objects.filter(comparison=item.comparison_id, annotator=self.annotator)
            # Who skipped it in the queue is asked once more, with everybody.
            mine.filter(state=AssignmentState.SKIPPED).update(state=AssignmentState.RELEASED)
            last = mine.filter(state__in=HOLDS_A_SLOT).order_by("pk").last()
            if last is not None and last.state == AssignmentState.LEASED:
                # Handed out by the queue before the session began: already in hand.
                CalibrationAnswer.objects.create(item=item, assignment=last)
                continue
            leased = self._lease_calibration(item.comparison, last)
            if isinstance(leased, Assignment):
                CalibrationAnswer.objects.create(item=item, assignment=leased)
            return leased
        return None

    def _lease_calibration(self, comparison: Comparison, last: Assignment | None) -> Assignment | _Lost:
        comparison.project = self.project
        if last is not None:
            last.comparison = comparison
            return self._lease(comparison, slot=None, retest_of=last, display_order=other_order(last))
        rows = Comparison.objects.filter(pk=comparison.pk)
        if _locked(rows, skip_locked=not self.waits).first() is None:
            return _AllInHands()
        return self._lease(comparison, slot=take_slot(comparison))

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
        start = display_order.number_below(
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
        return display_order.happens(
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
