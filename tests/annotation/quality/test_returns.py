"""Returned annotations with their answers, undone decisions, decisions on the screen, rules of reviews."""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse

from annotation.choices import DecisionKind, NotificationKind, ReturnState, ReviewReason, Role, Verdict
from annotation.errors import NotAllowed, Refusal
from annotation.models import (
    Comparison,
    Criterion,
    Judgment,
    Membership,
    Notification,
    Project,
    Rating,
    Review,
    ReviewDecision,
    ReviewReturn,
    SpanFlag,
    User,
)
from annotation.record.judgment import RatingPart, SpanPart
from annotation.selectors.access import current_judgment
from annotation.selectors.reviews import (
    ReviewPage,
    decided_record,
    open_reviews_for,
    returned_reviews_for,
    shared_record,
    vote_name,
)
from annotation.services.judgments.submission import submit_judgment
from annotation.services.reviews import (
    decide_review,
    object_to_return,
    open_review,
    return_annotation,
    undo_decision,
)
from tests import factories
from tests.annotation.assignments.test_concurrency import at_once
from tests.annotation.judgments.answers import completions_of
from tests.records import judgment_record

pytestmark = pytest.mark.django_db
ClientOf = Callable[[User], Client]


@pytest.fixture
def judgment(project: Project, alice: User) -> Judgment:
    """Alice prefers the first of two responses."""
    return factories.make_judgment(factories.make_comparison(project), alice, (1, 2), strength=4)


@pytest.fixture
def review(judgment: Judgment) -> Review:
    """A review of it."""
    return open_review(comparison=judgment.comparison, reason=ReviewReason.REQUESTED)


def returned_by(reviewer: User, review: Review, judgment: Judgment, text: str = "Look at B.") -> ReviewReturn:
    return return_annotation(review=review, vote=vote_name(review, judgment), reviewer=reviewer, comment=text)


def correct(judgment: Judgment, ranks: tuple[int, int] = (2, 1)) -> Judgment:
    ids = [completion.pk for completion in completions_of(judgment.comparison)]
    answer = judgment_record(verdict=Verdict.RANKED, ranks=dict(zip(ids, ranks, strict=True)), strength=2)
    return submit_judgment(
        assignment=judgment.assignment,
        annotator=judgment.annotator,
        answer=answer,
        idempotency_key=uuid.uuid4(),
    )


def test_a_returned_annotation_comes_first_filled_with_what_was_answered_and_its_correction_is_a_version(
    project: Project, alice: User, rita: User, judgment: Judgment, review: Review, client_of: ClientOf
):
    factories.make_comparison(project)
    returned_by(rita, review, judgment)
    assert (list(open_reviews_for(project, rita)), list(returned_reviews_for(project, rita))) == (
        [],
        [review],
    )
    told = Notification.objects.get(user=alice)
    assert (told.kind, told.excerpt) == (NotificationKind.RETURNED, "Look at B.")

    as_alice = client_of(alice)
    head = as_alice.get(reverse("label", args=[project.slug])).content.decode()
    assert f'data-assignment="{judgment.assignment_id}"' in head
    assert "Look at B." in head
    assert head.count(" checked") == 1
    assert "rita" not in head + as_alice.get(told.address).content.decode()
    assert "Look at B." in as_alice.get(reverse("my-work", args=[project.slug])).content.decode()

    revision = correct(judgment)
    answered = ReviewReturn.objects.get()
    assert (answered.state, answered.revision, answered.answered_by) == (
        ReturnState.CORRECTED,
        revision,
        alice,
    )
    assert Judgment.objects.count() == 2
    assert Notification.objects.get(user=rita).kind == NotificationKind.RETURN_ANSWERED
    assert list(open_reviews_for(project, rita)) == [review]
    after = as_alice.get(reverse("label", args=[project.slug])).content.decode()
    assert f'data-assignment="{judgment.assignment_id}"' not in after

    (vote,) = ReviewPage(review).votes
    (shown,) = vote.returns
    assert shown.before is not None
    assert shown.before.verdict != vote.verdict
    assert (
        "alice" not in client_of(rita).get(reverse("review", args=[project.slug, review.pk])).content.decode()
    )


