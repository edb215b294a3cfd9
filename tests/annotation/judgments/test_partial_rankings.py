"""The best m of k: stored, agreed on, reviewed, known and shown; the rest is below, without an order."""

import math
import uuid
from dataclasses import replace

import numpy as np
import pytest
from django.test import Client
from django.urls import reverse

from annotation.acquisition.bayesian import arrays_of, clear_cache, read_new, unread
from annotation.agreement.coefficients import kendall_tau_b
from annotation.agreement.records import (
    Judged,
    Selection,
    decides_a_pair,
    outcome_between,
    position_outcomes,
    rank_units,
    rankings,
    retest_matches,
    unordered_among,
)
from annotation.choices import ReviewReason, Shown, Verdict
from annotation.errors import InvalidAnswer
from annotation.forms.judgment import Entered
from annotation.models import Comparison, Judgment, Project, Review, User
from annotation.selectors.comparisons import items_behind
from annotation.selectors.judged import judged_in
from annotation.selectors.known_answers import agrees_with_known
from annotation.selectors.reviews import ReviewPage
from annotation.services.assignments.display_order import candidate_token
from annotation.services.judgments.checks import dense_ranks
from annotation.services.judgments.submission import doubts_of
from annotation.services.reviews import decide_review, disagree, open_review
from annotation.statistics.help import agreement_with
from tests import factories
from tests.annotation.judgments.answers import completions_of, span
from tests.records import judgment_record
from tests.refusals import refused

pytestmark = pytest.mark.django_db


@pytest.fixture
def four(project: Project) -> Comparison:
    return factories.make_comparison(project, ["a", "b", "c", "d"])


def ids_of(comparison: Comparison) -> list[int]:
    return [completion.pk for completion in completions_of(comparison)]


def stored(judgment: Judgment) -> dict[str, int]:
    return {row.completion.text: row.rank for row in judgment.ranks.all()}


# ── What is stored ────────────────────────────────────────────────────────────────────


def test_only_the_ranked_ones_have_ranks_and_gaps_close(four: Comparison, alice: User):
    assert stored(factories.make_judgment(four, alice, (0, 7, 0, 2))) == {"d": 1, "b": 2}


def test_ties_among_the_ranked_ones_stay(four: Comparison, alice: User):
    assert stored(factories.make_judgment(four, alice, (3, 0, 3, 0))) == {"a": 1, "c": 1}


def test_one_that_is_left_is_simply_the_last(four: Comparison, alice: User):
    assert stored(factories.make_judgment(four, alice, (1, 1, 0, 2))) == {"a": 1, "b": 1, "d": 2, "c": 3}
    assert dense_ranks({7: 4}, [7, 8]) == {7: 1, 8: 2}


@pytest.mark.parametrize("ranks", [(0, 0, 0), (1, -1, 0)])
def test_nothing_ranked_and_a_rank_below_one_are_refused(project: Project, alice: User, ranks):
    with pytest.raises(InvalidAnswer):
        factories.make_judgment(factories.make_comparison(project, ["a", "b", "c"]), alice, ranks)
    assert not Judgment.objects.exists()


def test_a_pair_is_ranked_whole_or_not_at_all(project: Project, alice: User):
    with refused("ranks_incomplete", InvalidAnswer) as refusal:
        factories.make_judgment(factories.make_comparison(project), alice, (1, 0))
    assert refusal.value.field == "ranks"


def test_two_of_four_are_no_pair_and_have_no_strength(four: Comparison, alice: User):
    with refused("strength_not_asked", InvalidAnswer) as refusal:
        factories.make_judgment(four, alice, (1, 2, 0, 0), strength=2)
    assert refusal.value.field == "strength"
    judgment = factories.make_judgment(four, alice, (1, 2, 0, 0))
    entered = Entered.from_judgment(judgment)
    assert (entered.choice, entered.partial) == (Verdict.RANKED, "yes")


