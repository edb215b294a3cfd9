"""Objectives of 2023 to 2026 by the names of their papers: by hand, and beside TRL 1.16 where it has them."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from training.contract.methods.policy import RolloutSettings
from training.rlhf.advantages import best_alone
from training.rlhf.losses import importance_weights, odds_ratio, policy_gradient, simpo
from training.rlhf.policy_gradient.sampling import overlong_punishment

CHOSEN, REJECTED = torch.tensor([-0.2, -1.5, -0.7]), torch.tensor([-0.9, -0.4, -0.7])
"""Log-probabilities per token of three pairs: one won, one lost, one even."""
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]).bool()
OLD = torch.tensor([[-1.0, -2.0, -0.5, -1.2], [-0.3, -0.8, 9.0, 9.0], [-1.5, -0.1, -2.2, 9.0]])
SHIFT = torch.tensor([[0.5, -0.6, 0.1, 0.9], [-0.7, -0.2, 0.0, 0.0], [0.3, 0.3, -0.1, 0.0]])
ADVANTAGES = torch.tensor([1.5, -0.5, -1.0])


def trl_grpo(logp: Tensor, **settings: Any) -> Tensor:
    """TRL's loss of the samples above, by its own `_compute_loss`, for one process and one pass."""
    from trl import GRPOTrainer

    trainer = MagicMock()
    trainer._get_per_token_logps_and_entropies.return_value = (logp, torch.zeros_like(logp), None)
    trainer.configure_mock(
        **{
            "top_entropy_quantile": 1.0,
            "off_policy_mask_threshold": None,
            "beta": 0.0,
            "use_vllm": False,
            "current_gradient_accumulation_steps": 1,
            "aux_loss_enabled": False,
            "_entropy_bonus_enabled": False,
            "max_completion_length": 4,
            "importance_sampling_level": "token",
            **settings,
        }
    )
    trainer.args = SimpleNamespace(delta=None, steps_per_generation=1, use_bias_correction_kl=False)
    trainer.accelerator.num_processes = 1
    trainer.accelerator.gather = lambda values: values.reshape(-1)
    trainer.model.training = True
    ids = torch.zeros(MASK.shape, dtype=torch.long)
    loss: Tensor = GRPOTrainer._compute_loss(
        trainer,
        MagicMock(),
        {
            **{"prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1], "completion_ids": ids},
            **{"completion_mask": MASK.long(), "advantages": ADVANTAGES},
            **{"old_per_token_logps": torch.where(MASK, OLD, 0.0), "num_items_in_batch": MASK.sum()},
        },
    )
    return loss


def both(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Assert that our loss and TRL's have one value and one gradient."""
    mine = (OLD + SHIFT).requires_grad_()
    policy_gradient(mine, OLD, ADVANTAGES, MASK, **ours)[0].backward()
    other = torch.where(MASK, OLD + SHIFT, 0.0).requires_grad_()
    trl_grpo(other, **theirs).backward()
    assert mine.grad is not None
    assert other.grad is not None
    assert mine.grad.norm() > 0.01
    torch.testing.assert_close(mine.grad, other.grad)
    torch.testing.assert_close(
        policy_gradient(mine, OLD, ADVANTAGES, MASK, **ours)[0], trl_grpo(other, **theirs)
    )


def test_gspo_of_zheng_et_al_2025_by_hand():
    loss, statistics = policy_gradient(
        OLD + SHIFT,
        OLD,
        ADVANTAGES,
        MASK,
        clip_low=0.1,
        clip_high=0.2,
        level="sequence",
        aggregate="sequence",
    )
    # Mean shifts: 0.9/4, −0.9/2 and 0.5/3. The first is cut at 1.2; the second, of an advantage below 0, at
    # 0.9, which costs more than its ratio of 0.64; the third is free, though above 1.2 it would be, too.
    expected = (-1.5 * 1.2 + 0.5 * 0.9 + 1.0 * math.exp(0.5 / 3)) / 3
    assert float(loss) == pytest.approx(expected, abs=1e-6)
    assert float(statistics["ratio_max"]) == pytest.approx(math.exp(0.9 / 4), abs=1e-6)
    assert float(statistics["ratio_min"]) == pytest.approx(math.exp(-0.9 / 2), abs=1e-6)
    # Six of nine tokens are of the two answers that were cut, two of them of one whose ratio is below 1.
    assert float(statistics["clip_fraction"]) == pytest.approx(6 / 9)
    assert float(statistics["clip_fraction_low"]) == pytest.approx(2 / 9)


def test_gspo_has_trls_value_and_gradient():
    ours = {"clip_low": 0.5, "clip_high": 0.25, "level": "sequence", "aggregate": "sequence"}
    theirs = {"loss_type": "grpo", "importance_sampling_level": "sequence"}
    both(ours, {**theirs, "epsilon_low": 0.5, "epsilon_high": 0.25})


def test_cispo_of_chen_et_al_2025_teaches_by_tokens_that_are_cut():
    logp = (OLD + SHIFT).requires_grad_()
    loss, statistics = policy_gradient(
        logp, OLD, ADVANTAGES, MASK, clip_low=1.0, clip_high=0.5, surrogate="cispo"
    )
    loss.backward()
    assert logp.grad is not None
    # −clip(ρ) A / tokens: of the first answer the first and the last token are cut at 1.5, and still teach.
    weights = torch.tensor([1.5, math.exp(-0.6), math.exp(0.1), 1.5])
    torch.testing.assert_close(logp.grad[0], -weights * 1.5 / 9)
    assert not logp.grad[~MASK].any()
    assert float(statistics["clip_fraction"]) == pytest.approx(2 / 9)


def test_cispo_has_trls_value_and_gradient():
    # TRL's bound is the greatest ratio itself.
    ours = {"clip_low": 1.0, "clip_high": 0.5, "surrogate": "cispo"}
    both(ours, {"loss_type": "cispo", "epsilon_high": 1.5, "epsilon_low": 0.2})


def test_dapo_of_yu_et_al_2025_clips_higher_and_counts_tokens_as_trl_does():
    ours = {"clip_low": 0.2, "clip_high": 0.28, "aggregate": "token"}
    both(ours, {"loss_type": "dapo", "epsilon_low": 0.2, "epsilon_high": 0.28})


def test_overlong_shaping_of_dapo_is_equation_13():
    # A longest answer of 20 tokens and a cache of 8: 0 up to 12, −1 at 20, straight between.
    settings = RolloutSettings(max_tokens=20, overlong_buffer=8, unfinished="score")
    lost = {tokens: overlong_punishment(tokens, settings) for tokens in (3, 12, 14, 20)}
    assert lost == {3: 0.0, 12: 0.0, 14: 0.25, 20: 1.0}
    assert overlong_punishment(20, RolloutSettings(max_tokens=20)) == 0.0


def test_truncated_importance_sampling_of_yao_et_al_2025_and_of_whole_answers_by_hand():
    drawn = OLD - torch.where(MASK, SHIFT, 0.0)
    by_token = importance_weights(OLD, drawn, MASK, truncate=1.5)
    torch.testing.assert_close(by_token[0], torch.tensor([0.5, -0.6, 0.1, 0.9]).exp().clamp(max=1.5))
    by_answer = importance_weights(OLD, drawn, MASK, truncate=2.0, level="sequence")
    # Sums of the shifts: 0.9, which is cut at 2, −0.9 and 0.5.
    assert by_answer[:, 0].tolist() == pytest.approx([2.0, math.exp(-0.9), math.exp(0.5)])
    assert not by_answer[~MASK].any()


def test_raft_of_dong_et_al_2023_marks_the_best_answer_alone():
    rewards = torch.tensor([[0.1, 0.9, 0.3], [2.0, 2.0, 2.0], [math.nan, -1.0, -3.0]])
    assert best_alone(rewards).tolist() == [[0, 1, 0], [0, 0, 0], [0, 1, 0]]


def test_simpo_of_meng_et_al_2024_by_hand():
    costs = simpo(CHOSEN, REJECTED, beta=2.0, margin=0.5, reduction="none")
    expected = [math.log1p(math.exp(-(2 * lead - 0.5))) for lead in (0.7, -1.1, 0.0)]
    assert costs.tolist() == pytest.approx(expected)
    assert float(simpo(CHOSEN, REJECTED, beta=2.0)) == pytest.approx(
        sum(math.log1p(math.exp(-2 * lead)) for lead in (0.7, -1.1, 0.0)) / 3
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_simpo_costs_what_trl_says(smoothing: float):
    from trl.experimental.cpo import CPOTrainer

    peer = SimpleNamespace(
        **{"alpha": 0.0, "beta": 2.0, "simpo_gamma": 0.5, "label_smoothing": smoothing, "loss_type": "simpo"},
        accelerator=SimpleNamespace(device="cpu"),
    )
    theirs = CPOTrainer.cpo_loss(peer, CHOSEN, REJECTED)[0]
    ours = simpo(CHOSEN, REJECTED, beta=2.0, margin=0.5, label_smoothing=smoothing, reduction="none")
    torch.testing.assert_close(ours, theirs)


def test_orpo_of_hong_et_al_2024_by_hand_and_as_trl_says():
    from trl.experimental.orpo import ORPOTrainer

    costs = odds_ratio(CHOSEN, REJECTED, reduction="none")
    for cost, chosen, rejected in zip(
        costs.tolist(), CHOSEN.exp().tolist(), REJECTED.exp().tolist(), strict=True
    ):
        ratio = (chosen / (1 - chosen)) / (rejected / (1 - rejected))
        # −log σ(log r) = log(1 + 1/r).
        assert cost == pytest.approx(math.log(1 + 1 / ratio), rel=1e-5)
    peer = SimpleNamespace(beta=0.1, accelerator=SimpleNamespace(device="cpu"))
    # TRL subtracts β times the logarithm.
    torch.testing.assert_close(0.1 * costs, -ORPOTrainer.odds_ratio_loss(peer, CHOSEN, REJECTED)[0])


def test_an_answer_that_is_certain_costs_orpo_no_infinity():
    chosen = torch.tensor([0.0, -1e-9], requires_grad=True)
    odds_ratio(chosen, torch.tensor([-1.0, -1.0])).backward()
    assert chosen.grad is not None
    assert chosen.grad.isfinite().all()
