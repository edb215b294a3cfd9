"""Reviews: comparisons that go to reviewers, and what they decide. No vote is ever changed."""

from collections.abc import Mapping
from itertools import combinations

from django.db import transaction
from django.urls import reverse
from django.utils import timezone
from django.utils.crypto import salted_hmac
from django.utils.translation import gettext as _

from annotation.agreement.records import decides_a_pair, outcome_between
from annotation.choices import NotificationKind, Purpose, ReviewReason, Role, Verdict
from annotation.errors import InvalidAnswer, NotAllowed, Refusal
from annotation.models import Assignment, Comparison, Judgment, Review, User
from annotation.selectors import access
from annotation.selectors.reviews import judgments_that_count, not_annotated_by
from annotation.services.inbox import Event, notify
from annotation.services.judgments.checks import check_ranks

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