def test_an_objection_leaves_the_annotation_and_goes_back_to_the_reviewer_who_may_return_it_again(
    project: Project, alice: User, rita: User, judgment: Judgment, review: Review, client_of: ClientOf
):
    returned_by(rita, review, judgment)
    address = reverse("return-object", args=[project.slug, judgment.assignment_id])
    assert client_of(alice).post(address, {"objection": " "}).status_code == 422
    assert client_of(alice).post(address, {"objection": "B is made up."}).status_code == 302
    answered = ReviewReturn.objects.get()
    assert (answered.state, answered.objection) == (ReturnState.OBJECTED, "B is made up.")
    assert current_judgment(judgment.assignment) == judgment
    page = client_of(rita).get(reverse("review", args=[project.slug, review.pk])).content.decode()
    assert "B is made up." in page
    returned_by(rita, review, judgment, "Still: look at the source.")
    assert [row.state for row in ReviewReturn.objects.all()] == [ReturnState.OBJECTED, ReturnState.OPEN]
    assert client_of(alice).post(address, {"objection": "No."}).status_code == 302


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(Refusal) as refusal:
        call()
    return refusal.value.code


def test_what_cannot_be_returned_or_answered_is_refused(
    project: Project, alice: User, bob: User, rita: User, carol: User, judgment: Judgment, review: Review
):
    name = vote_name(review, judgment)
    give_back = partial(return_annotation, review=review, vote=name, comment="Why?")
    assert code_of(partial(give_back, reviewer=bob)) == "not_a_reviewer"
    assert code_of(partial(give_back, reviewer=rita, comment=" ")) == "return_comment_missing"
    assert code_of(partial(give_back, reviewer=rita, vote="nobody")) == "vote_changed"
    objects = partial(object_to_return, assignment=judgment.assignment, text="No.")
    assert code_of(partial(objects, annotator=alice)) == "nothing_returned"

    first = give_back(reviewer=rita)
    assert give_back(reviewer=rita) == first
    assert code_of(partial(give_back, reviewer=carol)) == "returned_already"
    assert code_of(partial(objects, annotator=bob)) == "assigned_to_another"
    assert code_of(partial(objects, annotator=alice, text="")) == "objection_missing"

    correct(judgment)
    assert code_of(partial(give_back, reviewer=rita)) == "vote_changed"
    Membership.objects.filter(user=alice).delete()
    current = current_judgment(judgment.assignment)
    assert current is not None
    renamed = vote_name(review, current)
    assert code_of(partial(give_back, reviewer=rita, vote=renamed)) == "annotator_left"
    decide_review(review=review, reviewer=rita, verdict=Verdict.EQUAL, ranks={})
    assert code_of(partial(give_back, reviewer=carol, vote=renamed)) == "review_decided"


def test_a_manager_who_annotated_returns_nothing_there(
    project: Project, alice: User, judgment: Judgment, review: Review
):
    Membership.objects.filter(user=alice).update(role=Role.MANAGER)
    with pytest.raises(NotAllowed) as refusal:
        returned_by(alice, review, judgment)
    assert refusal.value.code == "own_comparison"


