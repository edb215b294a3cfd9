"""Calibration sessions: make one, hand out its comparisons, reveal, talk, close, retest, delete.

What hides annotations until the reveal is `Comparison.is_sealed`, by way of the default manager of
`Judgment`. It is set and cleared here alone.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import F
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from annotation.choices import AssignmentState, CalibrationDraw, NotificationKind
from annotation.errors import Refusal
from annotation.models import (
    Assignment,
    CalibrationAnswer,
    CalibrationItem,
    CalibrationSession,
    Comparison,
    Judgment,
    Project,
    User,
)
from annotation.selectors import access
from annotation.selectors.calibration import (
    candidates_for_session,
    eligible_participants,
    usable_comparisons,
)
from annotation.services import audit
from annotation.services.assignments.leases import only_self
from annotation.services.inbox import Event, notify
from annotation.services.quality import record_agreement
from annotation.services.reviews import review_after_judgment
from annotation.services.webhooks import tell_of_judgment

MOST_ITEMS = 200
MOST_PARTICIPANTS = 50
LONGEST_NAME = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSession:
    """A session that was made, and the chosen comparisons that are not in it, by reason."""

    session: CalibrationSession
    skipped: Mapping[str | Promise, int]


@transaction.atomic
def create_session(
    *,
    project: Project,
    created_by: User,
    name: str,
    participants: Collection[int],
    comparisons: Sequence[int] = (),
    draw: int = 0,
    draw_from: str = CalibrationDraw.OPEN,
    retest_of: CalibrationSession | None = None,
) -> NewSession:
    """Make a session of the chosen comparisons, or of `draw` drawn at random, and hide their annotations.

    participants: ids of members. Comparisons that cannot be in a session are left out, by reason. Refuses
    who does not manage the project, a name that is empty or too long, fewer than two participants or too
    many, and a session without a comparison or with too many. The participants are notified after the
    commit.
    """
    access.refuse_unless_manager(created_by, project, "manager_calibrates")
    name = name.replace("\x00", "").strip()
    if not name or len(name) > LONGEST_NAME:
        raise Refusal(
            "calibration_name_invalid",
            _("Give the session a name of at most %(most)d characters."),
            field="name",
            most=LONGEST_NAME,
        )
    people = _participants(project, participants)
    if not comparisons:
        if not 1 <= draw <= MOST_ITEMS:
            raise Refusal(
                "calibration_number_invalid",
                _("Choose 1 to %(most)d comparisons."),
                field="number",
                most=MOST_ITEMS,
            )
        ids = [user.pk for user in people]
        comparisons = candidates_for_session(project, ids, draw=draw, draw_from=CalibrationDraw(draw_from))
    keys, skipped = _usable(project, list(dict.fromkeys(comparisons)))
    if not keys:
        raise Refusal(
            "calibration_empty",
            _("None of the comparisons can be in a session. Choose others, or draw them."),
            field="comparisons",
        )
    if len(keys) > MOST_ITEMS:
        raise Refusal(
            "calibration_too_large",
            _("A session has at most %(most)d comparisons; these are %(number)d."),
            field="comparisons",
            most=MOST_ITEMS,
            number=len(keys),
        )
    session = CalibrationSession.objects.create(
        project=project, name=name, created_by=created_by, retest_of=retest_of
    )
    session.participants.set(people)
    items = CalibrationItem.objects.bulk_create(
        CalibrationItem(session=session, comparison_id=pk, index=index) for index, pk in enumerate(keys)
    )
    item_of = {item.comparison_id: item for item in items}
    # What a participant has in hand at this moment is their answer.
    held = Assignment.objects.filter(
        comparison__in=keys,
        annotator__in=people,
        state=AssignmentState.LEASED,
        calibration_answer__isnull=True,
    )
    CalibrationAnswer.objects.bulk_create(
        CalibrationAnswer(item=item_of[lease.comparison_id], assignment=lease) for lease in held
    )
    _seal(session, keys, is_sealed=True)
    audit.record(
        action="calibration.create",
        subject=session,
        actor=created_by,
        project=project,
        details={"comparisons": len(keys), "participants": len(people)},
    )
    _notify(session, NotificationKind.CALIBRATION_BEGUN)
    return NewSession(session=session, skipped=skipped)


@transaction.atomic
def reveal_session(*, session: CalibrationSession, revealed_by: User) -> CalibrationSession:
    """Show everybody's annotations to everybody, and keep which version of each stands at this moment.

    Waits for submissions in flight: each is in the session whole or not at all. Refuses who does not manage
    the project, and a session that is revealed.
    """
    session = _locked(session, revealed_by)
    if session.revealed_at is not None:
        raise Refusal("calibration_revealed", _("The session is revealed already."))
    answers = CalibrationAnswer.objects.filter(item__session=session)
    in_hand = Assignment.objects.filter(calibration_answer__item__session=session)
    list(in_hand.select_for_update(no_key=True, of=only_self()).order_by("pk").values_list("pk"))
    standing = _standing(answers)
    for answer in answers.filter(assignment__in=standing):
        answer.before_id = standing[answer.assignment_id]
        answer.save(update_fields=["before"])
    session.revealed_at, session.revealed_by = timezone.now(), revealed_by
    session.save(update_fields=["revealed_at", "revealed_by"])
    _unseal(session)
    audit.record(
        action="calibration.reveal",
        subject=session,
        actor=revealed_by,
        project=session.project,
        details={"annotations": len(standing)},
    )
    _notify(session, NotificationKind.CALIBRATION_REVEALED)
    return session


@transaction.atomic
def close_session(*, session: CalibrationSession, closed_by: User) -> CalibrationSession:
    """End the talk: what each annotation is now is what the session led to. Nobody is kept from changing it.

    The project's rules of review look at what stands now. Refuses who does not manage the project, and a
    session that is not revealed or is closed.
    """
    session = _locked(session, closed_by)
    require_revealed(session)
    if session.closed_at is not None:
        raise Refusal("calibration_closed", _("The session is closed already."))
    answers = CalibrationAnswer.objects.filter(item__session=session, before__isnull=False)
    standing = _standing(answers)
    for answer in answers:
        answer.after_id = standing.get(answer.assignment_id)
        answer.save(update_fields=["after"])
    session.closed_at = timezone.now()
    session.save(update_fields=["closed_at"])
    session.items.update(is_open=False)
    for item in session.items.select_related("comparison").order_by("comparison_id"):
        item.comparison.project = session.project
        review_after_judgment(comparison=item.comparison)
    audit.record(action="calibration.close", subject=session, actor=closed_by, project=session.project)
    return session


def start_retest(
    *, session: CalibrationSession, started_by: User, is_same: bool, number: int = 0
) -> NewSession:
    """Begin a session of the same people that measures what lasts: of fresh comparisons, or of the same.

    number: of fresh comparisons, drawn at random; as many as the session has by default. A session whose talk
    goes on is closed by it. Refuses what `create_session` and `close_session` refuse.
    """
    first = session.retest_of or session
    with transaction.atomic():
        if session.closed_at is None:
            session = close_session(session=session, closed_by=started_by)
        keys = list(session.items.order_by("index").values_list("comparison_id", flat=True))
        members = {user.pk for user in eligible_participants(session.project)}
        of_session = session.participants.order_by("pk").values_list("pk", flat=True)
        count = CalibrationSession.objects.filter(retest_of=first).count()
        suffix = _(", retest %(number)d") % {"number": count + 1}
        return create_session(
            project=session.project,
            created_by=started_by,
            name=first.name[: LONGEST_NAME - len(suffix)] + suffix,
            participants=[pk for pk in of_session if pk in members],
            comparisons=keys if is_same else (),
            draw=number or len(keys),
            draw_from=CalibrationDraw.OPEN,
            retest_of=first,
        )


@transaction.atomic
def delete_session(*, session: CalibrationSession, deleted_by: User) -> None:
    """Delete a session with its talk. Its annotations stay, and are hidden no longer."""
    session = _locked(session, deleted_by)
    if session.revealed_at is None:
        _unseal(session)
    audit.record(
        action="calibration.delete",
        subject=session,
        actor=deleted_by,
        project=session.project,
        details={"comparisons": session.items.count(), "revealed": session.revealed_at is not None},
    )
    session.delete()


# What holds at this moment.


def require_revealed(session: CalibrationSession) -> None:
    """Refuse a session whose annotations are hidden."""
    if session.revealed_at is None:
        raise Refusal("calibration_not_revealed", _("Reveal the session first."))


def _locked(session: CalibrationSession, actor: User) -> CalibrationSession:
    """Return the session as it is now, which nobody else changes until the transaction ends."""
    access.refuse_unless_manager(actor, session.project, "manager_calibrates")
    locked = (
        CalibrationSession.objects.select_for_update(no_key=True, of=only_self())
        .filter(pk=session.pk)
        .first()
    )
    if locked is None:
        raise Refusal("calibration_deleted", _("The session is deleted."))
    locked.project = session.project
    return locked


def _participants(project: Project, chosen: Collection[int]) -> list[User]:
    people = [user for user in eligible_participants(project) if user.pk in set(chosen)]
    if not 2 <= len(people) <= MOST_PARTICIPANTS:
        raise Refusal(
            "calibration_participants_invalid",
            _("Choose 2 to %(most)d members who take part."),
            field="participants",
            most=MOST_PARTICIPANTS,
        )
    return people


_OPEN = gettext_lazy("in an open session already")
_OTHER = gettext_lazy("gold, quarantined, deleted, of a conversation, or under review")


def _usable(project: Project, chosen: Sequence[int]) -> tuple[list[int], dict[str | Promise, int]]:
    """Lock the chosen comparisons; return those that can be in a session, in their order, and the others."""
    rows = Comparison.objects.select_for_update(no_key=True, of=only_self()).filter(
        pk__in=chosen, project=project
    )
    there = set(rows.order_by("pk").values_list("pk", flat=True))
    of_kind = set(usable_comparisons(project).filter(pk__in=there).values_list("pk", flat=True))
    open_ones = CalibrationItem.objects.filter(comparison__in=of_kind, is_open=True)
    taken = set(open_ones.values_list("comparison_id", flat=True))
    skipped = {_OPEN: len(taken), _OTHER: len(chosen) - len(of_kind)}
    return (
        [pk for pk in chosen if pk in of_kind - taken],
        {why: number for why, number in skipped.items() if number},
    )


def _standing(answers: Any) -> dict[int, int]:
    """Return the current judgment of each submitted assignment of these answers."""
    assignments = answers.filter(assignment__state=AssignmentState.SUBMITTED).values("assignment")
    current = Judgment.everything.current().filter(assignment__in=assignments)
    return dict(current.values_list("assignment_id", "pk"))


def _seal(session: CalibrationSession, comparisons: Sequence[int], *, is_sealed: bool) -> None:
    """Hide the annotations of comparisons or show them, and mark figures computed before as stale."""
    Comparison.objects.filter(pk__in=comparisons).update(is_sealed=is_sealed)
    Project.objects.filter(pk=session.project_id).update(calibration_seals=F("calibration_seals") + 1)
    session.project.refresh_from_db(fields=["calibration_seals"])
    record_agreement(comparisons=comparisons)


def _unseal(session: CalibrationSession) -> None:
    keys = list(session.items.order_by("comparison_id").values_list("comparison_id", flat=True))
    _seal(session, keys, is_sealed=False)
    if session.project.has_webhooks:
        # Their events were held back.
        hidden = Judgment.everything.filter(comparison__in=keys, created_at__gte=session.created_at)
        for judgment in hidden.select_related("comparison").order_by("pk"):
            judgment.comparison.project = session.project
            if judgment.imported_from is None:
                tell_of_judgment(judgment=judgment, comparison=judgment.comparison)


def _notify(session: CalibrationSession, kind: NotificationKind) -> None:
    event = Event(
        kind=kind,
        key=f"{kind}:{session.pk}",
        subject=session.name,
        address=reverse("calibration", args=[session.project.slug, session.pk]),
    )
    notify(project_id=session.project_id, users=session.participants.all(), event=event)
