"""peft's LoRA layers on one transformer, by the key that an adapter has inside peft: added, read, written,
taken away."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from peft.functional import (
    cast_adapter_dtype,
    delete_adapter,
    get_peft_model_state_dict,
    inject_adapter_in_model,
    set_peft_model_state_dict,
)
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers.pytorch_utils import Conv1D

from training.contract import ContractError, LoraSettings
from training.rlhf.model.adapter_files import lora_config

_PEFT_PREFIX = "base_model.model."
"""Prefix of the wrapped model in peft's own files; written so that plain peft loads our adapters."""


def add_low_rank(model: Any, key: str, settings: LoraSettings, *, seed: int) -> None:
    """Add factors A, drawn from `seed` alone, and B, which are 0. The caller's random state is left as it
    was.

    settings: with targets that the model has (`lora_targets.fitted`).
    """
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # peft warns of every adapter after the first: many adapters are what this is for.
        warnings.filterwarnings("ignore", message="Already found a `peft_config`")
        torch.manual_seed(seed)
        config = lora_config(settings, blocks=int(model.config.num_hidden_layers))
        with _whole_shapes(model):
            inject_adapter_in_model(config, model, key)
    cast_adapter_dtype(model, key)
    model.eval()


@contextmanager
def _whole_shapes(model: Any) -> Iterator[None]:
    """Inside, weights that are cut over processes have the shape of the whole, without memory for it: peft
    takes cut rows for those that the layer computes."""
    cut = [
        (module, module.weight)
        for module in model.modules()
        if isinstance(module, nn.Linear | Conv1D) and isinstance(module.weight, DTensor)
    ]
    for module, weight in cut:
        shown = torch.empty(1, 1, dtype=weight.dtype, device=weight.device).expand(weight.shape)
        module.weight = nn.Parameter(shown, requires_grad=False)
    try:
        yield
    finally:
        for module, weight in cut:
            module.weight = weight


def low_rank_state(model: Any, key: str) -> dict[str, Tensor]:
    """Return the adapter's tensors under the names that plain peft reads from a file."""
    state = get_peft_model_state_dict(model, adapter_name=key, save_embedding_layers=False)
    return {_PEFT_PREFIX + name: value for name, value in state.items()}


def write_low_rank(model: Any, key: str, tensors: Mapping[str, Tensor]) -> None:
    """Overwrite the adapter with tensors as `low_rank_state` gave them."""
    expected, actual = low_rank_state(model, key).keys(), tensors.keys()
    if expected != actual:
        odd = sorted(name.removeprefix(_PEFT_PREFIX) for name in expected ^ actual)
        raise ContractError(f"the adapter's tensors do not fit the base, beginning with {odd[0]}")
    state = {name.removeprefix(_PEFT_PREFIX): value for name, value in tensors.items()}
    try:
        set_peft_model_state_dict(model, state, adapter_name=key)
    except RuntimeError as error:
        raise ContractError(f"the adapter's tensors do not fit the base ({error})") from error


def drop_low_rank(model: Any, key: str) -> None:
    """Take the adapter away."""
    with warnings.catch_warnings():
        # peft warns that it activates another adapter; which one is active is the caller's to say.
        warnings.filterwarnings("ignore", message="Adapter .* was active which is now deleted")
        delete_adapter(model, key, prefix="lora_")
    del model.peft_config[key]
