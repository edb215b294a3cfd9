"""Files of base models and of adapters: what identifies a base, what an adapter's folder says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from peft import LoraConfig
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from training.contract import HEADS_FILE, ContractError, LoraSettings, Manifest
from training.rlhf.model.lora_layer import LoraLinear

ADAPTER_FILE = "adapter_model.safetensors"
ADAPTER_CONFIG_FILE = "adapter_config.json"


def read_lora_settings(folder: Path) -> LoraSettings:
    """Return the LoRA shape of a checkpoint folder's adapter. Raises `ContractError` if it is no LoRA."""
    path = folder / ADAPTER_CONFIG_FILE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        chosen = values.get("layers_to_transform")
        return LoraSettings(
            rank=values["r"],
            alpha=float(values["lora_alpha"]),
            dropout=float(values["lora_dropout"]),
            targets=tuple(values["target_modules"]),
            layers=None if chosen is None else len(chosen),
            last=None if chosen is None else max(chosen) + 1,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ContractError(f"{path}: no LoRA adapter is described here ({error})") from error


def last_adapted_block(folder: Path) -> int | None:
    """Return the last block that a checkpoint's adapter lies on; None where it lies on all, or is none."""
    return read_lora_settings(folder).last if (folder / ADAPTER_CONFIG_FILE).is_file() else None


def lora_config(settings: LoraSettings, *, blocks: int) -> Any:
    """peft's configuration of an adapter shaped as `settings` say, for a base of so many blocks."""
    last = settings.last or blocks
    layers = settings.layers or last
    chosen = None if layers == blocks else list(range(last - layers, last))
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=list(settings.targets),
        layers_to_transform=chosen,
        task_type="CAUSAL_LM",
    )
    # One entry: peft looks at the first alone.
    config._register_custom_module({(nn.Linear, Conv1D): LoraLinear})
    return config


def load_heads(folder: Path, manifest: Manifest) -> dict[str, Tensor]:
    """Return the heads in a checkpoint folder, with what was learned beside them under `head.name`.

    Raises `ContractError` unless the heads are those of the manifest.
    """
    # A policy may have no head, and yet log odds of ties beside it.
    tensors = load_file(folder / HEADS_FILE) if HEADS_FILE in manifest.files else {}
    heads = sorted(name for name in tensors if "." not in name)
    if heads != sorted(manifest.heads):
        raise ContractError(f"{HEADS_FILE} holds heads {heads}, the manifest names {manifest.heads}")
    return tensors
