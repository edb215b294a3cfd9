"""GGUF files of tiny models, as llama.cpp's converter writes them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

_ARCHITECTURES = {"gemma3_text": "gemma3"}
_CONTROL, _NORMAL = 3, 1


def write_gguf(
    folder: Path,
    path: Path,
    kind: gguf.GGMLQuantizationType,
    *,
    metadata: dict[str, Any] | None = None,
    without: tuple[str, ...] = (),
    tensors: dict[str, np.ndarray] | None = None,
) -> None:
    """Write the model in `folder`; matrices are of type `kind` where rows are whole blocks, else float16.

    metadata: further values. without: keys that are left out. tensors: further ones.
    """
    model = _model(folder)
    config = model.config
    architecture = _ARCHITECTURES.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, architecture)
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    values = {
        f"{architecture}.context_length": config.max_position_embeddings,
        f"{architecture}.embedding_length": config.hidden_size,
        f"{architecture}.block_count": config.num_hidden_layers,
        f"{architecture}.feed_forward_length": config.intermediate_size,
        f"{architecture}.attention.head_count": config.num_attention_heads,
        f"{architecture}.attention.head_count_kv": config.num_key_value_heads,
        f"{architecture}.attention.key_length": head_size,
        f"{architecture}.attention.value_length": head_size,
        f"{architecture}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        **_tokens(folder),
        **(metadata or {}),
    }
    for key, value in values.items():
        if key not in without:
            _add(writer, key, value)
    names = gguf.get_tensor_name_map(
        next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture),
        config.num_hidden_layers,
    )
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        written = names.get_name(name, try_suffixes=(".weight", ".bias"))
        numbers = tensor.numpy()
        if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            # The converter's `permute`: pairs of rotary positions side by side.
            heads = numbers.reshape(-1, 2, head_size // 2, *numbers.shape[1:])
            numbers = heads.swapaxes(1, 2).reshape(numbers.shape)
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            numbers = numbers + 1
        of = type_of(numbers, kind)
        if written not in without:
            writer.add_tensor(written, quantised(numbers, of), raw_dtype=of)
    for name, numbers in (tensors or {}).items():
        writer.add_tensor(name, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@cache
def _model(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def type_of(numbers: np.ndarray, kind: gguf.GGMLQuantizationType) -> gguf.GGMLQuantizationType:
    """Return the type of a tensor in the file: vectors stay float32."""
    if numbers.ndim == 1:
        return gguf.GGMLQuantizationType.F32
    block = gguf.GGML_QUANT_SIZES[kind][0]
    return kind if numbers.shape[-1] % block == 0 else gguf.GGMLQuantizationType.F16


def quantised(numbers: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """Return a tensor's blocks; of types that gguf does not write, blocks at random."""
    try:
        return np.asarray(gguf.quantize(np.ascontiguousarray(numbers), kind))
    except NotImplementedError:
        width, size = gguf.GGML_QUANT_SIZES[kind]
        generator = np.random.default_rng(numbers.size)
        blocks = generator.integers(0, 256, (numbers.size // width, size), dtype=np.uint8)
        for place in _SCALES[kind.name]:
            blocks[:, place : place + 2] = np.full((len(blocks), 1), 2e-4, np.float16).view(np.uint8)
        return blocks.reshape(numbers.shape[0], -1)


_SCALES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_XS": (0,),
    "IQ2_XS": (0,),
}
"""Offsets of the float16 scales in a block of each type, in llama.cpp's `ggml-common.h`."""


def _tokens(folder: Path) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    special = set(tokenizer.all_special_ids)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [
            _CONTROL if place in special else _NORMAL for place in range(len(tokens))
        ],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.bos_token_id": tokenizer.bos_token_id,
        "tokenizer.ggml.eos_token_id": tokenizer.eos_token_id,
        "tokenizer.chat_template": tokenizer.chat_template,
    }


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)
