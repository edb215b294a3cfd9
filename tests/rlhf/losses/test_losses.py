"""Preference losses against hand calculations, enumeration of all orders and finite differences."""

import math
from collections.abc import Callable
from itertools import pairwise, permutations, product
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from training.rlhf import losses

TIES = ("exact", "efron", "breslow", "davidson")


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def probability_of_order(scores, order) -> float:
    """Plackett-Luce by its definition."""
    p = 1.0
    for position in range(len(order)):
        p *= math.exp(scores[order[position]]) / sum(math.exp(scores[i]) for i in order[position:])
    return p


def probability_by_enumeration(scores, ranks) -> float:
    """Summed over every order of the present completions that agrees with the ranks."""
    present = [i for i, rank in enumerate(ranks) if rank > 0]
    return sum(
        probability_of_order(scores, order)
        for order in permutations(present)
        if all(ranks[a] <= ranks[b] for a, b in pairwise(order))
    )


def one_ranking(scores, ranks, **options) -> float:
    return losses.plackett_luce(
        torch.tensor([scores], dtype=torch.float64), torch.tensor([ranks]), **options
    ).item()


def weak_orders(count: int):
    """Every weak order of `count` completions, as dense ranks."""
    for ranks in product(range(1, count + 1), repeat=count):
        if set(ranks) == set(range(1, max(ranks) + 1)):
            yield ranks


scores_of = {k: st.lists(st.floats(-4, 4), min_size=k, max_size=k) for k in range(2, 6)}
rankings = st.integers(2, 5).flatmap(
    lambda k: st.tuples(scores_of[k], st.lists(st.integers(0, k), min_size=k, max_size=k))
)


def test_equal_rewards_cost_ln_2():
    assert losses.bradley_terry(tensor(3), tensor(3)).item() == pytest.approx(math.log(2))


def test_bradley_terry_is_the_mean_of_the_pairs_log_losses():
    # differences 1 and −2: −log σ(1) = 0.313262, −log σ(−2) = 2.126928; mean 1.220095
    loss = losses.bradley_terry(tensor(2, 0), tensor(1, 2))
    assert loss.item() == pytest.approx(1.220095, abs=1e-6)


def test_a_margin_moves_the_point_where_a_pair_is_won():
    loss = losses.bradley_terry(tensor(2), tensor(1), margin=tensor(1))
    assert loss.item() == pytest.approx(math.log(2))


def test_weights_multiply_each_pairs_loss():
    loss = losses.bradley_terry(tensor(0, 0), tensor(0, 0), weight=tensor(1, 3), reduction="none")
    assert loss.tolist() == pytest.approx([math.log(2), 3 * math.log(2)])


def test_a_weight_of_two_is_the_pair_twice():
    weighted = losses.bradley_terry(tensor(1, 0), tensor(0, 3), weight=tensor(2, 1))
    repeated = losses.bradley_terry(tensor(1, 1, 0), tensor(0, 0, 3))
    assert weighted.item() == pytest.approx(repeated.item())


def test_smoothing_mixes_the_loss_of_the_label_and_of_its_opposite():
    # 0.9 · 0.313262 + 0.1 · 1.313262 = 0.413262
    loss = losses.bradley_terry(tensor(1), tensor(0), label_smoothing=0.1)
    assert loss.item() == pytest.approx(0.413262, abs=1e-6)


def test_scores_in_half_precision_are_worked_with_in_single():
    chosen = torch.tensor([300.0], dtype=torch.bfloat16)
    loss = losses.bradley_terry(chosen, chosen - 1)
    assert loss.dtype == torch.float32


