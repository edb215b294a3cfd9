"""A base model from its folder: loaded without network and foreign code, frozen, and refused where
Rondo would compute something else with it than its makers do."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from training.contract import ContractError, Quantization
from training.contract.chat_template import require_template
from training.rlhf.model.attention import NAME as PACKED_ATTENTION
from training.rlhf.model.base_probe import first_layers, refuse_unknown_family
from training.rlhf.model.families import read_supported_config
from training.rlhf.model.quantised import quantise, refuse_unable
from training.rlhf.model.templates import renderer, whole_row


def load_base_model(
    folder: Path, *, device: torch.device | str, dtype: torch.dtype, quantization: Quantization = "none"
) -> tuple[Any, Any]:
    """The frozen transformer in `folder` (transformers format, safetensors) on `device`, and its tokenizer.

    Never downloads and never runs code that comes with a model. Raises `ContractError` where the folder
    holds no such model, has no fast tokenizer or no chat template that can be trained on, where a weight is
    not a finite number, for model types whose attention or logits Rondo would get wrong, and where it cannot
    be quantised.
    """
    tokenizer = refuse_unsupported_folder(folder)
    refuse_unable(quantization, torch.device(device))
    if quantization == "none":
        return _loaded(folder, device=device, dtype=dtype), tokenizer
    # The device need not hold it whole.
    model = _loaded(folder, device="cpu", dtype=dtype)
    quantise(model, quantization, device)
    return model, tokenizer


def try_first_layers(config: Any, folder: Path) -> None:
    """Load the first layers alone, and compare packed rows with what the model's makers compute.

    Raises `ContractError` as `load_base_model` does.
    """
    verbosity = transformers_logging.get_verbosity()
    # It would list the other layers as unexpected.
    transformers_logging.set_verbosity_error()
    try:
        _loaded(folder, device="cpu", dtype=torch.float32, config=first_layers(copy.deepcopy(config)))
    except (ContractError, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        # Unknown architectures may raise anything.
        raise ContractError(
            f"{folder}: the first layers of model type {config.model_type!r} cannot be loaded alone "
            f"({type(error).__name__}: {error}); choose another base model"
        ) from error
    finally:
        transformers_logging.set_verbosity(verbosity)


def _loaded(folder: Path, *, device: torch.device | str, dtype: torch.dtype, **more: Any) -> Any:
    try:
        model, loaded = AutoModelForCausalLM.from_pretrained(
            folder,
            output_loading_info=True,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=dtype,
            attn_implementation=PACKED_ATTENTION,
            **more,
        )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ContractError(f"{folder}: the model cannot be loaded ({error})") from error
    if absent := sorted(loaded["missing_keys"]):
        # transformers would go on with random numbers in their place.
        raise ContractError(
            f"{folder}: the model's files lack {len(absent)} tensors, the first being {absent[0]}; fetch the "
            "base model again"
        )
    model.to(device)
    model.requires_grad_(False)
    model.eval()
    refuse_not_finite(dict(model.named_parameters()), folder, remedy="fetch the base model again")
    refuse_unknown_family(model, folder)
    return model


def refuse_unsupported_folder(folder: Path) -> Any:
    """Raise `ContractError` where Rondo cannot train or serve the model in `folder`; return its tokenizer.

    Reads configuration and tokenizer alone, so that a base can be refused before its weights are fetched.
    """
    config = read_supported_config(folder)
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ContractError(
            f"{folder}: the tokenizer cannot be loaded ({error}); put its tokenizer.json into the folder"
        ) from error
    if not tokenizer.is_fast:
        raise ContractError(
            f"{folder}: the tokenizer is not a fast one, which alone knows the characters of each token; "
            "save it as tokenizer.json with transformers, or choose another base model"
        )
    if not tokenizer.chat_template:
        raise ContractError(
            f"{folder}: the tokenizer has no chat template; choose a base model that was made for chats, or "
            "put its chat_template.jinja into the folder"
        )
    require_template(renderer(tokenizer), tokenizer.chat_template, str(folder))
    _refuse_other_vocabulary(tokenizer, int(config.get_text_config().vocab_size), folder)
    return tokenizer


def _refuse_other_vocabulary(tokenizer: Any, size: int, folder: Path) -> None:
    """Raise `ContractError` where a row that is trained on has no end, or where texts have ids beyond the
    model's vocabulary of `size` tokens."""
    try:
        row = whole_row(tokenizer)
    except ContractError as error:
        raise ContractError(
            f"{folder}: {error}, so responses would never end; name one as eos_token in its "
            "tokenizer_config.json, or choose another base model"
        ) from error
    # A control token beyond the vocabulary does no harm as long as the template does not write it: texts that
    # hold one are refused.
    special = {id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    written = {*row, *(set(tokenizer.get_vocab().values()) - special)}
    if beyond := [id for id in written if id >= size]:
        token = tokenizer.convert_ids_to_tokens(max(beyond))
        raise ContractError(
            f"{folder}: {len(beyond)} tokens of the tokenizer, such as {token!r} with id {max(beyond)}, are "
            f"not among the {size} of the model; put the model's own tokenizer into the folder, or choose "
            "another base model"
        )


def refuse_not_finite(tensors: Mapping[str, Tensor], folder: Path, *, remedy: str) -> None:
    """Raise `ContractError` with the name of the first tensor that holds NaN or an infinity."""
    for name, value in tensors.items():
        if not torch.isfinite(value).all():
            raise ContractError(f"{folder}: the weights {name} hold values that are not finite; {remedy}")
