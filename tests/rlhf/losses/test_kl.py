"""Divergence estimates against sums over a whole small vocabulary, and the controllers' arithmetic."""

import math

import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from training.rlhf import kl

POLICY = torch.tensor([0.3, -0.8, 1.1, 0.0], dtype=torch.float64)
REFERENCE = torch.tensor([-0.2, 0.4, 0.6, 0.1], dtype=torch.float64)


def true_kl(logits, ref_logits) -> torch.Tensor:
    """torch's own."""
    divergence: torch.Tensor = kl_divergence(Categorical(logits=logits), Categorical(logits=ref_logits))
    return divergence


def expectation(kind, logits, ref_logits) -> torch.Tensor:
    """E over tokens drawn from the policy, the whole vocabulary enumerated."""
    logp, ref_logp = logits.log_softmax(-1), ref_logits.log_softmax(-1)
    expected: torch.Tensor = (logp.exp().detach() * kl.estimate(logp, ref_logp, kind)).sum()
    return expected


def expected_gradient(kind) -> torch.Tensor:
    """Return the mean that many drawn tokens' gradients approach, with respect to the policy's logits."""
    logits = POLICY.clone().requires_grad_()
    return torch.autograd.grad(expectation(kind, logits, REFERENCE), logits)[0]


def test_the_estimates_of_one_token_by_hand():
    # d = log 0.5 − log 0.25 = log 2: k1 = 0.6931, k2 = 0.2402, k3 = 0.5 − 1 + 0.6931 = 0.1931
    logp, ref_logp = torch.tensor([0.5]).log(), torch.tensor([0.25]).log()
    estimates = [kl.estimate(logp, ref_logp, kind).item() for kind in ("k1", "k2", "k3", "abs")]
    assert estimates == pytest.approx([0.693147, 0.240227, 0.193147, 0.693147], abs=1e-6)
    # The other way round d = −log 2: k3 = 2 − 1 − 0.6931 = 0.3069
    estimates = [kl.estimate(ref_logp, logp, kind).item() for kind in ("k1", "k2", "k3", "abs")]
    assert estimates == pytest.approx([-0.693147, 0.240227, 0.306853, 0.693147], abs=1e-6)


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(kind):
    assert expectation(kind, POLICY, REFERENCE).item() == pytest.approx(true_kl(POLICY, REFERENCE).item())


def test_k3_is_never_negative():
    logp = torch.linspace(-30, 0, 301)
    assert (kl.estimate(logp, torch.full_like(logp, -3.0), "k3") >= 0).all()


def test_k1_as_a_loss_has_no_expected_gradient():
    assert expected_gradient("k1").abs().max() < 1e-12


def test_the_expected_gradient_of_k2_is_that_of_the_divergence():
    logits = POLICY.clone().requires_grad_()
    expected = torch.autograd.grad(true_kl(logits, REFERENCE), logits)[0]
    assert expected.abs().max() > 0.05
    assert torch.allclose(expected_gradient("k2"), expected)


def test_the_expected_gradient_of_k3_is_that_of_the_reverse_divergence():
    logits = POLICY.clone().requires_grad_()
    expected = torch.autograd.grad(true_kl(REFERENCE, logits), logits)[0]
    assert expected.abs().max() > 0.05
    assert torch.allclose(expected_gradient("k3"), expected)


def test_k3_does_not_explode():
    logp = torch.tensor([-200.0, -100.0, -8.0, -1.0], requires_grad=True)
    estimates = kl.estimate(logp, torch.zeros(4), "k3")
    # e^5 − 6 = 142.413 wherever the reference is more than e^5 times likelier; e − 2 at one nat.
    assert estimates.tolist() == pytest.approx([142.41316, 142.41316, 142.41316, math.e - 2], rel=1e-6)
    estimates.sum().backward()
    assert torch.allclose(logp.grad, torch.tensor([0.0, 0.0, 0.0, 1 - math.e]))


def test_half_precision_is_worked_with_in_single():
    half = torch.tensor([-1.0], dtype=torch.bfloat16)
    assert kl.estimate(half, half).dtype == torch.float32
    assert kl.full(half, half).dtype == torch.float32


def test_an_unknown_estimate_is_refused():
    with pytest.raises(ValueError, match="k1, k2, k3, abs"):
        kl.estimate(torch.zeros(1), torch.zeros(1), "k4")  # type: ignore[arg-type]


