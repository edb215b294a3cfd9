"""A judgment is stored, once: what it is checked for, supersedes, closes and counts towards."""

import uuid
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import AssignmentState, Purpose, ReviewReason, Role
from annotation.errors import AnsweredElsewhere, InvalidAnswer, LeaseLost, NotAllowed, Refusal
from annotation.models import (
    Assignment,
    Comparison,
    Completion,
    Guideline,
    ItemFlag,
    Judgment,
    Project,
    RubricVersion,
    User,
)
from annotation.record.judgment import JudgmentRecord
from annotation.selectors import access
from annotation.selectors.configuration import configuration_of
from annotation.services.assignments.leases import expire_leases_now_and_then, settle_qualification
from annotation.services.assignments.next import assign_next_in_transaction
from annotation.services.assignments.online import note_judgment
from annotation.services.assignments.slots import Turn, count_submission, retake_slot, take_turn
from annotation.services.judgments.checks import check_answer
from annotation.services.judgments.drafts import discard_draft
from annotation.services.judgments.storing import Keys, StoredJudgment, store_parts
from annotation.services.projects.projects import note_guideline_on_screen
from annotation.services.quality.agreement import record_agreement_after
from annotation.services.quality.reviews import open_review, review_after_judgment
from annotation.services.suggestions.reveals import open_reveal, refuse_while_open
from annotation.services.webhooks import tell_of_judgment


def submit_judgment(
    *,
    assignment: Assignment,
    annotator: User,
    answer: JudgmentRecord,
    idempotency_key: uuid.UUID,
    guideline: Guideline | None = None,
    rubric: RubricVersion | None = None,
    stands_on: int | None = None,
) -> Judgment:
    """Store what `annotator` says about `assignment`, whole or not at all.

    - Sent twice with one key it is one judgment; the second time returns the first.
    - A submitted assignment may be answered again: the new judgment supersedes the current one.
    - After the lease has gone it is taken while a place is free, else refused (`LeaseLost`).
    - Refuses another person's assignment (`NotAllowed`), marks on another text (`StaleAnswer`)
      and whatever contradicts itself (`InvalidAnswer`), naming the part in `field`.

    `guideline` is the version that was on screen; the current one when left out. `rubric` likewise, for a
    judgment that rates by its criteria. `stands_on` is the
    judgment that the page began with, 0 for none: when another stands now, `AnsweredElsewhere`
    leaves the choice to the person. Left out, whatever stands is superseded. Where the project helps its
    annotators, a first judgment is the first pass: see `annotation.services.suggestions`.
    """
    try:
        with transaction.atomic():
            judgment, _turn = submit_in_transaction(
                assignment=assignment,
                annotator=annotator,
                answer=answer,
                idempotency_key=idempotency_key,
                guideline=guideline,
                rubric=rubric,
                stands_on=stands_on,
            )
            return judgment
    except IntegrityError:
        # The same key was written by another request, on this comparison or on another.
        twin = Judgment.objects.filter(idempotency_key=idempotency_key).first()
        if twin is None:
            raise
        return _require_same_page(twin, assignment)


