"""Quality control: agreement, gold items and reviews."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple
from itertools import combinations

from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef, Q
from django.urls import reverse
from django.utils import timezone
from django.utils.crypto import salted_hmac
from django.utils.translation import gettext as _

from annotation.agreement.records import (
    Selection,
    agreeing_share,
    by_comparison,
    decides_a_pair,
    outcome_between,
)
from annotation.choices import (
    AssignmentState,
    NotificationKind,
    Purpose,
    ReviewReason,
    Role,
    TaskName,
    Verdict,
)
from annotation.errors import InvalidAnswer, NotAllowed, Refusal
from annotation.models import (
    Assignment,
    Comparison,
    Completion,
    GoldAnswer,
    Judgment,
    Project,
    Prompt,
    Review,
    User,
)
from annotation.selectors import access
from annotation.selectors.allocation import allotted_to
from annotation.selectors.judged import judged_in
from annotation.selectors.reviews import judgments_that_count, not_annotated_by
from annotation.services.assignments import display_order
from annotation.services.assignments.leases import only_self
from annotation.services.inbox import Event, notify
from annotation.services.jobs import send, send_after_commit
from annotation.services.judgments.checks import check_ranks
from annotation.services.texts import NewComparison, checked_ids, write_comparison

# Agreement of annotators, and reports that a worker computes.


def record_agreement_after(*, judgment: Judgment, comparison: Comparison) -> None:
    """Record the agreement of a comparison of which a judgment was written. Call it in its transaction.

    Costs one query where nobody else judged the comparison. No annotator waits for it: where someone else
    has locked the comparison, a worker records it once this transaction is committed.
    """
    if comparison.purpose != Purpose.WORK:
        return
    others = Judgment.objects.filter(comparison=comparison).exclude(annotator_id=judgment.annotator_id)
    # With a lock alone would two who submit at once see each other.
    if comparison.overlap == 1 and not others.exists():
        return
    if not record_agreement(comparisons=[comparison.pk], skip_locked=True):
        send_after_commit(TaskName.RECORD_AGREEMENT, comparison.pk)


@transaction.atomic
def record_agreement(*, comparisons: Collection[int], skip_locked: bool = False) -> int:
    """Record the agreement of comparisons of one project; return how many were looked at.

    It is None where fewer than two people judged; machines do not count. Four queries at most where
    agreement changes little, whatever their number. skip_locked: leave out those that someone else has
    locked, instead of waiting for them.
    """
    locked = Comparison.objects.select_for_update(no_key=True, skip_locked=skip_locked, of=only_self())
    work = locked.filter(pk__in=comparisons, purpose=Purpose.WORK).select_related("project")
    rows = list(work.order_by("pk").only("agreement", "project"))
    if not rows:
        return 0
    of_them = Q(comparison__in=[row.pk for row in rows])
    items = by_comparison(judged_in(rows[0].project, narrowed=of_them))
    changed = []
    for row in rows:
        share = agreeing_share(items.get(row.pk, ()))
        if share != row.agreement:
            row.agreement = share
            changed.append(row)
    if changed:
        Comparison.objects.bulk_update(changed, ["agreement"], batch_size=500)
    return len(rows)


def request_report(*, project_id: int, selection: Selection) -> bool:
    """Ask a worker to compute a report; return False where no message could be sent."""
    return send(TaskName.COMPUTE_REPORT, project_id, *astuple(selection))


# Gold items: comparisons whose answer is known, mixed in unseen to tell how good answers are.

_DRAWN_FROM = 200


def create_gold_item(
    *,
    prompt: Prompt,
    completions: Sequence[Completion],
    verdict: str,
    ranks: Mapping[int, int],
    created_by: User,
    explanation: str = "",
    purpose: Purpose = Purpose.GOLD,
    round_number: int | None = None,
) -> Comparison:
    """Make a comparison whose answer is known: gold, or an item of the qualification set.

    It has no open places, so nobody meets it by way of the queue. Refuses who does not manage the
    project, a known answer that decides nothing, what `create_comparison` refuses, and the same
    completions a second time for the same purpose. `round_number` is the newest when left out.
    """
    project = prompt.project
    access.refuse_unless_manager(created_by, project, "manager_sets_known_answers")
    if purpose == Purpose.WORK:
        raise Refusal(
            "invalid_gold_purpose",
            _("A known answer is for gold or for qualification, not for work."),
            field="purpose",
        )
    ids = checked_ids(prompt, completions)
    known = _checked_answer(verdict, ranks, ids)
    try:
        with transaction.atomic():
            comparison = write_comparison(
                NewComparison(
                    project_id=project.pk,
                    prompt_id=prompt.pk,
                    completions=ids,
                    round_number=round_number or access.current_round(project),
                    purpose=purpose,
                )
            )
            GoldAnswer.objects.create(
                comparison=comparison,
                verdict=verdict,
                ranks={str(pk): rank for pk, rank in known.items()},
                explanation=explanation.replace("\x00", "").strip(),
                created_by=created_by,
            )
            return comparison
    except IntegrityError as error:
        raise Refusal(
            "known_answer_exists",
            _("These responses have a known answer already. Choose others."),
            field="completions",
        ) from error


def mark_as_gold(
    *,
    comparison: Comparison,
    created_by: User,
    explanation: str = "",
    purpose: Purpose = Purpose.GOLD,
) -> Comparison:
    """Make a gold item of a comparison that was judged; the comparison and its votes stay as they are.

    Its known answer is what reviewers decided, else what all annotators said alike. Refuses a
    comparison that is still being judged, and one of which nobody knows the answer. Who judged it
    does not get the gold item.
    """
    if (
        Comparison.objects.filter(pk=comparison.pk, open_slots__gt=0).exists()
        or comparison.assignments.filter(state=AssignmentState.LEASED, annotator__is_machine=False).exists()
    ):
        raise Refusal(
            "comparison_in_annotation",
            _("This comparison is still being annotated. Wait until all annotations are submitted."),
        )
    verdict, ranks = _agreed_answer(comparison)
    return create_gold_item(
        prompt=comparison.prompt,
        completions=[
            candidate.completion
            for candidate in comparison.candidates.select_related("completion").order_by("index")
        ],
        verdict=verdict,
        ranks=ranks,
        created_by=created_by,
        explanation=explanation,
        purpose=purpose,
        round_number=comparison.round_number,
    )


def next_gold_item(*, project: Project, annotator: User, turn: int) -> Comparison | None:
    """A gold item that this person has not had, neither as gold nor as work; drawn by chance."""
    had = Assignment.objects.filter(
        comparison__project=project,
        comparison__round_number=OuterRef("round_number"),
        comparison__completion_set=OuterRef("completion_set"),
        annotator=annotator,
        state__in=access.SPENT_STATES,
    )
    left = list(
        Comparison.objects.filter(
            ~Exists(had), allotted_to(project, annotator), project=project, purpose=Purpose.GOLD
        )
        .order_by("id")
        .values_list("pk", flat=True)[:_DRAWN_FROM]
    )
    if not left:
        return None
    place = display_order.number_below(
        len(left), "gold-item", project=project, annotator=annotator, turn=turn
    )
    return Comparison.objects.select_related("prompt").get(pk=left[place])


def _checked_answer(verdict: str, ranks: Mapping[int, int], ids: Sequence[int]) -> dict[int, int]:
    if verdict == Verdict.NOT_ASKED:
        raise Refusal(
            "preference_missing",
            _("Choose the better response: a known answer needs a preference."),
            field="verdict",
        )
    known = check_ranks(verdict=verdict, ranks=ranks, completion_ids=ids)
    if verdict == Verdict.RANKED and not decides_a_pair(known, len(ids)):
        raise Refusal(
            "winner_missing", _("This order has no winner: rank one response above another."), field="ranks"
        )
    return known


def _agreed_answer(comparison: Comparison) -> tuple[str, dict[int, int]]:
    review = Review.objects.filter(comparison=comparison, decided_at__isnull=False).first()
    if review is not None:
        return review.verdict, {int(pk): rank for pk, rank in review.ranks.items()}
    answers = [
        (judgment.verdict, {place.completion_id: place.rank for place in judgment.ranks.all()})
        for judgment in Judgment.objects.current()
        .filter(
            comparison=comparison,
            assignment__retest_of__isnull=True,
            annotator__is_machine=False,
        )
        .prefetch_related("ranks")
    ]
    if not answers or any(answer != answers[0] for answer in answers):
        raise Refusal(
            "annotators_disagree",
            _("Annotators do not agree on this comparison. Have a reviewer decide it first."),
        )
    return answers[0]


# Reviews: comparisons that go to reviewers, and what they decide. No vote is ever changed.

_URGENCY = {
    ReviewReason.RANDOM: 0,
    ReviewReason.DISAGREEMENT: 1,
    ReviewReason.REQUESTED: 2,
    ReviewReason.FLAGGED: 3,
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


def review_after_judgment(*, comparison: Comparison) -> Review | None:
    """Send a comparison to reviewers if its judgments ask for it, once the last one needed has come.

    Because annotators disagree, where the project reviews disagreements; or by chance, with the
    project's share. Call it in the transaction that wrote the judgment. Gold and qualification
    items, and what still waits for annotators, are left alone.
    """
    project = comparison.project
    if comparison.purpose != Purpose.WORK or not (
        project.review_disagreements or project.review_random_share
    ):
        return None
    # Two who submit the last two judgments at once would each miss the other's without this lock.
    locked = Comparison.objects.select_for_update(no_key=True).get(pk=comparison.pk)
    judgments = list(judgments_that_count(locked).prefetch_related("ranks"))
    if len(judgments) < locked.overlap:
        return None
    if project.review_disagreements and any(
        disagree(_preference_of(first), _preference_of(second))
        for first, second in combinations(judgments, 2)
    ):
        return open_review(comparison=locked, reason=ReviewReason.DISAGREEMENT)
    if drawn_for_review(locked.pk, project.review_random_share):
        return open_review(comparison=locked, reason=ReviewReason.RANDOM)
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
    *, review: Review, reviewer: User, verdict: str, ranks: Mapping[int, int], comment: str = ""
) -> Review:
    """Decide a comparison, once. The votes stay as they are; a snapshot learns from the decision.

    Sent twice by one person it is one decision. Refuses who is no reviewer or has the comparison as
    annotator (`NotAllowed`), what contradicts itself (`InvalidAnswer`), and what someone else has
    decided meanwhile (`AlreadyDecided`, with their decision).
    """
    _require_reviewer(review, reviewer)
    comparison = review.comparison
    if "\x00" in comment:
        raise InvalidAnswer(
            "text_holds_nul", _("The text holds the character NUL, which cannot be stored."), field="comment"
        )
    if verdict == Verdict.NOT_ASKED:
        raise InvalidAnswer(
            "preference_missing",
            _("A review needs a decision: choose a preference, or “cannot judge”."),
            field="verdict",
        )
    completion_ids = comparison.completions.values_list("pk", flat=True)
    checked = check_ranks(verdict=verdict, ranks=ranks, completion_ids=completion_ids)
    if verdict == Verdict.RANKED and len(checked) > 1 and not decides_a_pair(checked, len(completion_ids)):
        verdict = Verdict.EQUAL
    with transaction.atomic():
        updated = Review.objects.filter(pk=review.pk, decided_at__isnull=True).update(
            verdict=verdict,
            ranks={str(pk): rank for pk, rank in checked.items()},
            comment=comment.strip(),
            reviewer=reviewer,
            decided_at=timezone.now(),
        )
        if updated:
            _tell_who_flagged(review)
    review.refresh_from_db()
    if not updated and review.reviewer_id != reviewer.pk:
        raise AlreadyDecided(review)
    return review


def _tell_who_flagged(review: Review) -> None:
    """Tell the annotators who flagged the comparison; to others a review would say that people disagree."""
    comparison = review.comparison
    flagged = Assignment.objects.filter(comparison=comparison, flags__isnull=False, retest_of__isnull=True)
    for assignment in flagged.select_related("annotator").distinct():
        event = Event(
            kind=NotificationKind.REVIEW_DECIDED,
            key=f"review:{review.pk}",
            address=reverse("ask", args=[comparison.project.slug, assignment.pk]),
        )
        notify(project_id=comparison.project_id, users=[assignment.annotator], event=event)


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