def test_the_database_holds_the_rules_of_returns(
    alice: User, bob: User, rita: User, judgment: Judgment, review: Review
):
    same = {"review": review, "assignment": judgment.assignment, "judgment": judgment, "annotator": alice}
    row = ReviewReturn.objects.create(**same, returned_by=rita, comment="Why?")

    def refused(**changes: object) -> bool:
        try:
            with transaction.atomic():
                if changes:
                    ReviewReturn.objects.filter(pk=row.pk).update(**changes)
                else:
                    ReviewReturn.objects.create(**same, returned_by=rita, comment="Again?")
        except IntegrityError:
            return True
        return False

    now = row.returned_at
    assert refused()
    assert refused(returned_by=alice)
    assert refused(comment="")
    assert refused(state=ReturnState.OBJECTED, closed_at=now, answered_by=alice)
    assert refused(state=ReturnState.OBJECTED, closed_at=now, answered_by=bob, objection="No.")
    assert refused(state=ReturnState.CORRECTED, closed_at=now, answered_by=alice)
    assert not refused(state=ReturnState.OBJECTED, closed_at=now, answered_by=alice, objection="No.")


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_of_reviewers_who_return_at_once_one_does(project: Project, judgment: Judgment, review: Review):
    reviewers = [factories.make_user(f"r{number}") for number in range(5)]
    for user in reviewers:
        Membership.objects.create(project=project, user=user, role=Role.REVIEWER)
    outcomes = at_once(*(partial(returned_by, user, review, judgment, f"By {user}") for user in reviewers))
    assert sum(isinstance(outcome, ReviewReturn) for outcome in outcomes) == 1
    assert {outcome.code for outcome in outcomes if isinstance(outcome, Refusal)} == {"returned_already"}


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_correction_an_objection_and_a_decision_at_once_leave_one_answer(
    project: Project, alice: User, rita: User
):
    for _ in range(6):
        judgment = factories.make_judgment(factories.make_comparison(project), alice, (1, 2), strength=4)
        review = open_review(comparison=judgment.comparison, reason=ReviewReason.REQUESTED)
        returned = returned_by(rita, review, judgment)
        outcomes = at_once(
            partial(correct, judgment),
            partial(decide_review, review=review, reviewer=rita, verdict=Verdict.EQUAL, ranks={}),
            partial(object_to_return, assignment=judgment.assignment, annotator=alice, text="No."),
        )
        assert isinstance(outcomes[0], Judgment)
        assert isinstance(outcomes[1], Review)
        assert getattr(outcomes[2], "code", "") in ("", "nothing_returned")
        returned.refresh_from_db()
        assert returned.state != ReturnState.OPEN
        assert (returned.revision is not None) == (returned.state == ReturnState.CORRECTED)


def test_a_decision_withdraws_what_nobody_answered(
    alice: User, rita: User, judgment: Judgment, review: Review
):
    returned_by(rita, review, judgment)
    decide_review(review=review, reviewer=rita, verdict=Verdict.EQUAL, ranks={})
    assert ReviewReturn.objects.get().state == ReturnState.WITHDRAWN
    objects = partial(object_to_return, assignment=judgment.assignment, annotator=alice, text="No.")
    assert code_of(objects) == "nothing_returned"
    correct(judgment)
    assert ReviewReturn.objects.get().revision is None


# ── Who was overruled, and what is undone ─────────────────────────────────────────────


def test_who_was_overruled_learns_it_with_the_reason_and_who_was_not_learns_nothing(
    disputed: Comparison, project: Project, alice: User, bob: User, rita: User, client_of: ClientOf
):
    ids = [completion.pk for completion in completions_of(disputed)]
    decide_review(
        review=Review.objects.get(),
        reviewer=rita,
        verdict=Verdict.RANKED,
        ranks={ids[0]: 1, ids[1]: 2},
        comment="B is made up.",
    )
    told = Notification.objects.get()
    assert (told.user, told.kind, told.excerpt) == (bob, NotificationKind.OVERRULED, "B is made up.")
    page = client_of(bob).get(told.address).content.decode()
    assert "B is made up." in page
    assert "alice" not in page
    assert "rita" not in page


def test_an_undone_decision_stays_in_the_record_and_the_review_waits_again(
    project: Project, rita: User, carol: User, judgment: Judgment, review: Review, client_of: ClientOf
):
    decide_review(review=review, reviewer=rita, verdict=Verdict.EQUAL, ranks={}, comment="Both say two.")
    other = factories.make_user("ruth")
    Membership.objects.create(project=project, user=other, role=Role.REVIEWER)
    with pytest.raises(NotAllowed) as refusal:
        undo_decision(review=review, user=other)
    assert refusal.value.code == "decision_of_another"
    undo = reverse("review-undo", args=[project.slug, review.pk])
    assert client_of(rita).post(undo, {"comment": "I misread A."}).status_code == 302
    review.refresh_from_db()
    assert (review.decided_at, review.verdict) == (None, "")
    assert list(open_reviews_for(project, other)) == [review]
    assert client_of(rita).post(undo).status_code == 409
    decide_review(review=review, reviewer=carol, verdict=Verdict.BOTH_GOOD, ranks={})
    assert list(ReviewDecision.objects.values_list("kind", "verdict", "comment")) == [
        (DecisionKind.DECIDED, Verdict.EQUAL, "Both say two."),
        (DecisionKind.UNDONE, "", "I misread A."),
        (DecisionKind.DECIDED, Verdict.BOTH_GOOD, ""),
    ]
    page = client_of(carol).get(reverse("review", args=[project.slug, review.pk])).content.decode()
    assert "Both say two." in page
    # Who judged it may not undo, not even as a manager.
    Membership.objects.filter(user=judgment.annotator).update(role=Role.MANAGER)
    with pytest.raises(NotAllowed):
        undo_decision(review=review, user=judgment.annotator)


