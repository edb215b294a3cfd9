"""Plackett-Luce on the best m of k, against hand calculations and enumeration of full rankings."""

import math
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rlhf.losses.test_losses import (
    TIES,
    one_ranking,
    probability_by_enumeration,
    scores_of,
    tensor,
    weak_orders,
)
from training.rlhf import losses

REST = losses.NOT_ORDERED
LOG_TIE = tensor(-0.3, 0.4, -1.1, 0.2)


def log_tie(ties):
    return LOG_TIE if ties == "davidson" else None


@st.composite
def partial_rankings(draw, *, ties: bool = True, rest: int | None = None):
    """Scores of 3 to 5 completions and ranks, some −1; at least one is ranked and at least one is not."""
    count = draw(st.integers(3, 5))
    ranked = count - rest if rest else draw(st.integers(1, count - 1))
    places = (
        st.lists(st.integers(1, ranked), min_size=ranked, max_size=ranked)
        if ties
        else st.permutations(range(1, ranked + 1))
    )
    ranks = [*draw(places), *[REST] * (count - ranked)]
    return draw(scores_of[count]), list(draw(st.permutations(ranks)))


def full_rankings(ranks):
    """Every strict order of the completions that are not ordered, placed below the ranked ones."""
    rest = [place for place, rank in enumerate(ranks) if rank == REST]
    for order in permutations(range(len(rest))):
        full = list(ranks)
        for place, below in zip(rest, order, strict=True):
            full[place] = max(ranks) + 1 + below
        yield full


def test_the_best_of_three_alone_is_one_choice_among_all():
    # Weights 1, 2, 3; the second is best: 2 / 6. Then nothing more is known.
    scores = [0.0, math.log(2), math.log(3)]
    for ties in TIES[:3]:
        assert one_ranking(scores, [REST, 1, REST], ties=ties) == pytest.approx(-math.log(2 / 6))
    # Davidson-Luce with δ₂ = 1 and δ₃ = 0: sets weigh 1, 2, 3, √2, √3, √6.
    tie = tensor(0, -80)
    total = 6 + math.sqrt(2) + math.sqrt(3) + math.sqrt(6)
    cost = one_ranking(scores, [REST, 1, REST], ties="davidson", log_tie=tie)
    assert cost == pytest.approx(-math.log(2 / total))


def test_the_best_two_of_four_are_two_choices():
    # Weights 1, 2, 3, 4: the last first, of 10, then the first, of 6.
    scores = [math.log(weight) for weight in (1, 2, 3, 4)]
    for ties in TIES[:3]:
        assert one_ranking(scores, [2, REST, REST, 1], ties=ties) == pytest.approx(-math.log(4 / 10 * 1 / 6))


def test_two_tied_above_the_rest_under_efron_and_breslow_by_hand():
    # Weights 1, 2, 3, 4; the first two tied best: 1·2 over 10², or over 10 and 10 − 3/2.
    scores = [math.log(weight) for weight in (1, 2, 3, 4)]
    ranks = [1, 1, REST, REST]
    assert one_ranking(scores, ranks, ties="breslow") == pytest.approx(-math.log(2 / 100))
    assert one_ranking(scores, ranks, ties="efron") == pytest.approx(-math.log(2 / (10 * 8.5)))
    # Exactly: first then second, or second then first.
    exact = 1 / 10 * 2 / 9 + 2 / 10 * 1 / 8
    assert one_ranking(scores, ranks) == pytest.approx(-math.log(exact))


@settings(deadline=None)
@given(partial_rankings())
def test_a_partial_ranking_is_as_likely_as_all_full_rankings_that_agree_with_it(case):
    scores, ranks = case
    below = max(ranks) + 1
    # One rank for all the rest is, for the enumeration, every order of them.
    whole = probability_by_enumeration(scores, [below if rank == REST else rank for rank in ranks])
    assert one_ranking(scores, ranks) == pytest.approx(-math.log(whole), abs=1e-9)


@pytest.mark.parametrize("ties", ["exact", "efron", "breslow"])
@given(case=partial_rankings())
def test_the_strict_orders_of_the_rest_sum_to_the_partial_ranking(ties, case):
    scores, ranks = case
    total = sum(math.exp(-one_ranking(scores, full, ties=ties)) for full in full_rankings(ranks))
    assert math.exp(-one_ranking(scores, ranks, ties=ties)) == pytest.approx(total, rel=1e-9)


@given(partial_rankings())
def test_under_davidson_luce_the_weak_orders_of_the_rest_sum_to_the_partial_ranking(case):
    scores, ranks = case
    rest = [place for place, rank in enumerate(ranks) if rank == REST]
    total = 0.0
    for order in weak_orders(len(rest)):
        full = list(ranks)
        for place, below in zip(rest, order, strict=True):
            full[place] = max(ranks) + below
        total += math.exp(-one_ranking(scores, full, ties="davidson", log_tie=LOG_TIE))
    partial = math.exp(-one_ranking(scores, ranks, ties="davidson", log_tie=LOG_TIE))
    assert partial == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("ties", ["exact", "efron", "breslow"])
def test_the_choices_of_the_best_two_sum_to_one(ties):
    scores = [0.7, -1.2, 0.1, 2.0]
    total = 0.0
    for first, second in permutations(range(4), 2):
        ranks = [REST] * 4
        ranks[first], ranks[second] = 1, 2
        total += math.exp(-one_ranking(scores, ranks, ties=ties))
    assert total == pytest.approx(1)


