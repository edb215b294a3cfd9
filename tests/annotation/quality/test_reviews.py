"""Reviews: which comparisons go to reviewers, and how one is decided once."""

import uuid
from collections.abc import Mapping
from functools import partial

import pytest

from annotation.choices import Purpose, ReviewReason, Role, Verdict
from annotation.errors import InvalidAnswer, NotAllowed
from annotation.models import Comparison, Judgment, Membership, Project, RankedCompletion, Review, User
from annotation.selectors.reviews import open_reviews_for
from annotation.services.judgments.submission import submit_judgment
from annotation.services.reviews import (
    AlreadyDecided,
    decide_review,
    disagree,
    drawn_for_review,
    may_review,
    open_review,
    review_after_judgment,
)
from tests import factories
from tests.annotation.assignments.test_concurrency import at_once
from tests.annotation.judgments.answers import completions_of
from tests.records import judgment_record

pytestmark = pytest.mark.django_db


# ── When annotators disagree ──────────────────────────────────────────────────────────


A, B, C = 11, 12, 13


def ranked(**ranks: int) -> tuple[str, Mapping[int, int]]:
    return Verdict.RANKED, {{"a": A, "b": B, "c": C}[name]: rank for name, rank in ranks.items()}


def unranked(verdict: Verdict) -> tuple[str, Mapping[int, int]]:
    return verdict, {} if verdict == Verdict.CANNOT_JUDGE else {A: 1, B: 1}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (ranked(a=1, b=2), ranked(a=2, b=1), True),
        (ranked(a=1, b=2), ranked(a=1, b=2), False),
        # c is placed otherwise, but no pair is turned round: the second ties what the first tells apart.
        (ranked(a=1, b=2, c=3), ranked(a=1, b=2, c=2), False),
        (ranked(a=1, b=2, c=3), ranked(a=1, b=3, c=2), True),
        (ranked(a=1, b=2), unranked(Verdict.EQUAL), False),
        (ranked(a=1, b=2), unranked(Verdict.BOTH_BAD), False),
        (unranked(Verdict.EQUAL), unranked(Verdict.BOTH_GOOD), False),
        (unranked(Verdict.BOTH_BAD), unranked(Verdict.BOTH_GOOD), True),
        (unranked(Verdict.CANNOT_JUDGE), ranked(a=1, b=2), True),
        (unranked(Verdict.CANNOT_JUDGE), unranked(Verdict.EQUAL), True),
        (unranked(Verdict.CANNOT_JUDGE), unranked(Verdict.CANNOT_JUDGE), False),
        ((Verdict.NOT_ASKED, {}), ranked(a=1, b=2), False),
    ],
)
def test_two_answers_disagree_when_they_contradict_each_other(first, second, expected: bool):
    assert disagree(first, second) is expected
    assert disagree(second, first) is expected


# ── What goes to reviewers ────────────────────────────────────────────────────────────


def test_disagreement_opens_a_review_with_the_last_judgment_that_is_needed(
    doubled: Project, alice: User, bob: User
):
    comparison = factories.make_comparison(doubled)
    factories.make_judgment(comparison, alice, (1, 2))
    assert not Review.objects.exists()
    factories.make_judgment(comparison, bob, (2, 1))
    review = Review.objects.get()
    assert (review.comparison, review.reason, review.decided_at) == (
        comparison,
        ReviewReason.DISAGREEMENT,
        None,
    )


def test_annotators_of_one_mind_are_left_alone(doubled: Project, alice: User, bob: User):
    comparison = factories.make_comparison(doubled)
    for user in (alice, bob):
        factories.make_judgment(comparison, user, (1, 2))
    assert not Review.objects.exists()


def test_disagreement_stays_where_the_project_does_not_review_it(doubled: Project, alice: User, bob: User):
    doubled.review_disagreements = False
    doubled.save()
    comparison = factories.make_comparison(doubled)
    factories.make_judgment(comparison, alice, (1, 2))
    factories.make_judgment(comparison, bob, (2, 1))
    assert not Review.objects.exists()


def test_a_change_of_mind_that_makes_two_disagree_opens_a_review(doubled: Project, alice: User, bob: User):
    comparison = factories.make_comparison(doubled)
    first = factories.make_judgment(comparison, alice, (1, 2))
    factories.make_judgment(comparison, bob, (1, 2))
    a, b = completions_of(comparison)
    submit_judgment(
        assignment=first.assignment,
        annotator=alice,
        answer=judgment_record(verdict=Verdict.RANKED, ranks={a.pk: 2, b.pk: 1}),
        idempotency_key=uuid.uuid4(),
    )
    assert Review.objects.get().reason == ReviewReason.DISAGREEMENT