@pytest.mark.parametrize("verdict", [Verdict.EQUAL, Verdict.BOTH_BAD])
def test_a_verdict_without_a_winner_leaves_nobody_out(four: Comparison, alice: User, verdict: Verdict):
    with refused("ranks_incomplete", InvalidAnswer):
        factories.make_judgment(four, alice, (1, 1, 0, 0), verdict=verdict)


# ── Pairs ─────────────────────────────────────────────────────────────────────────────


def test_a_ranked_one_is_above_the_rest_and_two_of_the_rest_say_nothing():
    ranks = {1: 2, 2: 1}
    outcomes = {pair: outcome_between(ranks, *pair) for pair in [(1, 2), (1, 3), (3, 2), (3, 4)]}
    assert outcomes == {(1, 2): -1, (1, 3): 1, (3, 2): -1, (3, 4): None}
    assert outcome_between({}, 1, 2) is None
    assert [decides_a_pair(ranks, size) for ranks, size in (({1: 1}, 3), ({1: 1, 2: 1}, 2), ({}, 3))] == [
        *(True, False, False)
    ]
    assert unordered_among(ranks, [4, 2, 1, 3]) == [4, 3]
    assert unordered_among({}, [1, 2]) == []


def test_two_of_the_rest_are_missing_data_in_every_reading(four: Comparison, alice: User, bob: User):
    Comparison.objects.filter(pk=four.pk).update(overlap=2, open_slots=2)
    _, _, c, d = ids_of(four)
    factories.make_judgment(four, alice, (1, 2, 0, 0))
    factories.make_judgment(four, bob, (1, 2, 3, 4))
    item = judged_in(four.project)
    assert [len(judgment.outcomes()) for judgment in item] == [5, 6]
    assert (c, d) not in {(left, right) for left, right, _ in item[0].outcomes()}
    # All five shared pairs agree.
    four.refresh_from_db()
    assert four.agreement == 1.0
    # a: 1, 1. b: 2, 2. c and d have one rank each, Bob's.
    assert sorted(rank_units(item)) == [[1.0, 1.0], [2.0, 2.0], [3.0], [4.0]]
    first, second = rankings(item)
    assert first == [1.0, 2.0, math.inf, math.inf]
    # Over the five pairs that both ordered, all alike.
    assert kendall_tau_b(first, second) == 1.0
    assert kendall_tau_b([1.0, math.inf, math.inf], [2.0, 1.0, 3.0]) == 0.0
    assert len(position_outcomes(item[:1])) == 5


def test_a_retest_is_compared_on_the_pairs_that_both_rankings_order(four: Comparison, alice: User):
    factories.make_judgment(four, alice, (1, 2, 0, 0))
    [first] = judged_in(four.project)
    a, b, c, d = ids_of(four)

    def again(ranks: dict[int, int]) -> Judged:
        return replace(first, pk=-1, assignment=-1, retest_of=first.assignment, ranks=ranks)

    whole = again({a: 1, b: 2, c: 3, d: 4})
    assert [(same, pairs) for _, same, pairs in retest_matches([first, whole])] == [(5, 5)]
    turned = again({b: 1})
    # b above a now; b above c and d as before; of a, c and d it gives no order, nor the first of c and d.
    assert [(same, pairs) for _, same, pairs in retest_matches([first, turned])] == [(2, 3)]
    # Who could not judge again is not alike on any pair that the first one ordered.
    assert [(same, pairs) for _, same, pairs in retest_matches([first, again({})])] == [(0, 5)]


def test_agreement_in_the_experiment_counts_the_pairs_that_both_ordered():
    mine = {1: 1, 2: 2}
    # Who ranks 1 alone orders 1-2, 1-3 and 1-4, as I do; who ranks 2 alone 2-3 and 2-4 as I do, and 1-2 not.
    assert agreement_with(mine, [{1: 1}], [1, 2, 3, 4]) == 1.0
    assert agreement_with(mine, [{2: 1}], [1, 2, 3, 4]) == pytest.approx(2 / 3)
    assert agreement_with(mine, [{}], [1, 2, 3, 4]) is None