@pytest.mark.parametrize("ties", TIES)
@given(case=partial_rankings(), data=st.data())
def test_the_order_of_the_completions_does_not_matter(ties, case, data):
    scores, ranks = case
    order = data.draw(st.permutations(range(len(scores))))
    moved = one_ranking(
        [scores[i] for i in order], [ranks[i] for i in order], ties=ties, log_tie=log_tie(ties)
    )
    assert moved == pytest.approx(one_ranking(scores, ranks, ties=ties, log_tie=log_tie(ties)), abs=1e-9)


@pytest.mark.parametrize("ties", TIES)
@given(case=partial_rankings(), padding=st.floats(-50, 50))
def test_padding_changes_nothing(ties, case, padding):
    scores, ranks = case
    padded = one_ranking([padding, *scores], [0, *ranks], ties=ties, log_tie=log_tie(ties))
    assert padded == pytest.approx(one_ranking(scores, ranks, ties=ties, log_tie=log_tie(ties)), abs=1e-9)


@pytest.mark.parametrize("ties", TIES)
@given(case=partial_rankings(rest=1))
def test_one_left_over_is_simply_the_last(ties, case):
    scores, ranks = case
    full = [max(ranks) + 1 if rank == REST else rank for rank in ranks]
    last = one_ranking(scores, full, ties=ties, log_tie=log_tie(ties))
    assert one_ranking(scores, ranks, ties=ties, log_tie=log_tie(ties)) == pytest.approx(last, abs=1e-9)


@given(partial_rankings(ties=False))
def test_without_ties_every_treatment_of_ties_gives_the_same(case):
    scores, ranks = case
    exact = one_ranking(scores, ranks)
    for ties in ("efron", "breslow"):
        assert one_ranking(scores, ranks, ties=ties) == pytest.approx(exact, abs=1e-9)
    rare = tensor(-80, -80, -80, -80)
    assert one_ranking(scores, ranks, ties="davidson", log_tie=rare) == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("ties", TIES)
def test_none_ranked_costs_nothing(ties):
    assert one_ranking([0.5, 1.0, 3.0], [REST, REST, 0], ties=ties, log_tie=log_tie(ties)) == pytest.approx(0)


@pytest.mark.parametrize("ties", TIES)
def test_full_and_partial_rankings_of_a_batch_do_not_touch_each_other(ties):
    scores = torch.randn(5, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    ranks = torch.tensor(
        [[1, 2, 3, 4], [1, REST, REST, 0], [REST, 1, 2, REST], [1, 1, REST, REST], [REST, REST, REST, 1]]
    )
    options = {"ties": ties, "log_tie": log_tie(ties)}
    together = losses.plackett_luce(scores, ranks, reduction="none", **options)
    alone = [losses.plackett_luce(scores[i : i + 1], ranks[i : i + 1], **options) for i in range(5)]
    assert torch.allclose(together, torch.stack(alone))


@pytest.mark.parametrize("ties", TIES)
def test_gradients_of_partial_rankings_are_finite_differences(ties):
    scores = torch.tensor([[0.5, 1.0, -0.2, 0.9], [2.0, 0.1, 0.0, -1.0]], dtype=torch.float64)
    ranks = torch.tensor([[1, REST, REST, 0], [REST, 1, 1, REST]])
    tie = tensor(0.3, -0.4).requires_grad_() if ties == "davidson" else None
    inputs = (scores.requires_grad_(),) if tie is None else (scores.requires_grad_(), tie)

    def loss(scores, tie=None):
        return losses.plackett_luce(scores, ranks, ties=ties, log_tie=tie)

    assert torch.autograd.gradcheck(loss, inputs)


@pytest.mark.parametrize("ties", TIES)
def test_gradients_stay_finite_where_scores_are_far_apart(ties):
    scores = torch.tensor([[1000.0, -1000.0, 0.0, 500.0]], requires_grad=True)
    tie = torch.zeros(3) if ties == "davidson" else None
    loss = losses.plackett_luce(scores, torch.tensor([[REST, 1, 1, REST]]), ties=ties, log_tie=tie)
    (gradient,) = torch.autograd.grad(loss, scores)
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()


def test_the_rest_is_pushed_down_and_the_ranked_one_up():
    scores = torch.zeros(1, 3, requires_grad=True)
    losses.plackett_luce(scores, torch.tensor([[1, REST, REST]])).backward()
    # −s₁ + log Σ e^s: 1/3 − 1 for the first, 1/3 for each other.
    assert scores.grad is not None
    assert scores.grad[0].tolist() == pytest.approx([-2 / 3, 1 / 3, 1 / 3])


def test_dpo_on_a_partial_ranking_is_plackett_luce_on_the_implied_rewards():
    policy = torch.tensor([[-10.0, -14.0, -9.0, -20.0]], dtype=torch.float64)
    ref = torch.tensor([[-11.0, -12.0, -9.5, -20.0]], dtype=torch.float64)
    ranks = torch.tensor([[1, REST, 2, REST]])
    # Implied rewards at β = 0.5: 0.5, −1, 0.25, 0.
    weights = [math.exp(reward) for reward in (0.5, -1, 0.25, 0)]
    expected = -math.log(weights[0] / sum(weights)) - math.log(weights[2] / sum(weights[1:]))
    cost = losses.dpo_plackett_luce(policy, ref, ranks, beta=0.5)
    assert cost.item() == pytest.approx(expected)