# ── Decisions on the labelling screen ─────────────────────────────────────────────────


def spans(comparison: Comparison, *quotes: str) -> tuple[SpanPart, ...]:
    first = completions_of(comparison)[0]
    return tuple(
        SpanPart(
            completion=str(first.pk),
            category="untruthful",
            start=first.text.index(quote),
            end=first.text.index(quote) + len(quote),
            quote=quote,
            text_hash=first.text_hash,
        )
        for quote in quotes
    )


@pytest.fixture
def rated(doubled: Project, alice: User, bob: User) -> Comparison:
    """Alice and Bob agree on one span and one rating, and on nothing else."""
    Criterion.objects.create(project=doubled, key="helpful", label="Helpful", scale="five")
    doubled.refresh_from_db()
    comparison = factories.make_comparison(doubled, ["Ten hours and two minutes.", "Two minutes."])
    a, b = (str(completion.pk) for completion in completions_of(comparison))
    values: Iterator[int] = count(2)
    for user, ranks, quotes in ((alice, (1, 2), ("Ten hours", "two")), (bob, (2, 1), ("Ten hours",))):
        rating = next(values)
        factories.make_judgment(
            comparison,
            user,
            ranks,
            strength=2,
            spans=spans(comparison, *quotes),
            ratings=(
                RatingPart(completion=a, criterion="helpful", scale="five", value=1),
                RatingPart(completion=b, criterion="helpful", scale="five", value=rating),
            ),
        )
    return comparison


def test_the_form_is_filled_with_what_all_votes_say_and_every_difference_is_marked(
    rated: Comparison, doubled: Project, rita: User, client_of: ClientOf
):
    page = ReviewPage(Review.objects.get())
    shared = shared_record(page.records)
    assert shared is not None
    assert (shared.verdict, [span.quote for span in shared.spans], len(shared.ratings)) == (
        Verdict.NOT_ASKED,
        ["Ten hours"],
        1,
    )
    remarks = [remark for vote in page.votes for remark in vote.remarks if remark.differs]
    differing = sorted(remark.quote or remark.text for remark in remarks)
    assert differing == ["2 of 5", "3 of 5", "two"]
    assert all(vote.version.differs for vote in page.votes)
    address = reverse("review", args=[doubled.slug, page.review.pk])
    as_rita = client_of(rita)
    filled = as_rita.get(address).content.decode()
    assert filled.count(" checked") == 1
    for vote, record in zip(page.votes, page.records, strict=True):
        taken = as_rita.get(address, {"vote": vote.name}).content.decode()
        assert taken.count(" checked") == 3
        assert taken.count("&quot;quote&quot;") == len(record.spans)


def test_spans_and_ratings_are_decided_with_the_preference_and_no_vote_changes(
    rated: Comparison, doubled: Project, alice: User, bob: User, rita: User, client_of: ClientOf
):
    before = (Judgment.objects.count(), SpanFlag.objects.count(), Rating.objects.count())
    review = Review.objects.get()
    page = ReviewPage(review)
    (record,) = (record for record in page.records if len(record.spans) == 2)
    decide_review(review=review, reviewer=rita, answer=record, comment="Alice is right.")
    decided = decided_record(review)
    assert decided == replace(record, comment="", active_seconds=None)
    assert (Judgment.objects.count(), SpanFlag.objects.count(), Rating.objects.count()) == before
    assert [row.user for row in Notification.objects.filter(kind=NotificationKind.OVERRULED)] == [bob]
    shown = client_of(rita).get(reverse("review", args=[doubled.slug, review.pk])).content.decode()
    assert shown.count("<q>two</q>") == 2