def test_contradictions_are_found_in_what_both_ordered():
    partial = (Verdict.RANKED, {1: 1})
    assert disagree(partial, (Verdict.RANKED, {2: 1}))
    assert disagree(partial, (Verdict.RANKED, {1: 2, 2: 1, 3: 3}))
    assert not disagree(partial, (Verdict.RANKED, {1: 1, 2: 3, 3: 2}))
    assert not disagree(partial, (Verdict.EQUAL, {1: 1, 2: 1, 3: 1}))


def test_lists_of_comparisons_take_the_best_of_a_partial_ranking_for_the_winner(
    four: Comparison, alice: User
):
    factories.make_judgment(four, alice, (1, 0, 0, 0))
    shown_first = Judgment.objects.get().assignment.display_order[0] == ids_of(four)[0]
    found = {
        shown: bool(items_behind(four.project, Selection(), shown))
        for shown in (Shown.NO_WINNER, Shown.FIRST_WON, Shown.LATER_WON)
    }
    assert found == {Shown.NO_WINNER: False, Shown.FIRST_WON: shown_first, Shown.LATER_WON: not shown_first}


# ── Active learning ───────────────────────────────────────────────────────────────────


def test_the_best_is_chosen_among_all_and_the_rest_not_among_itself(four: Comparison, alice: User):
    factories.make_judgment(four, alice, (0, 1, 0, 2))
    clear_cache()
    arrays = arrays_of(four.project, 1)
    ids = ids_of(four)
    assert unread(arrays) == set(ids)
    for pk in ids:
        arrays.add(pk, np.zeros(arrays._table.shape[1], dtype=np.float32))
    read_new(arrays)
    row = {arrays.row_of[pk]: text for pk, text in zip(ids, "abcd", strict=True)}
    chosen = [[row[at] for at in choice if at in row] for choice in arrays.choices().table.tolist()]
    assert sorted((choice[0], sorted(choice[1:])) for choice in chosen) == [
        ("b", ["a", "c", "d"]),
        ("d", ["a", "c"]),
    ]
    clear_cache()


# ── Gold ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("known", "given", "right"),
    [
        ((1, 0, 0, 0), (1, 0, 0, 0), True),
        ((1, 0, 0, 0), (1, 2, 3, 4), True),
        ((1, 0, 0, 0), (2, 1, 3, 4), False),
        ((1, 0, 0, 0), (1, 1, 2, 3), False),
        ((1, 2, 0, 0), (1, 0, 0, 0), False),  # b above c is left open
        ((1, 2, 3, 4), (1, 2, 0, 0), False),  # c above d is left open
        ((1, 2, 2, 2), (1, 0, 0, 0), True),
        ((1, 1, 0, 0), (2, 1, 0, 0), True),  # the known tie leaves the pair open
        ((1, 1, 0, 0), (1, 0, 0, 0), False),  # b above c is left open
    ],
)
def test_a_known_answer_is_met_where_every_pair_that_it_decides_is(project: Project, known, given, right):
    gold = factories.make_gold_item(project, known)
    ranks = {pk: rank for pk, rank in zip(ids_of(gold), given, strict=True) if rank}
    assert agrees_with_known(gold.gold_answer, verdict=Verdict.RANKED, ranks=ranks) is right


# ── Reviews, doubts ───────────────────────────────────────────────────────────────────