def test_full_is_the_divergence_of_every_position():
    torch.manual_seed(0)
    logits, ref_logits = torch.randn(2, 3, 7), torch.randn(2, 3, 7)
    assert torch.allclose(kl.full(logits, ref_logits), true_kl(logits, ref_logits), atol=1e-6)


def test_full_leaves_filtered_tokens_out():
    # The policy halves two tokens and cannot draw the third: ½ log (½ / ⅓) twice = log 1.5
    logits = torch.tensor([0.0, 0.0, -torch.inf], requires_grad=True)
    divergence = kl.full(logits, torch.zeros(3))
    assert divergence.item() == pytest.approx(math.log(1.5))
    divergence.backward()
    assert logits.grad.isfinite().all()


def test_full_is_infinite_where_only_the_reference_excludes_a_token():
    assert kl.full(torch.zeros(2), torch.tensor([0.0, -torch.inf])).item() == math.inf


def test_sequence_sums_are_sums_over_the_mask():
    divergence = torch.tensor([[1.0, 2.0, math.nan], [0.5, math.nan, math.nan]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert kl.sequence_sums(divergence, mask).tolist() == [3, 0.5]


def test_the_adaptive_controller_by_hand():
    controller = kl.AdaptiveController(0.1, target=6.0, horizon=1000)
    # 6.6 / 6 − 1 = 0.1: β = 0.1 · (1 + 0.1 · 100 / 1000) = 0.101
    assert controller.update(6.6, 100) == pytest.approx(0.101)
    # 60 / 6 − 1 = 9 is cut to 0.2: 0.101 · 1.02 = 0.10302
    assert controller.update(60.0, 100) == pytest.approx(0.10302)
    # 0 / 6 − 1 = −1 is cut to −0.2: 0.10302 · 0.98 = 0.1009596
    assert controller.update(0.0, 100) == pytest.approx(0.1009596)
    assert controller.beta == pytest.approx(0.1009596)


def test_the_controllers_target_is_the_sequence_sum():
    """An answer of 60 tokens at 0.1 nats each is at a target of 6; the mean per token would be far below."""
    per_token, mask = torch.full((4, 60), 0.1, dtype=torch.float64), torch.ones(4, 60)
    controller = kl.AdaptiveController(0.1, target=6.0, horizon=100)
    assert controller.update(float(kl.sequence_sums(per_token, mask).mean()), 50) == pytest.approx(0.1)


def test_a_batch_of_many_horizons_leaves_a_coefficient_to_recover_from():
    controller = kl.AdaptiveController(0.1, target=6.0, horizon=10)
    assert controller.update(0.0, 1000) > 0


@pytest.mark.parametrize("divergence", [math.nan, math.inf])
def test_a_divergence_that_is_not_finite_never_reaches_the_coefficient(divergence):
    controller = kl.AdaptiveController(0.1, target=6.0, horizon=10)
    with pytest.raises(ValueError, match=r"stays at 0\.1"):
        controller.update(divergence, 1)
    assert controller.beta == 0.1


def test_a_resumed_controller_goes_on_as_if_never_stopped():
    whole = kl.AdaptiveController(0.05, target=3.0, horizon=200)
    divergences = [1.0, 5.0, 2.9, 3.3, 0.1]
    for divergence in divergences:
        whole.update(divergence, 16)
    first = kl.AdaptiveController(0.05, target=3.0, horizon=200)
    for divergence in divergences[:2]:
        first.update(divergence, 16)
    second = kl.AdaptiveController(0.05, target=3.0, horizon=200)
    second.load_state_dict(first.state_dict())
    for divergence in divergences[2:]:
        second.update(divergence, 16)
    assert second.beta == whole.beta


def test_a_fixed_controller_stays():
    controller = kl.FixedController(0.02)
    assert controller.update(1000.0, 1000) == 0.02
    other = kl.FixedController(0.5)
    other.load_state_dict(controller.state_dict())
    assert other.beta == 0.02


@pytest.mark.parametrize("arguments", [(-0.1, 1, 1), (0.1, 0, 1), (0.1, 1, 0), (math.nan, 1, 1)])
def test_settings_that_make_no_sense_are_refused(arguments):
    with pytest.raises(ValueError, match="must be"):
        kl.AdaptiveController(*arguments)
