"""A judgment is stored, once: what it is checked for, supersedes, closes and counts towards."""

import string
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.agreement.records import outcome_between
from annotation.choices import (
    SPENT_STATES,
    AssignmentState,
    HelpArm,
    Polarity,
    Purpose,
    ReviewReason,
    Role,
    Verdict,
    WithholdingState,
)
from annotation.errors import AnsweredElsewhere, InvalidAnswer, LeaseLost, NotAllowed, Refusal
from annotation.models import (
    Assignment,
    Category,
    Comparison,
    Completion,
    Guideline,
    HelpReveal,
    HelpSettings,
    ItemFlag,
    Judgment,
    Project,
    Prompt,
    QuestionVersion,
    RubricVersion,
    User,
    Withholding,
)
from annotation.record.judgment import JudgmentRecord
from annotation.selectors import access
from annotation.selectors.configuration import configuration_of
from annotation.selectors.suggestions import open_reveal_of, suggestions_for
from annotation.services.assignments import display_order
from annotation.services.assignments.leases import (
    Turn,
    count_submission,
    expire_leases_now_and_then,
    held_by,
    lease,
    retake_slot,
    settle_qualification,
    take_slot,
    take_turn,
)
from annotation.services.assignments.next import QUEUE_ORDER, assign_next_in_transaction
from annotation.services.assignments.online import note_judgment
from annotation.services.judgments.checks import check_answer, check_rubric_scores, dense_ranks
from annotation.services.judgments.drafts import discard_draft
from annotation.services.judgments.storing import PartKeys, StoredJudgment, store_parts
from annotation.services.projects.project_questions import close_repeated
from annotation.services.projects.projects import note_guideline_on_screen
from annotation.services.quality import record_agreement_after
from annotation.services.reviews import (
    answer_return_by_revision,
    open_review,
    review_after_judgment,
)
from annotation.services.texts import NewComparison, checked_ids, find_or_write_comparison
from annotation.services.webhooks import tell_of_judgment

# The first pass over a comparison with suggestions: its arm, and what waits for the final pass.


def open_reveal(*, judgment: Judgment, assignment: Assignment) -> HelpReveal | None:
    """Begin the experiment after a first pass; None where the comparison takes no part in it.

    Call it in the transaction that writes the first judgment. The arm hangs on the server's key, the
    annotator and the comparison alone: asking again cannot change it. Retests, qualification and gold items
    with feedback take no part: they measure annotators by what they know without help.
    """
    comparison = assignment.comparison
    project = comparison.project
    if not project.has_help or judgment.supersedes_id is not None:
        return None
    is_known = comparison.purpose == Purpose.GOLD and not project.gold_feedback
    takes_part = comparison.purpose == Purpose.WORK or is_known
    if not takes_part or assignment.retest_of_id is not None or not judgment.blind or judgment.in_bulk:
        return None
    if not suggestions_for(comparison):
        return None
    arm = arm_of(project=project, annotator=judgment.annotator, comparison_id=comparison.pk)
    return HelpReveal.objects.create(
        assignment=assignment,
        arm=arm,
        first_judgment=judgment,
        finished_at=timezone.now() if arm == HelpArm.CONTROL else None,
    )


def arm_of(*, project: Project, annotator: User, comparison_id: int) -> HelpArm:
    """Return the arm of an annotator for a comparison, drawn with the server's key."""
    share = HelpSettings.objects.values_list("control_share", flat=True).get(project=project)
    without = display_order.happens(share, "help", project=project, annotator=annotator, turn=comparison_id)
    return HelpArm.CONTROL if without else HelpArm.HELPED


def refuse_while_open(assignment: Assignment, current: Judgment | None) -> None:
    """Refuse a change of the first pass while suggestions wait for decisions."""
    if current is None or not assignment.comparison.project.has_help:
        return
    if open_reveal_of(assignment) is not None:
        raise InvalidAnswer(
            "suggestions_undecided",
            _("Decide on the suggestions for this comparison first."),
            field="suggestions",
        )


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
    """Store a judgment for an assignment in one transaction.

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
        twin = Judgment.everything.filter(idempotency_key=idempotency_key).first()
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
    in_bulk: bool = False,
) -> tuple[Judgment, Turn]:
    """`submit_judgment` as a part of a larger transaction, and the person's turn as it stands then.

    Where the key was used at the same moment, `IntegrityError` ends that transaction: submit by itself then.
    `in_bulk`: the same judgment is given to several comparisons. No guidelines were on screen, and it takes
    no part in the experiment with suggestions.
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
        doubled = Judgment.everything.filter(idempotency_key=idempotency_key).first()
        if doubled is not None:
            return _require_same_page(doubled, locked), turn
        current = access.current_judgment(locked)
    _require_same_ground(current, stands_on)
    refuse_while_open(locked, current)
    shown = None if in_bulk else guideline or access.current_guideline(project)
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
        in_bulk=in_bulk,
    )
    is_first = locked.state != AssignmentState.SUBMITTED
    if is_first:
        locked.state = AssignmentState.SUBMITTED
        locked.closed_at = timezone.now()
        locked.save(update_fields=["state", "closed_at"])
        turn = count_submission(turn=turn, assignment=locked)
        settle_qualification(assignment=locked)
    else:
        close_repeated(assignment=locked)
    discard_draft(assignment=locked)
    open_reveal(judgment=judgment, assignment=locked)
    if locked.retest_of_id is None:
        record_agreement_after(judgment=judgment, comparison=locked.comparison)
        note_judgment(judgment=judgment, project=locked.comparison.project)
    _send_to_reviewers(judgment, locked, turn if is_first else None)
    assignment.state = locked.state
    return judgment, turn


