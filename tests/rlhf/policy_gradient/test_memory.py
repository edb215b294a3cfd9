"""PPO's four models on one backbone take little more memory than the policy alone."""

from pathlib import Path

import torch

from tests.benchmarks.policy_gradient_memory import policy_checkpoint, ppo_weights, reward_model
from training.contract.methods.common import LoraSettings


def test_four_models_take_little_more_than_the_policy_alone(base: Path, tmp_path: Path) -> None:
    lora = LoraSettings(rank=2)
    reward = reward_model(base, tmp_path / "reward", lora)
    together, alone = ppo_weights(base, lora=lora, reward=reward, parent=None, dtype=torch.float32)
    assert together <= 1.3 * alone
    # 3 blocks with inputs and outputs of 48-48, 48-24 twice, 48-48, 48-128 twice, 128-48, rank 2, float32.
    adapter = 3 * 2 * 4 * (96 + 72 + 72 + 96 + 176 + 176 + 176)
    # Value and reward bring an adapter and a head of 48 weights each; the reference is the base.
    assert together - alone == 2 * (adapter + 48 * 4)
    # A run that continues a policy holds a frozen copy of its adapter too.
    parent = policy_checkpoint(base, tmp_path / "policy", lora)
    continued, _ = ppo_weights(base, lora=lora, reward=reward, parent=parent, dtype=torch.float32)
    assert continued - together == adapter
    assert continued <= 1.3 * alone
