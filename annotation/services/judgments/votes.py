"""Judgments that come by other ways than the queue: a vote in an arena, or beside each other."""

import uuid
from collections.abc import Sequence

from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import AssignmentState, Purpose
from annotation.errors import InvalidAnswer, Refusal
from annotation.models import Assignment, Comparison, Completion, Judgment, Prompt, User
from annotation.record.judgment import JudgmentRecord
from annotation.selectors import access
from annotation.services.assignments.slots import count_submission, take_slot, take_turn
from annotation.services.judgments.checks import check_answer
from annotation.services.judgments.submission import write_judgment
from annotation.services.quality.agreement import record_agreement_after
from annotation.services.texts.comparisons import NewComparison, checked_ids, find_or_write_comparison


def voted_comparison(
    *,
    prompt: Prompt,
    completions: Sequence[Completion],
    round_number: int,
    purpose: Purpose,
    blind: bool = True,
) -> Comparison:
    """The comparison of these completions that a vote is about, made where there is none.

    One of work has one place, for who votes; one of an arena has none: no annotator meets it in the
    queue, and nothing is ever learned from it. Idempotent like `create_comparison`. A text that names
    its model is not withheld here: whoever shows it has looked. One for an unblinded vote has no place
    either: the vote takes none, and nobody asked for others.
    """
    new = NewComparison(
        project_id=prompt.project_id,
        prompt_id=prompt.pk,
        completions=checked_ids(prompt, completions),
        round_number=round_number,
        purpose=purpose,
        open_slots=1 if blind and purpose == Purpose.WORK else 0,
    )
    return find_or_write_comparison(new)


def record_vote(
    *,
    comparison: Comparison,
    voter: User,
    shown: Sequence[int],
    answer: JudgmentRecord,
    idempotency_key: uuid.UUID,
    blind: bool = True,
) -> Judgment:
    """Store what `voter` says of a comparison that they met outside the queue. Call it in a transaction.

    shown: completion ids in the order in which they stood. Sent twice with one key it is one judgment;
    who judged this comparison before changes their mind. Whether this person may vote is for the caller to
    decide. It holds a place where one is free, and is one judgment more where none is.
    Not `blind`, the voter knew the models' names: the judgment is marked so, holds no place, and never
    replaces a blind one. Refuses (`InvalidAnswer`) what contradicts itself.
    """
    turn = take_turn(project_id=comparison.project_id, annotator_id=voter.pk)
    if doubled := Judgment.objects.filter(idempotency_key=idempotency_key).first():
        if doubled.comparison_id == comparison.pk and doubled.annotator_id == voter.pk:
            return doubled
        raise InvalidAnswer(
            "idempotency_key_reused", _("This page's key was used for another vote."), field="idempotency_key"
        )
    checked = check_answer(comparison=comparison, answer=answer, imported=True)
    before = _held(comparison, voter)
    current = access.current_judgment(before) if before else None
    if not blind and current is not None and current.blind:
        raise Refusal(
            "voted_blind_before",
            _(
                "You annotated these responses blind before. That annotation stands: one made "
                "with the names visible does not replace it."
            ),
            field="verdict",
        )
    if before is None:
        assignment = _submitted(comparison, voter, shown, blind=blind)
        count_submission(turn=turn, assignment=assignment)
    else:
        assignment = before
        assignment.comparison = comparison
        if assignment.state != AssignmentState.SUBMITTED:
            assignment.state = AssignmentState.SUBMITTED
            assignment.closed_at = timezone.now()
            assignment.display_order = list(shown)
            assignment.save(update_fields=["state", "closed_at", "display_order"])
            count_submission(turn=turn, assignment=assignment)
    judgment = write_judgment(
        assignment=assignment,
        answer=checked,
        idempotency_key=idempotency_key,
        # No rules were on screen.
        guideline=None,
        supersedes=current,
        blind=blind,
    )
    record_agreement_after(judgment=judgment, comparison=comparison)
    return judgment


def _held(comparison: Comparison, voter: User) -> Assignment | None:
    """Return this person's assignment of the comparison, from the queue or by an earlier vote."""
    holds = (AssignmentState.LEASED, AssignmentState.SUBMITTED)
    return (
        Assignment.objects.select_for_update(no_key=True)
        .filter(comparison=comparison, annotator=voter, retest_of__isnull=True, state__in=holds)
        .first()
    )


def _submitted(comparison: Comparison, voter: User, shown: Sequence[int], *, blind: bool) -> Assignment:
    now = timezone.now()
    # Who skipped it in the queue and votes on it now has changed their mind.
    Assignment.objects.filter(
        comparison=comparison, annotator=voter, state=AssignmentState.SKIPPED, retest_of__isnull=True
    ).update(state=AssignmentState.RELEASED)
    return Assignment.objects.create(
        comparison=comparison,
        annotator=voter,
        slot=take_slot(comparison) if blind else None,
        state=AssignmentState.SUBMITTED,
        display_order=list(shown),
        leased_at=now,
        lease_expires_at=now,
        closed_at=now,
    )
