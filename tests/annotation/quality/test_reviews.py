"""Reviews: what goes to reviewers, what they see, that they decide once, and that it stays blind."""

import uuid
from collections.abc import Callable, Mapping
from functools import partial

import pytest
from django.test import Client
from django.urls import reverse

from annotation.choices import Purpose, ReviewReason, Role, Verdict
from annotation.errors import InvalidAnswer, NotAllowed
from annotation.models import (
    Category,
    Comparison,
    Completion,
    Correction,
    Criterion,
    Critique,
    Demonstration,
    ItemFlag,
    Judgment,
    Membership,
    MissingInfo,
    Project,
    RankedCompletion,
    Rating,
    Review,
    SpanFlag,
    User,
)
from annotation.selectors.reviews import ReviewPage, completion_ids_by_name, open_reviews_for
from annotation.services.assignments import assign_next
from annotation.services.judgments.submission import JudgmentAnswer, submit_judgment
from annotation.services.quality.reviews import (
    AlreadyDecided,
    decide_review,
    disagree,
    drawn_for_review,
    may_review,
    open_review,
    review_after_judgment,
)
from annotation.services.texts.completions import create_comparison
from annotation.text.identity import text_hash
from tests import factories
from tests.annotation.assignments.test_concurrency import at_once
from tests.annotation.judgments.answers import completions_of

pytestmark = pytest.mark.django_db
ClientOf = Callable[[User], Client]


@pytest.fixture
def rita(project: Project) -> User:
    """Reviews in `project` and labels nothing."""
    user = factories.make_user("rita")
    Membership.objects.create(project=project, user=user, role=Role.REVIEWER)
    return user


@pytest.fixture
def doubled(project: Project) -> Project:
    """The project with two annotators per comparison, whose disagreements are reviewed."""
    project.overlap = 2
    project.review_disagreements = True
    project.save()
    return project


@pytest.fixture
def disputed(doubled: Project, alice: User, bob: User) -> Comparison:
    """Alice prefers the first answer, Bob the second."""
    comparison = factories.make_comparison(doubled)
    factories.make_judgment(comparison, alice, (1, 2), strength=4, comment="clear to me")
    factories.make_judgment(comparison, bob, (2, 1))
    return comparison


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
        answer=JudgmentAnswer(verdict=Verdict.RANKED, ranks={a.pk: 2, b.pk: 1}),
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
        answer=JudgmentAnswer(verdict=Verdict.RANKED, ranks={a.pk: 1, b.pk: 2}),
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
            JudgmentAnswer(verdict=Verdict.RANKED, ranks=ranks)
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


# ── The pages ─────────────────────────────────────────────────────────────────────────


def page(client_of: ClientOf, user: User, project: Project, review: Review) -> str:
    answer = client_of(user).get(reverse("review", args=[project.slug, review.pk]))
    assert answer.status_code == 200
    return answer.content.decode()


def test_the_queue_lists_what_was_flagged_first(project: Project, rita: User, client_of: ClientOf):
    by_chance, flagged = (
        open_review(comparison=factories.make_comparison(project, question=text), reason=reason)
        for text, reason in (("By chance?", ReviewReason.RANDOM), ("Flagged?", ReviewReason.FLAGGED))
    )
    assert list(open_reviews_for(project, rita)) == [flagged, by_chance]
    shown = client_of(rita).get(reverse("reviews", args=[project.slug])).content.decode()
    assert shown.index("Flagged?") < shown.index("By chance?")


def test_a_list_of_many_reviews_takes_few_queries(
    project: Project, rita: User, client_of: ClientOf, django_assert_max_num_queries
):
    for _ in range(12):
        open_review(comparison=factories.make_comparison(project), reason=ReviewReason.FLAGGED)
    client = client_of(rita)
    with django_assert_max_num_queries(9):
        client.get(reverse("reviews", args=[project.slug]))


def test_the_page_shows_votes_in_its_own_letters(disputed: Comparison, rita: User):
    shown = ReviewPage(Review.objects.get())
    letters = dict(zip(completion_ids_by_name(shown.review).values(), "AB", strict=True))
    a, b = (letters[completion.pk] for completion in completions_of(disputed))
    assert sorted(vote.verdict for vote in shown.votes) == sorted([f"{a} > {b}, much better", f"{b} > {a}"])


def test_the_order_of_answers_is_the_same_at_every_visit_and_differs_between_reviews(project: Project):
    firsts: set[bool] = set()
    # All of 40 alike would be a chance of one in 2³⁹; two of them differ soon.
    while len(firsts) < 2:
        assert Review.objects.count() < 40
        comparison = factories.make_comparison(project)
        review = open_review(comparison=comparison, reason=ReviewReason.FLAGGED)
        shown = list(completion_ids_by_name(review).values())
        assert shown == list(completion_ids_by_name(Review.objects.get(pk=review.pk)).values())
        firsts.add(shown[0] == completions_of(comparison)[0].pk)