def test_what_was_superseded_is_no_vote_any_more(doubled: Project, alice: User, bob: User):
    comparison = factories.make_comparison(doubled)
    first = factories.make_judgment(comparison, alice, (2, 1))
    a, b = completions_of(comparison)
    submit_judgment(
        assignment=first.assignment,
        annotator=alice,
        answer=judgment_record(verdict=Verdict.RANKED, ranks={a.pk: 1, b.pk: 2}),
        idempotency_key=uuid.uuid4(),
    )
    factories.make_judgment(comparison, bob, (1, 2))
    assert not Review.objects.exists()


def test_chance_sends_the_set_share_and_gives_the_same_answer_again():
    drawn = [drawn_for_review(number, 0.2) for number in range(4000)]
    # 4000 draws at 0.2: mean 800, standard deviation 25.3; five of them on either side.
    assert 673 <= sum(drawn) <= 927
    assert drawn == [drawn_for_review(number, 0.2) for number in range(4000)]
    assert not any(drawn_for_review(number, 0.0) for number in range(100))
    assert all(drawn_for_review(number, 1.0) for number in range(100))


def test_a_judged_comparison_goes_to_reviewers_by_chance(project: Project, alice: User):
    project.review_random_share = 1.0
    project.save()
    comparison = factories.make_comparison(project)
    factories.make_judgment(comparison, alice)
    assert Review.objects.get().reason == ReviewReason.RANDOM


def test_gold_never_goes_to_reviewers_by_itself(project: Project, alice: User):
    project.review_random_share = 1.0
    comparison = factories.make_comparison(project)
    factories.make_judgment(comparison, alice)
    Comparison.objects.filter(pk=comparison.pk).update(purpose=Purpose.GOLD)
    comparison.refresh_from_db()
    assert review_after_judgment(comparison=comparison) is None


def test_a_comparison_has_one_review_and_the_weightiest_reason_stands(project: Project):
    comparison = factories.make_comparison(project)
    first = open_review(comparison=comparison, reason=ReviewReason.RANDOM)
    second = open_review(comparison=comparison, reason=ReviewReason.FLAGGED)
    third = open_review(comparison=comparison, reason=ReviewReason.DISAGREEMENT)
    assert first.pk == second.pk == third.pk
    assert Review.objects.get().reason == ReviewReason.FLAGGED


def test_a_decided_review_keeps_its_reason(project: Project, rita: User):
    comparison = factories.make_comparison(project)
    review = open_review(comparison=comparison, reason=ReviewReason.RANDOM)
    decide_review(review=review, reviewer=rita, verdict=Verdict.BOTH_BAD, ranks={})
    assert open_review(comparison=comparison, reason=ReviewReason.FLAGGED).reason == ReviewReason.RANDOM


# ── Deciding ──────────────────────────────────────────────────────────────────────────


def test_a_decision_stands_beside_the_votes_and_changes_none(disputed: Comparison, rita: User):
    votes = list(Judgment.objects.order_by("pk").values())
    ranks = list(RankedCompletion.objects.order_by("pk").values())
    a, b = completions_of(disputed)
    review = Review.objects.get()
    decide_review(
        review=review,
        reviewer=rita,
        verdict=Verdict.RANKED,
        ranks={a.pk: 5, b.pk: 3},
        comment=" B, of course ",
    )
    review.refresh_from_db()
    assert (review.verdict, review.reviewer, review.comment) == (Verdict.RANKED, rita, "B, of course")
    assert review.ranks == {str(a.pk): 2, str(b.pk): 1}
    assert review.decided_at is not None
    assert list(Judgment.objects.order_by("pk").values()) == votes
    assert list(RankedCompletion.objects.order_by("pk").values()) == ranks


def test_the_second_to_decide_is_refused_and_learns_the_decision(
    disputed: Comparison, rita: User, carol: User
):
    mine, theirs = Review.objects.get(), Review.objects.get()
    decide_review(review=mine, reviewer=rita, verdict=Verdict.EQUAL, ranks={})
    with pytest.raises(AlreadyDecided, match="rita has decided this comparison meanwhile") as refusal:
        decide_review(review=theirs, reviewer=carol, verdict=Verdict.BOTH_BAD, ranks={})
    assert refusal.value.review.verdict == Verdict.EQUAL
    assert Review.objects.get().reviewer == rita


def test_sent_twice_by_one_person_it_is_one_decision(disputed: Comparison, rita: User):
    review = Review.objects.get()
    decide_review(review=review, reviewer=rita, verdict=Verdict.EQUAL, ranks={})
    decided_at = Review.objects.get().decided_at
    again = decide_review(review=review, reviewer=rita, verdict=Verdict.BOTH_BAD, ranks={})
    assert (again.verdict, again.decided_at) == (Verdict.EQUAL, decided_at)