def test_a_review_may_rank_the_best_alone(four: Comparison, alice: User, rita: User):
    factories.make_judgment(four, alice, (1, 0, 0, 0))
    review = open_review(comparison=four, reason=ReviewReason.REQUESTED)
    best = ids_of(four)[1]
    decided = decide_review(review=review, reviewer=rita, verdict=Verdict.RANKED, ranks={best: 1})
    # One rank alone is no tie of all.
    assert (decided.verdict, decided.ranks) == (Verdict.RANKED, {str(best): 1})
    page = ReviewPage(decided)
    letters = {letter: int(pk) for pk, letter in page._letters.items()}
    winner = next(letter for letter, pk in letters.items() if pk == best)
    rest = ", ".join(sorted(set("ABCD") - {winner}))
    assert page.decision == f"{winner}; not ordered: {rest}"
    assert page.votes[0].verdict.startswith(
        next(letter for letter, pk in letters.items() if pk == ids_of(four)[0])
    )


def test_the_form_of_a_review_asks_for_the_rest_or_for_its_being_left(
    four: Comparison, rita: User, client_of
):
    review = open_review(comparison=four, reason=ReviewReason.REQUESTED)
    name = ReviewPage(review).completions[0].name
    address = reverse("review-decide", args=[four.project.slug, review.pk])
    sent = {f"rank-{name}": "1", "choice": "ranked", "idempotency_key": str(uuid.uuid4())}
    refused = client_of(rita).post(address, sent)
    assert "Rank B, C and D, or leave them unordered." in refused.content.decode()
    client_of(rita).post(address, {**sent, "partial": "yes"})
    assert len(Review.objects.get().ranks) == 1


def test_doubts_compare_the_ranked_ones_with_the_rest(four: Comparison, alice: User):
    assignment = factories.lease_to(four, alice)
    shown = assignment.display_order
    marked = span(four, "a")
    ranks = {int(marked.completion): 1}
    answer = judgment_record(verdict=Verdict.RANKED, ranks=ranks, spans=(marked,))
    (doubt,) = doubts_of(answer, assignment)
    assert doubt.key.startswith("against-marks-")
    in_order = judgment_record(verdict=Verdict.RANKED, ranks={shown[0]: 1, shown[1]: 2})
    assert doubts_of(in_order, assignment) == ()
    # Three of four in the order shown are all four.
    whole = judgment_record(verdict=Verdict.RANKED, ranks={pk: n for n, pk in enumerate(shown[:3], start=1)})
    assert [doubt.key for doubt in doubts_of(whole, assignment)] == ["as-shown"]


# ── Pages ─────────────────────────────────────────────────────────────────────────────


def test_a_form_with_some_ranks_needs_the_deliberate_sign(four: Comparison, alice: User, client_of):
    assignment = factories.lease_to(four, alice)
    browser: Client = client_of(alice)
    address = reverse("submit", args=[four.project.slug, assignment.pk])
    best = ids_of(four)[2]
    sent = {f"rank-{candidate_token(assignment, best)}": "1", "idempotency_key": str(uuid.uuid4())}
    refused = browser.post(address, sent)
    assert refused.status_code == 422
    assert "or leave them unordered." in refused.content.decode()
    browser.post(address, {**sent, "partial": "yes"})
    assert stored(Judgment.objects.get()) == {"c": 1}
    revised = browser.get(reverse("revise", args=[four.project.slug, assignment.pk])).content.decode()
    assert 'name="partial" value="yes" checked' in revised


def test_the_page_of_a_comparison_names_what_has_no_order(
    four: Comparison, alice: User, carol: User, client_of
):
    judgment = factories.make_judgment(four, alice, (1, 0, 0, 0))
    shown = judgment.assignment.display_order
    letters = dict(zip(shown, "ABCD", strict=True))
    best = letters.pop(ids_of(four)[0])
    page = reverse("statistics-item", args=[four.project.slug, four.pk])
    content = client_of(carol).get(page, {"view": f"a{alice.pk}"}).content.decode()
    assert f"{best}; not ordered: {', '.join(sorted(letters.values()))}" in content
    assert content.count('<span class="badge">not ordered</span>') == 3