def test_until_the_decision_no_name_of_a_person_or_model_is_anywhere(
    project: Project, alice: User, bob: User, rita: User, client_of: ClientOf
):
    project.overlap = 2
    project.review_disagreements = True
    project.save()
    prompt = factories.make_prompt(project, "How long?")
    sources = [factories.make_source(name) for name in ("secret-policy-7", "hidden-rival-9")]
    # Ids that nothing else on a page is likely to hold.
    completions = [
        Completion.objects.create(
            pk=pk, prompt=prompt, source=source, text=text, text_hash=text_hash(text), seed=424_242
        )
        for pk, text, source in zip((90_917, 90_918), ("Two minutes.", "Ten hours."), sources, strict=True)
    ]
    comparison = create_comparison(prompt=prompt, completions=completions, round_number=1)
    factories.make_judgment(comparison, alice, (1, 2))
    factories.make_judgment(comparison, bob, (2, 1))
    review = Review.objects.get()
    hidden_words = [
        "secret-policy-7",
        "hidden-rival-9",
        "alice",
        "bob",
        str(alice.pseudonym),
        str(bob.pseudonym),
    ]
    hidden_words += [completion.text_hash for completion in completions] + ["90917", "90918", "424242"]
    for address in (
        reverse("review", args=[project.slug, review.pk]),
        reverse("reviews", args=[project.slug]),
    ):
        answer = client_of(rita).get(address)
        everything = answer.content.decode() + repr(dict(answer.headers)) + repr(dict(answer.cookies))
        assert [word for word in hidden_words if word in everything] == []


def test_after_the_decision_the_voters_are_named_and_the_models_still_are_not(
    disputed: Comparison, project: Project, rita: User, carol: User, client_of: ClientOf
):
    review = Review.objects.get()
    decide_review(review=review, reviewer=rita, verdict=Verdict.EQUAL, ranks={}, comment="neither says why")
    shown = page(client_of, carol, project, review)
    assert all(name in shown for name in ("alice", "bob", "rita", "neither says why"))
    assert "starter" not in shown


def test_marks_comments_and_reports_are_shown(project: Project, alice: User, rita: User, client_of: ClientOf):
    comparison = factories.make_comparison(project, ["Ten hours.", "Two minutes."])
    judgment = factories.make_judgment(comparison, alice, comment="one is absurd")
    absurd = completions_of(comparison)[0]
    categories = {category.key: category for category in Category.objects.filter(project=project)}
    criterion = Criterion.objects.create(project=project, key="helpful", label="Helpful", scale="five")
    mine = {"judgment": judgment, "completion": absurd}
    SpanFlag.objects.create(
        **mine,
        category=categories["untruthful"],
        start=0,
        end=9,
        quote="Ten hours",
        severity=3,
        note="no tea",
    )
    MissingInfo.objects.create(**mine, category=categories["missing"], text="the temperature")
    Rating.objects.create(**mine, criterion=criterion, value=2)
    Critique.objects.create(**mine, text="nobody steeps so long")
    Correction.objects.create(**mine, text="Ten minutes.")
    Demonstration.objects.create(judgment=judgment, text="Three minutes at 80 degrees.")
    ItemFlag.objects.create(assignment=judgment.assignment, reason="Offensive", details="see the end")
    review = open_review(comparison=comparison, reason=ReviewReason.FLAGGED)
    shown = page(client_of, rita, project, review)
    for words in (
        *("one is absurd", "Untruthful", "<q>Ten hours</q>", "severity 3 · no tea", "the temperature"),
        *("2 of 5", "nobody steeps so long", "Ten minutes.", "Three minutes at 80 degrees."),
        *("Offensive", "see the end"),
    ):
        assert words in shown


def test_a_page_that_nobody_filled_in_yet_complains_of_nothing_and_has_no_answer_chosen(
    disputed: Comparison, project: Project, rita: User, client_of: ClientOf
):
    shown = page(client_of, rita, project, Review.objects.get())
    assert "errorlist" not in shown
    assert " checked" not in shown
    assert " selected" not in shown


def test_the_letters_of_an_annotators_words_are_explained(project: Project, alice: User):
    # A comment that says "A" means what stood first on the annotator's screen.
    for _ in range(12):
        comparison = factories.make_comparison(project)
        judgment = factories.make_judgment(comparison, alice, comment="A is nonsense")
        review = open_review(comparison=comparison, reason=ReviewReason.FLAGGED)
        theirs = judgment.assignment.display_order
        ours = list(completion_ids_by_name(review).values())
        (vote,) = ReviewPage(review).votes
        assert vote.letters == ([] if theirs == ours else [("A", "B"), ("B", "A")])