def submit_in_transaction(
    *,
    assignment: Assignment,
    annotator: User,
    answer: JudgmentRecord,
    idempotency_key: uuid.UUID,
    guideline: Guideline | None = None,
    rubric: RubricVersion | None = None,
    stands_on: int | None = None,
) -> tuple[Judgment, Turn]:
    """`submit_judgment` as a part of a larger transaction, and the person's turn as it stands then.

    Where the key was used at the same moment, `IntegrityError` ends that transaction: submit by itself then.
    """
    turn = take_turn(project_id=assignment.comparison.project_id, annotator_id=annotator.pk)
    # The row as it is now, which nobody else changes until the transaction ends.
    locked = Assignment.objects.select_for_update(no_key=True).get(pk=assignment.pk)
    # Of a comparison nothing changes that matters here.
    locked.comparison = assignment.comparison
    if locked.annotator_id != annotator.pk:
        raise NotAllowed("assigned_to_another", _("This comparison was given to someone else."))
    project = locked.comparison.project
    membership = access.membership_of(annotator, project)
    if not access.allows(annotator, membership, Role.ANNOTATOR):
        raise NotAllowed(
            "not_an_annotator",
            _("%(annotator)s is not an annotator of %(project)s. Ask its manager to add you."),
            annotator=annotator,
            project=project,
        )
    current = None
    # What is only leased has no answer yet; that a key is used once the database itself sees to.
    if locked.state != AssignmentState.LEASED:
        doubled = Judgment.objects.filter(idempotency_key=idempotency_key).first()
        if doubled is not None:
            return _require_same_page(doubled, locked), turn
        current = access.current_judgment(locked)
    _require_same_ground(current, stands_on)
    refuse_while_open(locked, current)
    shown = guideline or access.current_guideline(project)
    if shown is not None and shown.project_id != project.pk:
        raise InvalidAnswer(
            "guideline_of_other_project", _("The guideline belongs to another project."), field="guideline"
        )
    checked = check_answer(comparison=locked.comparison, answer=answer, shown=locked.display_order)
    if locked.state not in (AssignmentState.LEASED, AssignmentState.SUBMITTED):
        retake_slot(assignment=locked)
    if shown is not None and membership is not None:
        note_guideline_on_screen(membership=membership, guideline=shown)
    judgment = write_judgment(
        assignment=locked,
        answer=checked,
        idempotency_key=idempotency_key,
        guideline=shown,
        rubric=_rubric_of(project, checked, rubric),
        supersedes=current,
    )
    if locked.state != AssignmentState.SUBMITTED:
        locked.state = AssignmentState.SUBMITTED
        locked.closed_at = timezone.now()
        locked.save(update_fields=["state", "closed_at"])
        turn = count_submission(turn=turn, assignment=locked)
        settle_qualification(assignment=locked)
    discard_draft(assignment=locked)
    open_reveal(judgment=judgment, assignment=locked)
    if locked.retest_of_id is None:
        record_agreement_after(judgment=judgment, comparison=locked.comparison)
        note_judgment(judgment=judgment, project=locked.comparison.project)
    review_after_judgment(comparison=locked.comparison)
    assignment.state = locked.state
    return judgment, turn


def _rubric_of(
    project: Project, answer: JudgmentRecord, on_screen: RubricVersion | None
) -> RubricVersion | None:
    """Return the rubric version that the ratings go by; None without a rating by one of its criteria."""
    configured = configuration_of(project)
    version = on_screen or configured.rubric
    if version is None or not answer.ratings:
        return None
    if version.rubric.project_id != project.pk:
        raise InvalidAnswer(
            "rubric_of_other_project", _("The rubric belongs to another project."), field="rubric"
        )
    keys = {criterion.key for criterion in version.criteria.all()}
    return version if any(rating.criterion in keys for rating in answer.ratings) else None


def _require_same_page(written: Judgment, assignment: Assignment) -> Judgment:
    """Return the judgment written with this page's key, if it is about this comparison."""
    if written.assignment_id != assignment.pk:
        raise InvalidAnswer(
            "idempotency_key_reused",
            _("This page's key was used for another comparison. Reload the page and submit again."),
            field="idempotency_key",
        )
    return written


def _require_same_ground(current: Judgment | None, stands_on: int | None) -> None:
    if stands_on is not None and stands_on != (current.pk if current else 0):
        raise AnsweredElsewhere(
            "submitted_since",
            _("You have submitted another annotation of this comparison since this page was opened."),
        )


def write_judgment(
    *,
    assignment: Assignment,
    answer: JudgmentRecord,
    idempotency_key: uuid.UUID,
    guideline: Guideline | None,
    rubric: RubricVersion | None = None,
    supersedes: Judgment | None = None,
    imported_from: dict[str, Any] | None = None,
    blind: bool = True,
) -> Judgment:
    """Write the rows of a checked answer. Call it inside a transaction.

    `supersedes` is what stands for the assignment up to now; None for a first answer. A revision of an
    unblinded judgment is unblinded, too: its annotator has seen the names.
    """
    judgment = Judgment(
        assignment=assignment,
        comparison_id=assignment.comparison_id,
        annotator_id=assignment.annotator_id,
        guideline=guideline,
        rubric=rubric,
        verdict=answer.verdict,
        strength=answer.strength,
        comment=answer.comment,
        active_seconds=answer.active_seconds,
        idempotency_key=idempotency_key,
        imported_from=imported_from,
        supersedes=supersedes,
        blind=blind and (supersedes is None or supersedes.blind),
    )
    judgment.save()
    _write_parts(judgment, assignment.comparison, answer)
    if imported_from is None:
        tell_of_judgment(judgment=judgment, comparison=assignment.comparison)
    return judgment