def _send_to_reviewers(judgment: Judgment, assignment: Assignment, turn: Turn | None) -> None:
    """Open the review that a judgment asks for. A revision (without a turn) answers its return."""
    counts = turn is not None and assignment.retest_of_id is None
    review_after_judgment(
        comparison=assignment.comparison, submitted=turn.submitted if turn and counts else None
    )
    if turn is None:
        answer_return_by_revision(judgment=judgment, assignment=assignment)


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
    in_bulk: bool = False,
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
        **answer.columns,
        idempotency_key=idempotency_key,
        imported_from=imported_from,
        supersedes=supersedes,
        blind=blind and (supersedes is None or supersedes.blind),
        in_bulk=in_bulk,
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
    keys = {part.question for part in record.answers}
    versions = QuestionVersion.objects.filter(question__project=comparison.project_id, question__key__in=keys)
    version_values = versions.values_list("question__key", "number", "pk") if keys else ()
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
        PartKeys(
            categories={category.key: category.pk for category in configured.categories},
            criteria={criterion.key: criterion.pk for criterion in configured.criteria},
            rubric={criterion.key: criterion.pk for criterion in rubric},
            questions={(key, number): pk for key, number, pk in version_values},
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


# Annotators that are programs: they take comparisons beside people, never in their place.
#
# A machine's assignment holds no slot, as those of gold and retests do: whatever it judges, as many people
# judge the comparison as before. What people are shown, and what is counted of them, knows nothing of it.


def create_machine(*, name: str) -> User:
    """A user in whose name a program judges. It cannot sign in, and has no part in any project."""
    machine = User(
        username=f"machine-{uuid.uuid4().hex[:16]}", first_name=name[:150], is_active=False, is_machine=True
    )
    machine.set_unusable_password()
    machine.save()
    return machine


def unjudged_by(machine: User, project: Project, *, round_number: int | None = None) -> QuerySet[Comparison]:
    """Return comparisons of a round that an AI annotator has not had, in no order. None is the newest round.

    Also what they have judged already: that is where the two can be compared.
    """
    had = Assignment.objects.filter(comparison=OuterRef("pk"), annotator=machine, state__in=SPENT_STATES)
    kept_back = Withholding.objects.filter(comparison=OuterRef("pk")).exclude(state=WithholdingState.RELEASED)
    return Comparison.objects.filter(
        ~Exists(had),
        ~Exists(kept_back),
        project=project,
        purpose=Purpose.WORK,
        round_number=access.current_round(project) if round_number is None else round_number,
        size__gte=2,
    )


def lease_to_machine(
    *, project: Project, machine: User, round_number: int | None = None
) -> Assignment | None:
    """Lease the next comparison of a round to a machine, or give the one that it holds. None when nothing is
    left. The round is the newest where none is named.

    In the order in which people get them. It is shown the answers as they were recorded: which order it is
    asked in is the caller's to turn round, and no turn of people's orders is used up.
    """
    _require_machine(machine)
    with transaction.atomic():
        take_turn(project_id=project.pk, annotator_id=machine.pk)
        if held := held_by(machine, project):
            return held[0]
        unjudged = unjudged_by(machine, project, round_number=round_number)
        comparison = unjudged.select_related("prompt").order_by(*QUEUE_ORDER).first()
        if comparison is None:
            return None
        comparison.project = project
        recorded = list(comparison.candidates.order_by("index").values_list("completion_id", flat=True))
        return lease(comparison, machine, slot=None, display_order=recorded)


def judge_as_machine(
    *,
    assignment: Assignment,
    machine: User,
    answer: JudgmentRecord,
    guideline: Guideline | None,
    rubric: RubricVersion | None = None,
) -> Judgment:
    """Store what a machine says of its assignment. Twice is once: the second time returns the first.

    Refuses an answer that contradicts itself. A machine is asked for its verdict and its comment, whatever
    else the project asks of people; no review follows, and no tally of people changes. Its rubric scores are
    by the criteria of `rubric`.
    """
    _require_machine(machine)
    if assignment.annotator_id != machine.pk:
        raise NotAllowed("assigned_to_another", _("This comparison was given to someone else."))
    with transaction.atomic():
        take_turn(project_id=assignment.comparison.project_id, annotator_id=machine.pk)
        if (judged := access.current_judgment(assignment)) is not None:
            return judged
        checked = check_answer(comparison=assignment.comparison, answer=answer, imported=True)
        check_rubric_scores(checked.rubric_scores, list(map(str, assignment.display_order)), rubric)
        judgment = write_judgment(
            assignment=assignment,
            answer=checked,
            # The assignment is judged once, so its own key is as good as one that is drawn.
            idempotency_key=uuid.uuid5(machine.pseudonym, f"assignment {assignment.pk}"),
            guideline=guideline,
            rubric=rubric,
        )
        assignment.state = AssignmentState.SUBMITTED
        assignment.closed_at = timezone.now()
        assignment.save(update_fields=["state", "closed_at"])
        return judgment


def _require_machine(user: User) -> None:
    if not user.is_machine:
        raise NotAllowed("people_use_the_screen", _("People judge on the labelling screen."))


# Judgments that come by other ways than the queue: a vote in an arena, or beside each other.


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
    if doubled := Judgment.everything.filter(idempotency_key=idempotency_key).first():
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


# Questions to ask once before an annotation is stored: the person decides. Nothing here writes.
#
# static/js/label-answers.js has the same rules, so that the browser asks before it shows the next item. The
# server decides: it asks whatever the page did not confirm.

_WEIGHT = {Polarity.ERROR: 1, Polarity.NEUTRAL: 0, Polarity.MERIT: -1}


@dataclass(frozen=True, slots=True)
class Doubt:
    """One question about an answer. `key` names it: the same key was asked before and is not asked again."""

    key: str
    message: str


def doubts_of(answer: JudgmentRecord, assignment: Assignment) -> tuple[Doubt, ...]:
    """Return the questions that an annotation raises, in the letters of the page on which it was made.

    - A ranking of three or more, of all of them, that is exactly the order shown.
    - A winner with more or more severe error spans than the loser: spans count by their severity (1
      where there is none), errors for and merits against. Of several such pairs the one with the
      largest difference, the first in displayed order among equals.
    - No rating at all, where the project has criteria and the responses could be judged.
    """
    configured = configuration_of(assignment.comparison.project)
    categories = {category.key: category for category in configured.categories}
    unrated = (
        bool(configured.asked_criteria) and not answer.ratings and answer.verdict != Verdict.CANNOT_JUDGE
    )
    doubts = (Doubt("unrated", _("No response is rated.")),) if unrated else ()
    if answer.verdict != Verdict.RANKED or len(assignment.display_order) < 2:
        return doubts
    ranks = dense_ranks({int(pk): rank for pk, rank in answer.ranks.items()}, assignment.display_order)
    return (
        *_as_shown(ranks, assignment),
        *_against_marks(answer, ranks, assignment, categories),
        *doubts,
    )


def _as_shown(ranks: Mapping[int, int], assignment: Assignment) -> tuple[Doubt, ...]:
    shown = [ranks.get(pk) for pk in assignment.display_order]
    if len(shown) < 3 or shown != list(range(1, len(shown) + 1)):
        return ()
    return (Doubt("as-shown", _("This is exactly the order shown.")),)


def _against_marks(
    answer: JudgmentRecord,
    ranks: Mapping[int, int],
    assignment: Assignment,
    categories: Mapping[str, Category],
) -> tuple[Doubt, ...]:
    badness = dict.fromkeys(assignment.display_order, 0)
    for span in answer.spans:
        polarity = Polarity(categories[span.category].polarity)
        badness[int(span.completion)] += _WEIGHT[polarity] * (span.severity or 1)
    against = [
        (badness[better] - badness[worse], better, worse)
        for better, worse in permutations(assignment.display_order, 2)
        if badness[better] > badness[worse] and outcome_between(ranks, better, worse) == 1
    ]
    if not against:
        return ()
    _difference, better, worse = max(against, key=lambda pair: pair[0])
    letters = dict(zip(assignment.display_order, string.ascii_uppercase, strict=False))
    winner, loser = letters[better], letters[worse]
    message = _("%(winner)s is ranked above %(loser)s, but has more or more severe error spans.") % {
        "winner": winner,
        "loser": loser,
    }
    return (Doubt(f"against-marks-{winner}-{loser}", message),)