def test_davidson_by_hand():
    # l = 1, r = 0, ν = 2: e = 2.718282, 1 and 2·e^0.5 = 3.297443, in all 7.015725
    expected = [-math.log(x / 7.0157242) for x in (2.7182818, 3.2974425, 1.0)]
    ones, zeros = torch.ones(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    costs = losses.davidson(
        ones, zeros, torch.tensor([1, 0, -1]), torch.log(tensor(2)).squeeze(), reduction="none"
    )
    assert costs.tolist() == pytest.approx(expected, abs=1e-6)


def test_davidson_without_ties_is_bradley_terry():
    left, right = tensor(0.3, -1, 2), tensor(1.1, 0.2, -0.5)
    costs = losses.davidson(left, right, torch.ones(3), torch.tensor(-60.0), reduction="none")
    assert torch.allclose(costs, losses.bradley_terry(left, right, reduction="none"))


def test_davidson_refuses_an_outcome_that_is_none():
    with pytest.raises(ValueError, match=r"outcome must hold 1 \(left\)"):
        losses.davidson(tensor(0), tensor(0), torch.tensor([2]), torch.tensor(0.0))


@settings(deadline=None)
@given(rankings)
def test_exact_ties_are_the_sum_over_all_agreeing_orders(case):
    scores, ranks = case
    assert one_ranking(scores, ranks) == pytest.approx(
        -math.log(probability_by_enumeration(scores, ranks)), abs=1e-9
    )


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_probabilities_of_all_strict_orders_sum_to_one(count):
    scores = [0.7, -1.2, 0.1, 2.0][:count]
    orders = [[*order] for order in permutations(range(1, count + 1))]
    assert sum(math.exp(-one_ranking(scores, ranks)) for ranks in orders) == pytest.approx(1)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_probabilities_of_all_weak_orders_sum_to_one_under_davidson_luce(count):
    scores = [0.7, -1.2, 0.1, 2.0][:count]
    log_tie = tensor(-0.3, 0.4, -1.1)[: count - 1]
    total = sum(
        math.exp(-one_ranking(scores, ranks, ties="davidson", log_tie=log_tie))
        for ranks in weak_orders(count)
    )
    assert total == pytest.approx(1)


@pytest.mark.parametrize("ties", TIES)
@given(scores=scores_of[3])
def test_without_ties_every_treatment_is_plackett_luce(ties, scores):
    log_tie = tensor(-80, -80) if ties == "davidson" else None
    cost = one_ranking(scores, [2, 1, 3], ties=ties, log_tie=log_tie)
    assert cost == pytest.approx(-math.log(probability_of_order(scores, (1, 0, 2))), abs=1e-9)


def test_two_completions_are_a_pair():
    scores = torch.tensor([[0.4, -0.9]], dtype=torch.float64)
    expected = losses.bradley_terry(scores[:, 0], scores[:, 1])
    assert losses.plackett_luce(scores, torch.tensor([[1, 2]])).item() == pytest.approx(expected.item())


def test_a_tied_pair_under_davidson_luce_is_davidsons_tie():
    scores = torch.tensor([[0.4, -0.9]], dtype=torch.float64)
    cost = losses.plackett_luce(scores, torch.tensor([[1, 1]]), ties="davidson", log_tie=tensor(0.2))
    expected = losses.davidson(scores[:, 0], scores[:, 1], torch.tensor([0]), tensor(0.2))
    assert cost.item() == pytest.approx(expected.item())


def test_efron_and_breslow_by_hand():
    # scores 0, log 2, log 3 → weights 1, 2, 3; the first two tied best, the third last.
    scores = [0.0, math.log(2), math.log(3)]
    # Breslow: 1·2 / 6²; the last choice is certain.
    assert one_ranking(scores, [1, 1, 2], ties="breslow") == pytest.approx(-math.log(2 / 36))
    # Efron: the group weighs 3, so the second choice is made from 6 − 3/2.
    assert one_ranking(scores, [1, 1, 2], ties="efron") == pytest.approx(-math.log(2 / (6 * 4.5)))


def test_gaps_in_ranks_do_not_matter():
    scores = [0.3, 1.0, -0.4]
    for ties in ("exact", "efron", "breslow"):
        assert one_ranking(scores, [2, 9, 9], ties=ties) == one_ranking(scores, [1, 2, 2], ties=ties)


@pytest.mark.parametrize("ties", TIES)
def test_an_absent_completion_changes_nothing_and_gets_no_gradient(ties):
    log_tie = tensor(0.1, -0.2) if ties == "davidson" else None
    with_absent = torch.tensor([[0.5, 99.0, -0.2, 0.9]], dtype=torch.float64, requires_grad=True)
    loss = losses.plackett_luce(with_absent, torch.tensor([[1, 0, 2, 1]]), ties=ties, log_tie=log_tie)
    loss.backward()
    assert loss.item() == pytest.approx(one_ranking([0.5, -0.2, 0.9], [1, 2, 1], ties=ties, log_tie=log_tie))
    assert with_absent.grad is not None
    assert with_absent.grad[0, 1] == 0


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("ranks", [[0, 0, 0], [0, 1, 0]])
def test_fewer_than_two_completions_cost_nothing(ties, ranks):
    log_tie = tensor(0.1, -0.2) if ties == "davidson" else None
    assert one_ranking([0.5, 1.0, -0.2], ranks, ties=ties, log_tie=log_tie) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("ties", TIES)
def test_rows_of_a_batch_do_not_touch_each_other(ties):
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    ranks = torch.tensor([[1, 2, 3, 4], [1, 1, 2, 2], [0, 1, 1, 0], [2, 2, 2, 1], [1, 1, 1, 1], [4, 0, 2, 2]])
    options = {"ties": ties, "log_tie": tensor(0.3, -0.4, 0.2) if ties == "davidson" else None}
    together = losses.plackett_luce(scores, ranks, reduction="none", **options)
    alone = [losses.plackett_luce(scores[i : i + 1], ranks[i : i + 1], **options) for i in range(6)]
    assert torch.allclose(together, torch.stack(alone))


@pytest.mark.parametrize("ties", TIES)
def test_gradients_of_rankings_are_finite_differences(ties):
    scores = torch.tensor([[0.5, 1.0, -0.2, 0.9], [2.0, 0.1, 0.0, -1.0]], dtype=torch.float64)
    ranks = torch.tensor([[1, 2, 1, 0], [3, 1, 1, 2]])
    log_tie = tensor(0.3, -0.4).requires_grad_() if ties == "davidson" else None
    inputs = (scores.requires_grad_(),) if log_tie is None else (scores.requires_grad_(), log_tie)

    def loss(scores, log_tie=None):
        return losses.plackett_luce(scores, ranks, ties=ties, log_tie=log_tie)

    assert torch.autograd.gradcheck(loss, inputs)


def test_scores_far_apart_stay_finite():
    scores = torch.tensor([[1000.0, -1000.0, 0.0]], requires_grad=True)
    for ties in ("exact", "efron", "breslow"):
        loss = losses.plackett_luce(scores, torch.tensor([[3, 1, 1]]), ties=ties)
        (gradient,) = torch.autograd.grad(loss, scores)
        assert torch.isfinite(loss)
        assert torch.isfinite(gradient).all()


def test_nine_tied_completions_are_certain_to_come_in_some_order():
    scores = [0.1 * i for i in range(9)]
    assert one_ranking(scores, [1] * 9) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("ranks", "options", "message"),
    [
        ([[1, 1, 1]], {"ties": "davidson", "log_tie": torch.zeros(1)}, "ties 3 completions"),
        ([[1, -2, 2]], {}, "0 for a completion that is absent and -1 for one below all"),
        ([[1, 2]], {}, r"must both be \(batch, K\)"),
        ([[1, 2, 3]], {"ties": "davidson"}, "log_tie goes with ties='davidson'"),
        ([[1, 2, 3]], {"ties": "random"}, "ties 'random' is not known"),
        ([[1, 2, 3]], {"reduction": "sum"}, "reduction 'sum' is not known"),
    ],
)
def test_rankings_that_make_no_sense_are_refused(ranks, options, message):
    with pytest.raises(ValueError, match=message):
        losses.plackett_luce(torch.zeros(1, 3), torch.tensor(ranks), **options)


