"""Checkpoints of the default shape on a base model, with numbers as after some training."""

from __future__ import annotations

from pathlib import Path

import torch

from training.contract.methods.common import LoraSettings
from training.contract.methods.policy import PreferenceSettings
from training.contract.run import RunSpec
from training.rlhf.loop.run import save_checkpoint
from training.rlhf.model.backbone import Backbone

_MOVED = 0.01
"""Standard deviation of factor B's numbers, which training begins at 0."""


def write_checkpoints(base: Path, folder: Path, count: int) -> list[str]:
    """Write so many into `folder`; their names."""
    names = [f"checkpoint-{number}" for number in range(count)]
    if not names:
        return []
    backbone = Backbone.load(base, device="cpu", dtype=torch.float32)
    for seed, name in enumerate(names):
        backbone.add_adapter(name, LoraSettings(), seed=seed)
        generator = torch.Generator().manual_seed(seed)
        state = {
            key: value if "lora_A" in key else _MOVED * torch.randn(value.shape, generator=generator)
            for key, value in backbone.adapter_state(name).items()
        }
        backbone.restore(name, state, {})
        spec = RunSpec(
            method="preference",
            base_model=str(base),
            snapshot="snapshot",
            snapshot_digest="0" * 64,
            settings=PreferenceSettings(),
            seed=seed,
            name=name,
        )
        save_checkpoint(
            folder / name,
            backbone=backbone,
            adapter=name,
            kind="policy",
            spec=spec,
            steps=1,
            metrics={},
            dropped=[],
        )
        backbone.drop_adapter(name)
    return names
