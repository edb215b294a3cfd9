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
from training.rlhf.attention import NAME as PACKED_ATTENTION
from training.rlhf.attention import Layout, Segment


def load_base_model(folder: Path, *, device: torch.device | str, dtype: torch.dtype) -> tuple[Any, Any]:
    """The frozen transformer in `folder` (transformers format, safetensors) on `device`, and its tokenizer.

    Never downloads and never runs code that comes with a model. Raises `ContractError` where the folder
    holds no such model, has no fast tokenizer or no chat template, where a weight is not a finite number,
    and for model types whose attention or logits Rondo would get wrong.
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
    model.to(device)
    model.requires_grad_(False)
    model.eval()
    refuse_not_finite(dict(model.named_parameters()), folder, remedy="fetch the base model again")
    _refuse_unknown_family(model, folder)
    return model, tokenizer


def refuse_not_finite(tensors: Mapping[str, Tensor], folder: Path, *, remedy: str) -> None:
    """Raise `ContractError` with the name of the first tensor that holds NaN or an infinity."""
    for name, value in tensors.items():
        if not torch.isfinite(value).all():
            raise ContractError(f"{folder}: the weights {name} hold values that are not finite; {remedy}")


def packed_states(model: Any, input_ids: Tensor, position_ids: Tensor, layout: Layout) -> Tensor:
    """Run a transformer that attends by our packed attention over one packed row: (1, T) to (T, hidden)."""
    # A mask of four dimensions is passed on as it is: transformers makes none of its own, which would
    # be T × T, and ours is in the layout.
    output = model.get_decoder()(
        input_ids=input_ids,
        attention_mask=input_ids.new_zeros(1, 1, 1, 1),
        position_ids=position_ids,
        use_cache=False,
        layout=layout,
    )
    states: Tensor = output.last_hidden_state[0]
    return states


def _refuse_unknown_family(model: Any, folder: Path) -> None:
    """Try on a few tokens whether the model computes as Rondo takes it to."""
    try:
        _refuse_unknown_head(model, folder)
        _refuse_unknown_attention(model, folder)
    except (ContractError, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        # What a family of models that nobody here has met may raise has no end.
        raise ContractError(
            f"{folder}: model type {model.config.model_type!r} does not compute packed rows ({error}); "
            "choose another base model"
        ) from error


@torch.no_grad()
def _refuse_unknown_attention(model: Any, folder: Path) -> None:
    """A family whose attention is not what packing takes it for would learn from wrong states."""
    windows = set(getattr(model.config, "layer_types", None) or ()) - {"full_attention"}
    ids = torch.arange(2, 9, device=model.device) % model.config.vocab_size
    # A prompt of three tokens with two answers of two: the second one's row is that without the first.
    places = torch.tensor([0, 1, 2, 3, 4, 3, 4], device=model.device)
    packed = packed_states(
        model,
        ids[None],
        places[None],
        Layout([Segment(0, 3), Segment(3, 2, 0), Segment(5, 2, 0)], model.device),
    )
    alone = ids[[0, 1, 2, 5, 6]][None]
    output = model.get_decoder()(input_ids=alone, attention_mask=torch.ones_like(alone), use_cache=False)
    states = output.last_hidden_state[0]
    if windows or not torch.allclose(packed[-2:].float(), states[-2:].float(), rtol=1e-2, atol=1e-2):
        raise ContractError(
            f"{folder}: the attention of model type {model.config.model_type!r} cannot be computed "
            "over packed answers; choose another base model"
        )


@torch.no_grad()
def _refuse_unknown_head(model: Any, folder: Path) -> None:
    """Some families scale or cap their logits after the LM head: `Backbone.logits` would be wrong there."""
    ids = torch.tensor([[0, 1]], device=model.device)
    states = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    ours = model.get_output_embeddings()(states)
    if not torch.allclose(ours.float(), model(ids).logits.float(), rtol=1e-2, atol=1e-2):
        raise ContractError(
            f"{folder}: model type {model.config.model_type!r} changes its logits after the LM head, "
            "which is not supported; choose another base model"
        )