def test_who_voted_may_not_review(disputed: Comparison, project: Project, alice: User):
    Membership.objects.filter(user=alice).update(role=Role.MANAGER)
    review = Review.objects.get()
    assert not may_review(review, alice)
    assert list(open_reviews_for(project, alice)) == []
    with pytest.raises(NotAllowed, match="as an annotator"):
        decide_review(review=review, reviewer=alice, verdict=Verdict.EQUAL, ranks={})
    assert Review.objects.get().decided_at is None


def test_who_holds_it_as_annotator_may_not_review(project: Project, carol: User):
    comparison = factories.make_comparison(project)
    factories.lease_to(comparison, carol)
    review = open_review(comparison=comparison, reason=ReviewReason.FLAGGED)
    assert not may_review(review, carol)


def test_an_annotator_is_no_reviewer(project: Project, alice: User):
    review = open_review(comparison=factories.make_comparison(project), reason=ReviewReason.FLAGGED)
    with pytest.raises(NotAllowed, match="not a reviewer"):
        decide_review(review=review, reviewer=alice, verdict=Verdict.EQUAL, ranks={})


@pytest.mark.parametrize(
    ("verdict", "ranks", "field"),
    [
        ("splendid", {}, "verdict"),
        (Verdict.NOT_ASKED, {}, "verdict"),
        (Verdict.RANKED, {0: 1}, "ranks"),
        (Verdict.RANKED, {0: 1, 1: 1}, "verdict"),
        (Verdict.CANNOT_JUDGE, {0: 1, 1: 2}, "ranks"),
        (Verdict.RANKED, {0: 0, 1: 1}, "ranks"),
    ],
)
def test_a_decision_that_contradicts_itself_is_refused(
    project: Project, rita: User, verdict: str, ranks: dict[int, int], field: str
):
    comparison = factories.make_comparison(project)
    ids = [completion.pk for completion in completions_of(comparison)]
    review = open_review(comparison=comparison, reason=ReviewReason.FLAGGED)
    with pytest.raises(InvalidAnswer) as refusal:
        decide_review(
            review=review,
            reviewer=rita,
            verdict=verdict,
            ranks={ids[place]: rank for place, rank in ranks.items()},
        )
    assert refusal.value.field == field
    assert Review.objects.get().decided_at is None


def test_a_ranking_in_which_all_tie_is_decided_as_equal(project: Project, rita: User):
    comparison = factories.make_comparison(project, list("xyz"))
    review = open_review(comparison=comparison, reason=ReviewReason.FLAGGED)
    ids = [completion.pk for completion in completions_of(comparison)]
    decided = decide_review(review=review, reviewer=rita, verdict=Verdict.RANKED, ranks=dict.fromkeys(ids, 2))
    assert decided.verdict == Verdict.EQUAL


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_of_reviewers_who_decide_at_once_one_does(disputed: Comparison, project: Project):
    reviewers = [factories.make_user(f"r{number}") for number in range(6)]
    for user in reviewers:
        Membership.objects.create(project=project, user=user, role=Role.REVIEWER)
    reviews = [Review.objects.get() for _ in reviewers]
    outcomes = at_once(
        *(
            partial(decide_review, review=review, reviewer=user, verdict=Verdict.EQUAL, ranks={})
            for review, user in zip(reviews, reviewers, strict=True)
        )
    )
    (decided,) = (outcome for outcome in outcomes if isinstance(outcome, Review))
    refused = [outcome for outcome in outcomes if isinstance(outcome, AlreadyDecided)]
    assert len(refused) == 5
    assert {refusal.review.reviewer_id for refusal in refused} == {decided.reviewer_id}


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_the_last_two_judgments_at_once_still_open_the_review(doubled: Project, alice: User, bob: User):
    for _ in range(5):
        comparison = factories.make_comparison(doubled)
        a, b = completions_of(comparison)
        assignments = [factories.lease_to(comparison, user) for user in (alice, bob)]
        answers = [
            judgment_record(verdict=Verdict.RANKED, ranks=ranks)
            for ranks in ({a.pk: 1, b.pk: 2}, {a.pk: 2, b.pk: 1})
        ]
        outcomes = at_once(
            *(
                partial(
                    submit_judgment,
                    assignment=assignment,
                    annotator=assignment.annotator,
                    answer=answer,
                    idempotency_key=uuid.uuid4(),
                )
                for assignment, answer in zip(assignments, answers, strict=True)
            )
        )
        assert all(isinstance(outcome, Judgment) for outcome in outcomes)
        assert Review.objects.get(comparison=comparison).reason == ReviewReason.DISAGREEMENT