def test_the_first_dpo_step_costs_ln_2():
    chosen, rejected = tensor(-40, -3), tensor(-55, -90)
    loss = losses.dpo(chosen, rejected, chosen, rejected, beta=0.1)
    assert loss.item() == pytest.approx(math.log(2))


# policy −10 and −14, reference −11 and −12: h = 4 − 1 = 3, and with β = 0.5: βh = 1.5
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, -math.log(sigmoid(1.5))),
        ({"label_smoothing": 0.2}, -0.8 * math.log(sigmoid(1.5)) - 0.2 * math.log(sigmoid(-1.5))),
        (
            {"loss": "robust", "label_smoothing": 0.2},
            (-0.8 * math.log(sigmoid(1.5)) + 0.2 * math.log(sigmoid(-1.5))) / 0.6,
        ),
        ({"loss": "ipo"}, (3 - 1) ** 2),
        ({"loss": "hinge"}, 0.0),
    ],
)
def test_every_dpo_loss_by_hand(options, expected):
    loss = losses.dpo(tensor(-10), tensor(-14), tensor(-11), tensor(-12), beta=0.5, **options)
    assert loss.item() == pytest.approx(expected)


def test_the_hinge_costs_what_is_lacking():
    loss = losses.dpo(tensor(-10), tensor(-10), tensor(-10), tensor(-11), beta=0.5, loss="hinge")
    assert loss.item() == pytest.approx(1.5)


# h = 3, β = 0.5: (h − 1)² = 4 and (−h − 1)² = 16; max(0, 1 − 1.5) = 0 and max(0, 1 + 1.5) = 2.5
@pytest.mark.parametrize(("loss", "expected"), [("ipo", 0.8 * 4 + 0.2 * 16), ("hinge", 0.2 * 2.5)])
def test_smoothing_mixes_in_the_loss_of_the_flipped_label(loss, expected):
    cost = losses.dpo(
        tensor(-10), tensor(-14), tensor(-11), tensor(-12), beta=0.5, loss=loss, label_smoothing=0.2
    )
    assert cost.item() == pytest.approx(expected)


def test_dpo_on_a_ranking_of_two_is_dpo():
    policy, ref = torch.tensor([[-10.0, -14.0]]), torch.tensor([[-11.0, -12.0]])
    cost = losses.dpo_plackett_luce(policy, ref, torch.tensor([[1, 2]]), beta=0.5)
    expected = losses.dpo(policy[:, 0], policy[:, 1], ref[:, 0], ref[:, 1], beta=0.5)
    assert cost.item() == pytest.approx(expected.item())


