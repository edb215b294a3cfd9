"""Reviews: what goes to reviewers, what they return, decide and undo. They change no vote."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.urls import reverse
from django.utils import timezone
from django.utils.crypto import salted_hmac
from django.utils.translation import gettext as _

from annotation.agreement.records import agreeing_share, by_comparison, decides_a_pair, outcome_between
from annotation.choices import (
    DecisionKind,
    NotificationKind,
    Purpose,
    ReturnState,
    ReviewReason,
    Role,
    Verdict,
)
from annotation.errors import InvalidAnswer, NotAllowed, Refusal
from annotation.models import (
    Assignment,
    Comparison,
    Judgment,
    Project,
    Review,
    ReviewDecision,
    ReviewReturn,
    User,
)
from annotation.record.judgment import JudgmentRecord
from annotation.selectors import access
from annotation.selectors.judged import judged_in
from annotation.selectors.records import records_of
from annotation.selectors.reviews import (
    as_json,
    is_overruled,
    judgments_that_count,
    not_annotated_by,
    vote_name,
)
from annotation.services import audit
from annotation.services.inbox import Event, notify
from annotation.services.judgments.checks import check_answer, check_ranks, check_text
from annotation.services.judgments.drafts import discard_draft

LONGEST_REASON = 20_000

_URGENCY = {
    ReviewReason.RANDOM: 0,
    ReviewReason.PERIODIC: 1,
    ReviewReason.NEWCOMER: 2,
    ReviewReason.LOW_AGREEMENT: 3,
    ReviewReason.DISAGREEMENT: 4,
    ReviewReason.REQUESTED: 5,
    ReviewReason.FLAGGED: 6,
}
"""Of several reasons the highest stands: what a person reported says more than what was counted."""


class AlreadyDecided(Refusal):
    """Someone else decided this review in the meantime. Nothing was written."""

    def __init__(self, review: Review) -> None:
        super().__init__(
            "review_decided",
            _(
                "%(reviewer)s has decided this comparison meanwhile, and a decision is made once. "
                "What they decided is shown below."
            ),
            reviewer=review.reviewer,
        )
        self.review = review


def open_review(*, comparison: Comparison, reason: ReviewReason) -> Review:
    """Send a comparison to reviewers. Once per comparison: a second call returns the same review.

    While it is undecided a weightier reason takes the place of the first: a flag weighs more than
    a manager's wish, that more than disagreement, and that more than chance. A decided review stays as it is.
    """
    review, created = Review.objects.get_or_create(comparison=comparison, defaults={"reason": reason})
    lighter = [name for name, weight in _URGENCY.items() if weight < _URGENCY[reason]]
    if not created and review.reason in lighter:
        Review.objects.filter(pk=review.pk, decided_at__isnull=True, reason__in=lighter).update(reason=reason)
        review.refresh_from_db()
    return review


def review_after_judgment(*, comparison: Comparison, submitted: int | None = None) -> Review | None:
    """Send a comparison to reviewers if the project's rules ask for it. Call it after each judgment.

    `submitted`: which annotation of its annotator in this project it is, from 1; None for a revision or a
    retest. By it go the first annotations of each annotator and every n-th, at once. Once the last judgment
    needed has come: where annotators disagree, where their agreement is low, or by chance. Call it in the
    transaction that wrote the judgment. Gold and qualification items are left alone.
    """
    project = comparison.project
    if comparison.purpose != Purpose.WORK:
        return None
    review = None
    if submitted is not None and (reason := _reason_by_count(project, submitted)):
        review = open_review(comparison=comparison, reason=reason)
    if not (
        project.review_disagreements
        or project.review_random_share
        or project.review_below_agreement is not None
    ):
        return review
    # Two who submit the last two judgments at once would each miss the other's without this lock.
    locked = Comparison.objects.select_for_update(no_key=True).get(pk=comparison.pk)
    reason = _reason_by_judgments(project, locked)
    return open_review(comparison=locked, reason=reason) if reason else review


def _reason_by_count(project: Project, submitted: int) -> ReviewReason | None:
    if project.review_first is not None and submitted <= project.review_first:
        return ReviewReason.NEWCOMER
    if project.review_every is not None and submitted % project.review_every == 0:
        return ReviewReason.PERIODIC
    return None


def _reason_by_judgments(project: Project, locked: Comparison) -> ReviewReason | None:
    judgments = list(judgments_that_count(locked).prefetch_related("ranks"))
    if len(judgments) < locked.overlap:
        return None
    if project.review_disagreements and any(
        disagree(_preference_of(first), _preference_of(second))
        for first, second in combinations(judgments, 2)
    ):
        return ReviewReason.DISAGREEMENT
    if project.review_below_agreement is not None:
        # A worker may not have recorded it yet.
        items = by_comparison(judged_in(project, narrowed=Q(comparison=locked.pk)))
        share = agreeing_share(items.get(locked.pk, ()))
        if share is not None and share < project.review_below_agreement:
            return ReviewReason.LOW_AGREEMENT
    if drawn_for_review(locked.pk, project.review_random_share):
        return ReviewReason.RANDOM
    return None


def disagree(first: tuple[str, Mapping[int, int]], second: tuple[str, Mapping[int, int]]) -> bool:
    """Return True where two answers, each a verdict with its ranks, contradict each other.

    They do when some pair of completions is ordered one way by one and the other way by the other;
    when one could judge and the other could not; and when one calls all good and the other all
    bad. A tie against a win is no contradiction: the one saw a difference that the other did not.
    """
    verdicts = {first[0], second[0]}
    if Verdict.NOT_ASKED in verdicts:
        return False
    if Verdict.CANNOT_JUDGE in verdicts:
        return len(verdicts) > 1
    if verdicts == {Verdict.BOTH_GOOD, Verdict.BOTH_BAD}:
        return True
    # A pair of which neither has a rank in one of the two is ordered by one at most.
    named = sorted(first[1].keys() | second[1].keys())
    return any(
        (outcome_between(first[1], a, b) or 0) * (outcome_between(second[1], a, b) or 0) < 0
        for a, b in combinations(named, 2)
    )


def drawn_for_review(comparison_id: int, share: float) -> bool:
    """Return True where chance sends a comparison to reviewers: the same answer however often it is asked."""
    mac = salted_hmac("annotation.review", str(comparison_id), algorithm="sha256").digest()
    return int.from_bytes(mac[:8], "big") < share * 2**64


def decide_review(
    *,
    review: Review,
    reviewer: User,
    verdict: str = "",
    ranks: Mapping[int, int] | None = None,
    comment: str = "",
    answer: JudgmentRecord | None = None,
) -> Review:
    """Decide a comparison, once. The votes stay as they are; a snapshot learns from the decision.

    With an `answer` everything that the labelling screen asks is decided, else the preference alone. Returns
    that nobody has answered are withdrawn; who flagged the comparison and who was overruled is notified.
    Sent twice by one person it is one decision. Refuses who is no reviewer or has the comparison as
    annotator (`NotAllowed`), what contradicts itself (`InvalidAnswer`), and what someone else has
    decided meanwhile (`AlreadyDecided`, with their decision).
    """
    _require_reviewer(review, reviewer)
    reason = _checked_text(comment, "comment")
    checked = _checked_decision(review, verdict, ranks or {}, answer)
    now = timezone.now()
    with transaction.atomic():
        updated = Review.objects.filter(pk=review.pk, decided_at__isnull=True).update(
            verdict=checked.verdict,
            ranks=checked.ranks,
            record=None if answer is None else as_json(checked),
            comment=reason,
            reviewer=reviewer,
            decided_at=now,
        )
        if updated:
            decision = ReviewDecision.objects.create(
                review=review,
                kind=DecisionKind.DECIDED,
                reviewer=reviewer,
                verdict=checked.verdict,
                ranks=checked.ranks,
                record=None if answer is None else as_json(checked),
                comment=reason,
                created_at=now,
            )
            review.returns.filter(state=ReturnState.OPEN).update(state=ReturnState.WITHDRAWN, closed_at=now)
            _tell_who_flagged(review, decision)
            _tell_overruled(review, decision, checked)
    review.refresh_from_db()
    if not updated and review.reviewer_id != reviewer.pk:
        raise AlreadyDecided(review)
    return review


def undo_decision(*, review: Review, user: User, reason: str = "") -> Review:
    """Take a decision back: the comparison waits for reviewers again, and the record keeps both.

    For who decided it, and for managers; not for who has the comparison as annotator. Snapshots that were
    frozen with the decision stay as they are.
    """
    _require_reviewer(review, user)
    is_manager = access.may(user, review.comparison.project, Role.MANAGER)
    if review.decided_at is not None and review.reviewer_id != user.pk and not is_manager:
        raise NotAllowed(
            "decision_of_another",
            _("Only %(reviewer)s or a manager can undo this decision."),
            reviewer=review.reviewer,
        )
    why = _checked_text(reason, "comment")
    with transaction.atomic():
        undone = Review.objects.filter(pk=review.pk, decided_at__isnull=False).update(
            verdict="", ranks={}, record=None, comment="", reviewer=None, decided_at=None
        )
        if not undone:
            raise Refusal(
                "review_not_decided",
                _("This comparison is not decided, so there is nothing to undo. Reload the page."),
            )
        ReviewDecision.objects.create(
            review=review,
            kind=DecisionKind.UNDONE,
            reviewer=user,
            comment=why,
            created_at=timezone.now(),
        )
        audit.record(
            action="review.undo",
            subject=review,
            actor=user,
            project=review.comparison.project,
            details={"comparison": review.comparison_id},
        )
    review.refresh_from_db()
    return review


def _checked_text(text: str, field: str) -> str:
    check_text(text, field)
    if len(text) > LONGEST_REASON:
        raise InvalidAnswer(
            "reason_too_long",
            _("This text has at most %(most)d characters."),
            field=field,
            most=LONGEST_REASON,
        )
    return text.replace("\r\n", "\n").strip()


def _checked_decision(
    review: Review, verdict: str, ranks: Mapping[int, int], answer: JudgmentRecord | None
) -> JudgmentRecord:
    """Return the decision as it is stored; its comment is empty, since the reason stands by itself."""
    comparison = review.comparison
    ids = list(comparison.completions.values_list("pk", flat=True))
    if answer is None:
        if verdict == Verdict.NOT_ASKED:
            raise InvalidAnswer(
                "preference_missing",
                _("A review needs a decision: choose a preference, or “cannot judge”."),
                field="verdict",
            )
        stored = check_ranks(verdict=verdict, ranks=ranks, completion_ids=ids)
        checked = JudgmentRecord(verdict=verdict, ranks={str(pk): rank for pk, rank in stored.items()})
    else:
        checked = check_answer(comparison=comparison, answer=replace(answer, comment="", active_seconds=None))
    is_order = checked.verdict == Verdict.RANKED and len(checked.ranks) > 1
    if is_order and not decides_a_pair({int(pk): rank for pk, rank in checked.ranks.items()}, len(ids)):
        return replace(checked, verdict=Verdict.EQUAL)
    return checked


def _tell_who_flagged(review: Review, decision: ReviewDecision) -> None:
    """Tell the annotators who flagged the comparison."""
    flagged = Assignment.objects.filter(
        comparison=review.comparison, flags__isnull=False, retest_of__isnull=True
    )
    for assignment in flagged.select_related("annotator").distinct():
        _tell_annotator(review, assignment, NotificationKind.REVIEW_DECIDED, decision)


def _tell_overruled(review: Review, decision: ReviewDecision, decided: JudgmentRecord) -> None:
    """Tell the annotators whose annotation says something else than the decision, with the reason."""
    votes = list(judgments_that_count(review.comparison).select_related("assignment__annotator"))
    records = records_of([vote.pk for vote in votes])
    for vote in votes:
        if is_overruled(records[vote.pk], decided, whole=decision.record is not None):
            _tell_annotator(review, vote.assignment, NotificationKind.OVERRULED, decision)


def _tell_annotator(
    review: Review, assignment: Assignment, kind: NotificationKind, decision: ReviewDecision
) -> None:
    project = review.comparison.project
    event = Event(
        kind=kind,
        key=f"review:{review.pk}:{decision.pk}:{kind}",
        address=reverse("ask", args=[project.slug, assignment.pk]),
        excerpt=decision.comment if kind == NotificationKind.OVERRULED else "",
    )
    notify(project_id=project.pk, users=[assignment.annotator], event=event)


# Returns: a reviewer asks an annotator to look at their annotation again; they correct it or object.


def return_annotation(*, review: Review, vote: str, reviewer: User, comment: str) -> ReviewReturn:
    """Return an annotation to its annotator with a comment. The comparison waits for the answer.

    vote: the opaque name of the annotation on the review's page, which names one version of it. Sent twice
    it is one return. Refuses who may not decide the review (`NotAllowed`), a decided review
    (`AlreadyDecided`), a version that its annotator has changed since, an annotation that is returned
    already, and one whose annotator cannot answer.
    """
    _require_reviewer(review, reviewer)
    text = _checked_text(comment, "comment")
    if not text:
        raise InvalidAnswer(
            "return_comment_missing", _("Write what the annotator should look at."), field="comment"
        )
    project = review.comparison.project
    try:
        with transaction.atomic():
            judgment = _voted(review, vote)
            # As in a submission the assignment is locked before the review.
            assignment = Assignment.objects.select_for_update(no_key=True).get(pk=judgment.assignment_id)
            if Judgment.everything.filter(supersedes=judgment).exists():
                raise _changed_meanwhile()
            locked = Review.objects.select_for_update(no_key=True).get(pk=review.pk)
            if locked.decided_at is not None:
                raise AlreadyDecided(locked)
            open_return = assignment.returns.filter(state=ReturnState.OPEN).first()
            if open_return is not None:
                if (open_return.returned_by_id, open_return.comment) == (reviewer.pk, text):
                    return open_return
                raise _returned_already()
            annotator = assignment.annotator
            if not annotator.is_active or not access.may(annotator, project, Role.ANNOTATOR):
                raise Refusal(
                    "annotator_left",
                    _("This annotator can no longer answer. Decide the comparison yourself."),
                    field="vote",
                )
            returned = ReviewReturn.objects.create(
                review=review,
                assignment=assignment,
                judgment=judgment,
                annotator=annotator,
                returned_by=reviewer,
                comment=text,
            )
            if not project.has_returns:
                Project.objects.filter(pk=project.pk).update(has_returns=True)
            event = Event(
                kind=NotificationKind.RETURNED,
                key=f"return:{returned.pk}",
                address=reverse("revise", args=[project.slug, assignment.pk]),
                excerpt=text,
            )
            notify(project_id=project.pk, users=[annotator], event=event)
            return returned
    except IntegrityError as error:
        raise _returned_already() from error


def object_to_return(*, assignment: Assignment, annotator: User, text: str) -> ReviewReturn:
    """Answer the open return of an annotation with an objection; the annotation stays as it is.

    Refuses everyone but its annotator (`NotAllowed`), an empty text, and an annotation that no longer waits
    for an answer.
    """
    if assignment.annotator_id != annotator.pk:
        raise NotAllowed("assigned_to_another", _("This comparison was given to someone else."))
    objection = _checked_text(text, "objection")
    if not objection:
        raise InvalidAnswer("objection_missing", _("Write why the annotation is right."), field="objection")
    with transaction.atomic():
        returned = _answer_return(assignment, state=ReturnState.OBJECTED, objection=objection)
        discard_draft(assignment=assignment)
        if returned is None:
            raise Refusal(
                "nothing_returned",
                _("This annotation no longer waits for an answer. Continue with your next comparison."),
            )
    return returned


def answer_return_by_revision(*, judgment: Judgment, assignment: Assignment) -> None:
    """Close the open return of an annotation that was revised. Call it in the transaction of the revision."""
    _answer_return(assignment, state=ReturnState.CORRECTED, revision=judgment)


def _answer_return(assignment: Assignment, **answer: object) -> ReviewReturn | None:
    """Close an open return in its transaction, and tell who returned the annotation; None for none."""
    returned = ReviewReturn.objects.filter(assignment=assignment, state=ReturnState.OPEN).first()
    if returned is None:
        return None
    values = {"answered_by_id": returned.annotator_id, "closed_at": timezone.now(), **answer}
    if not ReviewReturn.objects.filter(pk=returned.pk, state=ReturnState.OPEN).update(**values):
        return None
    returned.refresh_from_db()
    project = assignment.comparison.project
    event = Event(
        kind=NotificationKind.RETURN_ANSWERED,
        key=f"return:{returned.pk}:answer",
        address=reverse("review", args=[project.slug, returned.review_id]),
        excerpt=returned.objection,
    )
    notify(project_id=project.pk, users=[returned.returned_by], event=event)
    return returned


def _voted(review: Review, vote: str) -> Judgment:
    for judgment in judgments_that_count(review.comparison):
        if vote_name(review, judgment) == vote:
            return judgment
    raise _changed_meanwhile()


def _changed_meanwhile() -> Refusal:
    return Refusal(
        "vote_changed",
        _("This annotation is not as it was when the page was opened. Reload the page and look again."),
        field="vote",
    )


def _returned_already() -> Refusal:
    return Refusal(
        "returned_already",
        _("This annotation is with its annotator already. Wait for the answer, or decide."),
        field="vote",
    )


# Who may review.


def may_review(review: Review, reviewer: User) -> bool:
    """Return True for a reviewer who may decide an open review: not its annotator."""
    is_reviewer = access.may(reviewer, review.comparison.project, Role.REVIEWER)
    return is_reviewer and not_annotated_by(Review.objects.filter(pk=review.pk), reviewer).exists()


def _require_reviewer(review: Review, reviewer: User) -> None:
    project = review.comparison.project
    if not access.may(reviewer, project, Role.REVIEWER):
        raise NotAllowed(
            "not_a_reviewer",
            _("%(reviewer)s is not a reviewer of %(project)s. Ask its manager for that role."),
            reviewer=reviewer,
            project=project,
        )
    if not may_review(review, reviewer):
        raise NotAllowed(
            "own_comparison", _("You have this comparison as an annotator. Someone else must review it.")
        )


def _preference_of(judgment: Judgment) -> tuple[str, dict[int, int]]:
    return judgment.verdict, {place.completion_id: place.rank for place in judgment.ranks.all()}
