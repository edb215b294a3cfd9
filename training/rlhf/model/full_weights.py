"""All weights of a transformer as one adapter: its tensors, and a folder that transformers loads."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from training.contract import TOKENIZER_FILES, ContractError
from training.rlhf.model.adapter_files import ADAPTER_FILE


def holds_all_weights(folder: Path) -> bool:
    """Return whether a checkpoint's folder is a model of its own."""
    return (folder / "config.json").is_file() and not (folder / ADAPTER_FILE).exists()


def all_weights(model: Any) -> dict[str, Tensor]:
    """Return every weight by its name in the model; what several layers share stands here once."""
    return {name: value.detach() for name, value in model.named_parameters()}


@torch.no_grad()
def write_all_weights(model: Any, tensors: Mapping[str, Tensor]) -> None:
    """Overwrite a model's weights with those that `all_weights` gave."""
    there = all_weights(model)
    odd = sorted(
        name
        for name in there.keys() | tensors.keys()
        if name not in there or name not in tensors or there[name].shape != tensors[name].shape
    )
    if odd:
        raise ContractError(f"the weights do not fit the base, beginning with {odd[0]}")
    for name, value in there.items():
        value.copy_(tensors[name])


def gathered_weights(model: Any, *, keep: bool) -> dict[str, Tensor]:
    """Return all weights of a model that is cut over processes, which all call this; on the CPU.

    keep: whether this process wants them; one that does not never holds more than one tensor.
    """
    weights: dict[str, Tensor] = {}
    for name, value in all_weights(model).items():
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        if keep:
            weights[name] = whole.cpu()
    return weights


def save_model_folder(
    model: Any, folder: Path, *, base: Path, weights: Mapping[str, Tensor] | None = None
) -> None:
    """Write weights and configuration in transformers' format, and the tokenizer's files that `base` has.

    weights: those of a model that is cut.
    """
    model.save_pretrained(folder, state_dict=None if weights is None else dict(weights))
    for name in TOKENIZER_FILES:
        if (base / name).is_file():
            shutil.copyfile(base / name, folder / name)