def test_kto_by_hand():
    # log-ratios 1 and −2, z = 0.5, β = 2: 1 − σ(1) = 0.268941 and 1.5 (1 − σ(5)) = 0.010039
    loss = losses.kto(
        tensor(-3, -7),
        tensor(-4, -5),
        torch.tensor([True, False]),
        tensor(0.5),
        beta=2,
        weight_desirable=1,
        weight_undesirable=1.5,
        reduction="none",
    )
    assert loss.tolist() == pytest.approx([0.2689414, 1.5 * 0.0066929], abs=1e-6)


def test_a_negative_estimate_of_the_divergence_counts_as_none():
    arguments = (tensor(-3), tensor(-4), torch.tensor([True]))
    below = losses.kto(*arguments, tensor(-5), beta=1, weight_desirable=1, weight_undesirable=1)
    none = losses.kto(*arguments, tensor(0), beta=1, weight_desirable=1, weight_undesirable=1)
    assert below == none


def test_robust_dpo_is_unbiased_when_labels_are_flipped():
    # Label and flipped label mixed with probabilities 1 − ε and ε give back the loss without noise.
    arguments: dict[str, Any] = {"beta": 0.5, "loss": "robust", "label_smoothing": 0.2}
    stated = losses.dpo(tensor(-10), tensor(-14), tensor(-11), tensor(-12), **arguments).item()
    flipped = losses.dpo(tensor(-14), tensor(-10), tensor(-12), tensor(-11), **arguments).item()
    assert 0.8 * stated + 0.2 * flipped == pytest.approx(-math.log(sigmoid(1.5)))


def test_dpo_raises_the_chosen_and_lowers_the_rejected_alike():
    # The slope of −log σ(βh) in log π(y⁺) is −β σ(−βh) = −0.5 · σ(−1.5) = −0.091213.
    chosen, rejected = tensor(-10).requires_grad_(), tensor(-14).requires_grad_()
    losses.dpo(chosen, rejected, tensor(-11), tensor(-12), beta=0.5).backward()
    assert chosen.grad.item() == pytest.approx(-0.091213, abs=1e-6)
    assert rejected.grad.item() == pytest.approx(0.091213, abs=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: losses.bradley_terry(x, x, label_smoothing=0.5), "label_smoothing 0.5"),
        (lambda x: losses.bradley_terry(x, x, reduction=cast(Any, "sum")), "reduction 'sum'"),
        (lambda x: losses.dpo(x, x, x, x, beta=0.0), "beta 0.0 must be positive"),
        (lambda x: losses.dpo(x, x, x, x, beta=0.1, loss=cast(Any, "cube")), "loss 'cube' is not known"),
    ],
)
def test_pair_losses_refuse_what_makes_no_sense(call: Callable[[Any], Any], message: str):
    with pytest.raises(ValueError, match=message):
        call(tensor(1))


@pytest.mark.parametrize("ties", ["exact", "efron", "breslow", "davidson"])
def test_a_rankings_slope_does_not_depend_on_the_rankings_beside_it(ties) -> None:
    ranks = torch.tensor([[1, 1, 1, 2], [1, 2, 3, 4], [1, 1, 0, 0], [2, 1, 1, 0]])
    log_tie = torch.tensor([-0.5, -1.0, -1.5]) if ties == "davidson" else None
    together = torch.randn(4, 4, generator=torch.Generator().manual_seed(1), requires_grad=True)
    losses.plackett_luce(together, ranks, ties=ties, log_tie=log_tie, reduction="none").sum().backward()
    assert together.grad is not None
    for index in range(4):
        alone = together[index : index + 1].detach().clone().requires_grad_()
        losses.plackett_luce(alone, ranks[index : index + 1], ties=ties, log_tie=log_tie).backward()
        assert alone.grad is not None
        assert torch.allclose(together.grad[index], alone.grad[0], atol=1e-6)
        # Only differences of scores count, so the slopes of a ranking sum to 0.
        assert alone.grad.sum().item() == pytest.approx(0.0, abs=1e-5)


def test_a_loss_on_pairs_is_added_by_its_name_and_serves_like_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("training.rlhf.losses._DPO_TERMS", {})
    losses.register_dpo_loss("exponential", lambda h, beta: torch.exp(-beta * h))
    margins = [torch.tensor([0.0, 2.0]), *(torch.zeros(2) for _ in range(3))]
    # e^0 and e^(−0.5 · 2), by hand.
    assert losses.dpo(*margins, beta=0.5, loss="exponential").item() == pytest.approx((1 + math.exp(-1)) / 2)
    with pytest.raises(ValueError, match="'sigmoid' is not known; it is one of exponential"):
        losses.dpo(*margins, beta=0.5, loss="sigmoid")