def test_a_refused_decision_keeps_what_was_entered(
    rated: Comparison, doubled: Project, rita: User, client_of: ClientOf
):
    review = Review.objects.get()
    address = reverse("review-decide", args=[doubled.slug, review.pk])
    sent = {"choice": "both_bad", "comment": "Both are wrong.", "idempotency_key": str(uuid.uuid4())}
    name = ReviewPage(review).completions[0].name
    refused = client_of(rita).post(address, {**sent, f"rating-{name}-helpful": "3"})
    assert refused.status_code == 422
    assert "Both are wrong." in refused.content.decode()
    assert Review.objects.get().decided_at is None


# ── Rules of what is reviewed ─────────────────────────────────────────────────────────


def reasons(project: Project) -> list[str]:
    return list(
        Review.objects.filter(comparison__project=project).order_by("pk").values_list("reason", flat=True)
    )


def test_the_first_annotations_of_each_annotator_and_every_nth_are_reviewed(
    project: Project, alice: User, bob: User
):
    Project.objects.filter(pk=project.pk).update(review_first=2, review_every=3)
    project.refresh_from_db()
    made = [factories.make_judgment(factories.make_comparison(project), alice) for _ in range(6)]
    by_reason = dict(Review.objects.values_list("comparison", "reason"))
    assert [by_reason.get(judgment.comparison_id, "") for judgment in made] == [
        *(ReviewReason.NEWCOMER, ReviewReason.NEWCOMER, ReviewReason.PERIODIC),
        *("", "", ReviewReason.PERIODIC),
    ]
    correct(made[3])
    assert Review.objects.count() == 4
    factories.make_judgment(factories.make_comparison(project), bob)
    assert reasons(project)[-1] == ReviewReason.NEWCOMER


def test_what_falls_below_an_agreement_is_reviewed_once_all_have_judged(
    project: Project, alice: User, bob: User, rita: User, client_of: ClientOf
):
    Project.objects.filter(pk=project.pk).update(overlap=2, review_below_agreement=0.5)
    project.refresh_from_db()
    comparison = factories.make_comparison(project, list("xyz"))
    factories.make_judgment(comparison, alice, (1, 2, 3))
    assert reasons(project) == []
    factories.make_judgment(comparison, bob, (2, 1, 1))
    assert reasons(project) == [ReviewReason.LOW_AGREEMENT]
    alike = factories.make_comparison(project)
    for user in (alice, bob):
        factories.make_judgment(alike, user)
    assert len(reasons(project)) == 1
    queue = client_of(rita).get(reverse("reviews", args=[project.slug])).content.decode()
    assert str(ReviewReason.LOW_AGREEMENT.label) in queue


def test_where_no_preference_is_asked_the_ratings_alone_are_decided(
    project: Project, alice: User, rita: User, client_of: ClientOf
):
    Project.objects.filter(pk=project.pk).update(ask_verdict=False, ask_strength=False)
    Criterion.objects.create(project=project, key="helpful", label="Helpful", scale="five")
    project.refresh_from_db()
    comparison = factories.make_comparison(project)
    ids = [str(completion.pk) for completion in completions_of(comparison)]
    ratings = tuple(RatingPart(completion=pk, criterion="helpful", scale="five", value=2) for pk in ids)
    factories.make_judgment(comparison, alice, (), verdict=Verdict.NOT_ASKED, ratings=ratings)
    review = open_review(comparison=comparison, reason=ReviewReason.REQUESTED)
    names = [shown.name for shown in ReviewPage(review).completions]
    sent = {f"rating-{name}-helpful": "5" for name in names}
    address = reverse("review-decide", args=[project.slug, review.pk])
    answer = client_of(rita).post(address, {**sent, "idempotency_key": str(uuid.uuid4())})
    assert answer.status_code == 302
    decided = decided_record(Review.objects.get())
    assert (decided.verdict, [part.value for part in decided.ratings]) == (Verdict.NOT_ASKED, [5, 5])
    assert Notification.objects.get(user=alice).kind == NotificationKind.OVERRULED
    assert client_of(rita).get(reverse("review", args=[project.slug, review.pk])).status_code == 200
