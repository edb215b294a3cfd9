"""Weights that PPO holds at rest: policy, value head, reward model and reference beside the policy alone.

`python -m tests.benchmarks.policy_gradient_memory MODEL_FOLDER [--rank 16]`

Counts the bytes of every parameter and buffer that a run keeps between steps, optimiser states apart: they
are the same for whoever trains the same adapters.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from training.contract.methods import settings_from_json
from training.contract.methods.common import LoraSettings
from training.contract.methods.policy import PolicyGradientSettings
from training.contract.methods.reward import RewardSettings
from training.contract.run import RunSpec
from training.rlhf.loop.run import save_checkpoint
from training.rlhf.model.backbone import SCORE, Backbone
from training.rlhf.policy_gradient.loop import PolicyGradient


def weights_of(backbone: Backbone) -> int:
    """Bytes of all weights: of the base, counted once where layers share them, of adapters and of heads."""
    storages: dict[int, int] = {}
    for model in backbone._transformers:
        for value in (*model.parameters(), *model.buffers()):
            storages[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
    heads = (value for name in backbone.adapters for value in backbone.head_state(name).values())
    return sum(storages.values()) + sum(value.nbytes for value in heads)


def reward_model(base: Path, folder: Path, lora: LoraSettings) -> Path:
    """A checkpoint of a reward model, as if it had been trained."""
    backbone = Backbone.load(base, device="cpu", dtype=torch.float32)
    backbone.add_adapter("reward", lora, seed=1)
    backbone.add_head("reward", SCORE, seed=1)
    spec = _spec(base, RewardSettings(lora=lora))
    save_checkpoint(
        folder, backbone=backbone, adapter="reward", kind="reward", spec=spec, steps=1, metrics={}, dropped=[]
    )
    return folder


def policy_checkpoint(base: Path, folder: Path, lora: LoraSettings) -> Path:
    """A checkpoint of a policy, for a run to continue: its reference is then an adapter too."""
    backbone = Backbone.load(base, device="cpu", dtype=torch.float32)
    backbone.add_adapter("policy", lora, seed=2)
    spec = _spec(base, _ppo(lora, None))
    save_checkpoint(
        folder, backbone=backbone, adapter="policy", kind="policy", spec=spec, steps=1, metrics={}, dropped=[]
    )
    return folder


def ppo_weights(
    base: Path, *, lora: LoraSettings, reward: Path, parent: Path | None, dtype: torch.dtype
) -> tuple[int, int]:
    """Bytes of PPO's four models on one backbone, and of the policy alone."""
    alone = Backbone.load(base, device="cpu", dtype=dtype)
    alone.add_adapter("policy", lora, seed=0)
    backbone = Backbone.load(base, device="cpu", dtype=dtype)
    settings = _ppo(lora, reward)
    method = PolicyGradient(
        backbone, _spec(base, settings, parent=str(parent) if parent else None), settings, folder=base
    )
    assert method.models.value is not None
    return weights_of(backbone), weights_of(alone)


def _ppo(lora: LoraSettings, reward: Path | None) -> PolicyGradientSettings:
    part: dict[str, Any] = {"name": "r", "kind": "length", "options": {"most": 1}}
    if reward is not None:
        part = {"name": "r", "kind": "model", "checkpoint": str(reward)}
    made = settings_from_json(
        "policy_gradient",
        {
            "lora": lora,
            "rewards": [part],
            "advantage": {"kind": "gae"},
            "kl": {"place": "reward", "kind": "k1"},
        },
    )
    assert isinstance(made, PolicyGradientSettings)
    return made


def _spec(
    base: Path, settings: PolicyGradientSettings | RewardSettings, *, parent: str | None = None
) -> RunSpec:
    return RunSpec(
        method=settings.method,
        base_model=str(base),
        snapshot="snapshot",
        snapshot_digest="0",
        settings=settings,
        parent=parent,
    )


def main() -> None:
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rank", type=int, default=16)
    arguments = parser.parse_args()
    lora = LoraSettings(rank=arguments.rank)
    with tempfile.TemporaryDirectory() as name:
        reward = reward_model(arguments.model, Path(name) / "reward", lora)
        parent = policy_checkpoint(arguments.model, Path(name) / "policy", lora)
        print("| base | starts from | PPO, MB | policy alone, MB | ratio |\n|---|---|---|---|---|")
        for dtype in (torch.float32, torch.bfloat16):
            for start, label in ((None, "the base"), (parent, "a policy")):
                together, alone = ppo_weights(
                    arguments.model, lora=lora, reward=reward, parent=start, dtype=dtype
                )
                print(
                    f"| {str(dtype).removeprefix('torch.')} | {label} | {together / 2**20:.0f} | "
                    f"{alone / 2**20:.0f} | {together / alone:.3f} |"
                )


if __name__ == "__main__":
    main()