def _write_parts(judgment: Judgment, comparison: Comparison, record: JudgmentRecord) -> None:
    configured = configuration_of(comparison.project)
    rubric = judgment.rubric.criteria.all() if record.rubric_scores and judgment.rubric else ()
    corrected = [int(part.completion) for part in record.corrections]
    texts = Completion.objects.filter(pk__in=corrected).values_list("pk", "text") if corrected else ()
    store_parts(
        [
            StoredJudgment(
                judgment=judgment.pk,
                assignment=judgment.assignment_id,
                record=record,
                completions={str(pk): pk for pk in judgment.assignment.display_order},
                passages=comparison.prompt.context if record.missing else (),
                texts={str(pk): text for pk, text in texts},
            )
        ],
        Keys(
            categories={category.key: category.pk for category in configured.categories},
            criteria={criterion.key: criterion.pk for criterion in configured.criteria},
            rubric={criterion.key: criterion.pk for criterion in rubric},
        ),
    )


def flag_item(*, assignment: Assignment, annotator: User, reason: str, details: str = "") -> ItemFlag:
    """Report a comparison to reviewers. It stays in hand: a flag neither judges nor skips it.

    The same report sent twice is one. Refuses another person's assignment (`NotAllowed`), one that is
    neither in hand nor submitted (`LeaseLost`), and a report without a reason (`InvalidAnswer`).
    Gold and qualification items are noted but not reviewed: their answer is known.
    """
    reason, details = reason.strip(), details.strip()
    for name, text in (("reason", reason), ("details", details)):
        if "\x00" in text:
            raise InvalidAnswer(
                "text_holds_nul", _("The text holds the character NUL, which cannot be stored."), field=name
            )
    if not reason:
        raise InvalidAnswer("flag_reason_missing", _("Choose a reason."), field="reason")
    with transaction.atomic():
        locked = Assignment.objects.select_for_update(no_key=True).get(pk=assignment.pk)
        if locked.annotator_id != annotator.pk:
            raise NotAllowed("assigned_to_another", _("This comparison was given to someone else."))
        if locked.state not in (AssignmentState.LEASED, AssignmentState.SUBMITTED):
            raise LeaseLost(
                "lease_lost", _("You no longer have this comparison, so it cannot be flagged from here.")
            )
        known = locked.flags.filter(reason=reason, details=details).first()
        flag = known or ItemFlag.objects.create(assignment=locked, reason=reason, details=details)
        if locked.comparison.purpose == Purpose.WORK:
            open_review(comparison=locked.comparison, reason=ReviewReason.FLAGGED)
    return flag


def submit_and_get_next(
    *,
    assignment: Assignment,
    annotator: User,
    answer: JudgmentRecord,
    idempotency_key: uuid.UUID,
    guideline: Guideline | None = None,
    rubric: RubricVersion | None = None,
    stands_on: int | None = None,
) -> Assignment | None:
    """`submit_judgment`, and then `assign_next`, written to disk together.

    A database waits for the disk at the end of every transaction; one instead of two halves the
    time that everyone else waits for it. Refuses as `submit_judgment` does. None when nothing could
    be leased in the same breath: ask `assign_next` then, which tells why.
    """
    project = assignment.comparison.project
    expire_leases_now_and_then(project=project)
    answered: dict[str, Any] = {
        "assignment": assignment,
        "annotator": annotator,
        "answer": answer,
        "idempotency_key": idempotency_key,
        "guideline": guideline,
        "rubric": rubric,
        "stands_on": stands_on,
    }
    try:
        # Without savepoints, which would be four statements more: of a clash nothing stays.
        with transaction.atomic():
            _judgment, turn = submit_in_transaction(**answered)
            try:
                return assign_next_in_transaction(project=project, annotator=annotator, turn=turn)
            except Refusal:
                return None
    except IntegrityError:
        submit_judgment(**answered)
        return None