def send(client: Client, project: Project, review: Review, **fields: str):
    return client.post(reverse("review-decide", args=[project.slug, review.pk]), fields)


def test_a_pair_is_decided_with_a_plain_form(
    disputed: Comparison, project: Project, rita: User, client_of: ClientOf
):
    review = Review.objects.get()
    name, pk = list(completion_ids_by_name(review).items())[1]
    answer = send(client_of(rita), project, review, choice=f"win:{name}", comment="because\r\nof that")
    assert (answer.status_code, answer["Location"]) == (
        302,
        reverse("review", args=[project.slug, review.pk]),
    )
    review.refresh_from_db()
    other = next(
        completion_id for completion_id in completion_ids_by_name(review).values() if completion_id != pk
    )
    assert review.verdict == Verdict.RANKED
    assert review.ranks == {str(pk): 1, str(other): 2}
    assert review.comment == "because\nof that"


def test_a_ranking_is_decided_by_ranks_alone(project: Project, rita: User, client_of: ClientOf):
    review = open_review(
        comparison=factories.make_comparison(project, list("xyz")), reason=ReviewReason.FLAGGED
    )
    names = list(completion_ids_by_name(review))
    ranks = {f"rank-{name}": rank for name, rank in zip(names, ("2", "1", "2"), strict=True)}
    assert send(client_of(rita), project, review, **ranks).status_code == 302
    review.refresh_from_db()
    ids = completion_ids_by_name(review)
    assert review.ranks == {str(ids[names[0]]): 2, str(ids[names[1]]): 1, str(ids[names[2]]): 2}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "Choose a preference"),
        ({"choice": "win:nobody"}, "no longer fits"),
        ({"rank-0": "1"}, "Rank "),
        ({"rank-0": "1", "rank-1": "2", "rank-2": "3", "choice": "equal"}, "Remove one of the two"),
        ({"rank-0": "1", "rank-1": "x", "rank-2": "3"}, "whole numbers from 1"),
    ],
)
def test_a_form_that_says_too_little_or_too_much_comes_back_as_it_was(
    project: Project, rita: User, client_of: ClientOf, fields: dict[str, str], message: str
):
    review = open_review(
        comparison=factories.make_comparison(project, list("xyz")), reason=ReviewReason.FLAGGED
    )
    names = list(completion_ids_by_name(review))
    sent = {
        f"rank-{names[int(key[5:])]}" if key.startswith("rank-") else key: value
        for key, value in fields.items()
    }
    answer = send(client_of(rita), project, review, comment="what I wrote", **sent)
    assert answer.status_code == 422
    shown = answer.content.decode()
    assert message in shown
    assert "what I wrote" in shown
    assert shown.count(" selected>") == sum(value in "123" for value in sent.values() if len(value) == 1)
    assert Review.objects.get().decided_at is None


def test_who_comes_second_sees_the_decision(
    disputed: Comparison, project: Project, rita: User, carol: User, client_of: ClientOf
):
    review = Review.objects.get()
    carols = client_of(carol)
    decide_review(review=review, reviewer=rita, verdict=Verdict.BOTH_BAD, ranks={})
    answer = send(carols, project, review, choice="equal")
    assert answer.status_code == 409
    shown = answer.content.decode()
    assert "rita has decided this comparison meanwhile" in shown
    assert "both bad" in shown
    assert Review.objects.get().verdict == Verdict.BOTH_BAD


def test_who_voted_is_turned_away_until_it_is_decided(
    disputed: Comparison, project: Project, alice: User, rita: User, client_of: ClientOf
):
    Membership.objects.filter(user=alice).update(role=Role.REVIEWER)
    review, client = Review.objects.get(), client_of(alice)
    address = reverse("review", args=[project.slug, review.pk])
    assert client.get(address).status_code == 403
    assert send(client, project, review, choice="equal").status_code == 403
    decide_review(review=review, reviewer=rita, verdict=Verdict.EQUAL, ranks={})
    assert client.get(address).status_code == 200


def test_a_review_is_not_found_through_another_project(project: Project, admin: User, client_of: ClientOf):
    review = open_review(comparison=factories.make_comparison(project), reason=ReviewReason.FLAGGED)
    other = factories.make_project(slug="coffee")
    assert client_of(admin).get(reverse("review", args=[other.slug, review.pk])).status_code == 404


def test_who_decided_a_comparison_is_not_asked_to_judge_it(project: Project, rita: User, alice: User):
    reviewed, other = factories.make_comparison(project), factories.make_comparison(project)
    review = open_review(comparison=reviewed, reason=ReviewReason.FLAGGED)
    decide_review(review=review, reviewer=rita, verdict=Verdict.BOTH_BAD, ranks={}, comment="")
    assert assign_next(project=project, annotator=rita).comparison == other
    assert assign_next(project=project, annotator=alice).comparison == reviewed
