"""Pages of reviews: the queue, blind until the decision, and the form that decides."""

import uuid
from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from annotation.choices import ReviewReason, Role, Verdict
from annotation.models import (
    Category,
    Comparison,
    Completion,
    Correction,
    Criterion,
    Critique,
    Demonstration,
    ItemFlag,
    Membership,
    MissingInfo,
    Project,
    Rating,
    Review,
    SpanFlag,
    User,
)
from annotation.selectors.comparison import completion_ids_by_name
from annotation.selectors.reviews import ReviewPage, open_reviews_for
from annotation.services.assignments.next import assign_next
from annotation.services.reviews import decide_review, open_review
from annotation.services.texts import create_comparison
from annotation.text.identity import text_hash
from tests import factories
from tests.annotation.judgments.answers import completions_of

pytestmark = pytest.mark.django_db
ClientOf = Callable[[User], Client]


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
    with django_assert_max_num_queries(12):
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
    hidden_words += ["90917", "90918", "424242"]
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
    sent = {"idempotency_key": str(uuid.uuid4()), **fields}
    return client.post(reverse("review-decide", args=[project.slug, review.pk]), sent)


def test_a_pair_is_decided_with_a_plain_form(
    disputed: Comparison, project: Project, rita: User, client_of: ClientOf
):
    review = Review.objects.get()
    name, pk = list(completion_ids_by_name(review).items())[1]
    answer = send(client_of(rita), project, review, choice=f"win:{name}:3", comment="because\r\nof that")
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
        ({}, "choose a no-preference option"),
        ({"choice": "win:nobody:2"}, "no longer fits"),
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
