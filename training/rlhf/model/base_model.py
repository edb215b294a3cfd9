"""A base model from its folder: loaded without network and foreign code, frozen, and refused where
Rondo would compute something else with it than its makers do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from training.contract import ContractError
from training.contract.chat_template import require_template
from training.rlhf.model.attention import NAME as PACKED_ATTENTION
from training.rlhf.model.base_probe import refuse_unknown_family
from training.rlhf.model.templates import renderer


def load_base_model(folder: Path, *, device: torch.device | str, dtype: torch.dtype) -> tuple[Any, Any]:
    """The frozen transformer in `folder` (transformers format, safetensors) on `device`, and its tokenizer.

    Never downloads and never runs code that comes with a model. Raises `ContractError` where the folder
    holds no such model, has no fast tokenizer or no chat template that can be trained on, where a weight is
    not a finite number, and for model types whose attention or logits Rondo would get wrong.
    """
    if not (folder / "config.json").is_file():
        raise ContractError(f"{folder}: no model is here (config.json is missing); fetch the base model")
    try:
        model, loaded = AutoModelForCausalLM.from_pretrained(
            folder,
            output_loading_info=True,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=dtype,
            attn_implementation=PACKED_ATTENTION,
        )
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ContractError(f"{folder}: the model cannot be loaded ({error})") from error
    if absent := sorted(loaded["missing_keys"]):
        # transformers would go on with random numbers in their place.
        raise ContractError(
            f"{folder}: the model's files lack {len(absent)} tensors, the first being {absent[0]}; fetch the "
            "base model again"
        )
    if not tokenizer.is_fast or not tokenizer.chat_template:
        raise ContractError(
            f"{folder}: the tokenizer must be a fast one with a chat template; choose a base model that was "
            "made for chats, or put its chat_template.jinja into the folder"
        )
    require_template(renderer(tokenizer), tokenizer.chat_template, str(folder))
    model.to(device)
    model.requires_grad_(False)
    model.eval()
    refuse_not_finite(dict(model.named_parameters()), folder, remedy="fetch the base model again")
    refuse_unknown_family(model, folder)
    return model, tokenizer


def refuse_not_finite(tensors: Mapping[str, Tensor], folder: Path, *, remedy: str) -> None:
    """Raise `ContractError` with the name of the first tensor that holds NaN or an infinity."""
    for name, value in tensors.items():
        if not torch.isfinite(value).all():
            raise ContractError(f"{folder}: the weights {name} hold values that are not finite; {remedy}")
