"""A model's configuration from the metadata of its GGUF file. Names on the left are llama.cpp's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from transformers import AutoConfig, PretrainedConfig

from training.contract import ContractError
from training.rlhf.gguf_files.header import GgufFile

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
ROPE_FACTORS = "rope_freqs.weight"
_INSTEAD = "add the model's original weights as a folder instead"
_SIZES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_FULL, _SLIDING = "full_attention", "sliding_attention"
_GEMMA_CAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_LARGEST_GEMMA = {"gemma2": 46, "gemma3": 62}
"""Layers of the 27 B models, which scale queries by their width over their heads, as llama.cpp does."""


class _Keys:
    """The keys of one architecture; each is read once, and none may be left over."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self._left = file.values(f"{file.architecture}.")

    def take(self, key: str, default: Any = None) -> Any:
        """Return the value of a key. Raise `ContractError` where it is missing and there is no default."""
        value = self._left.pop(key, default)
        if value is None:
            self._file.value(f"{self._file.architecture}.{key}")
        return value

    def neutral(self, key: str, *expected: Any) -> None:
        """Read a key that changes nothing while it has one of these values; any other value stays unread."""
        value = self._left.get(key)
        if value in expected or (
            isinstance(value, float) and any(math.isclose(value, number) for number in expected)
        ):
            del self._left[key]

    def refuse_rest(self) -> None:
        """Raise `ContractError` that names a key which nobody has read."""
        if self._left:
            key, value = next(iter(sorted(self._left.items())))
            raise ContractError(
                f"{self._file.path.name}: {self._file.architecture}.{key} = {str(value)[:60]} is not "
                f"supported in a GGUF file; {_INSTEAD}"
            )


def read_configuration(file: GgufFile) -> PretrainedConfig:
    """Return the configuration of the model in a file. Raise `ContractError` with the reason for others."""
    if file.architecture not in _FAMILIES:
        raise ContractError(
            f"{file.path.name} has the architecture {file.architecture or '(none)'!r}; of GGUF files "
            f"{', '.join(sorted(_FAMILIES))} are supported; {_INSTEAD}"
        )
    keys = _Keys(file)
    values: dict[str, Any] = {name: keys.take(key) for key, name in _SIZES.items()}
    if not all(isinstance(value, int) for value in values.values()):
        raise ContractError(
            f"{file.path.name}: its layers differ in size, which is not supported in a GGUF file; {_INSTEAD}"
        )
    heads = values["num_attention_heads"]
    values["num_key_value_heads"] = keys.take("attention.head_count_kv", heads)
    values["rms_norm_eps"] = keys.take("attention.layer_norm_rms_epsilon")
    values["head_dim"] = keys.take("attention.key_length", values["hidden_size"] // heads)
    keys.neutral("attention.value_length", values["head_dim"])
    keys.neutral("rope.dimension_count", values["head_dim"])
    values["vocab_size"] = _vocabulary_size(file)
    keys.neutral("vocab_size", values["vocab_size"])
    keys.neutral("expert_count", 0)
    keys.neutral("expert_used_count", 0)
    values["tie_word_embeddings"] = HEAD not in file.tensors
    values["rope_parameters"] = _rope(file, keys, values["head_dim"])
    for name in ("bos", "eos", "padding"):
        key = f"{name.removesuffix('ding')}_token_id"
        values[key] = file.value(f"tokenizer.ggml.{name}_token_id", None)
    model_type, more = _FAMILIES[file.architecture]
    values |= more(file, keys, values)
    keys.refuse_rest()
    return AutoConfig.for_model(model_type, **values)


def _vocabulary_size(file: GgufFile) -> int:
    if EMBEDDING not in file.tensors:
        raise ContractError(f"{file.path.name} has no {EMBEDDING}; fetch the file again")
    return file.shape(EMBEDDING)[0]


def _rope(file: GgufFile, keys: _Keys, head_size: int) -> dict[str, Any]:
    """Return the settings of rotary positions. Kinds of scaling that are not computed here stay unread."""
    base = keys.take("rope.freq_base", 10000.0)
    default = {"rope_type": "default", "rope_theta": base}
    keys.neutral("rope.scaling.type", "none")
    if ROPE_FACTORS in file.tensors:
        keys.neutral("rope.scaling.type", "llama3")
        return _llama3_rope(file, base, head_size)
    if file.values(f"{file.architecture}.").get("rope.scaling.type") == "linear":
        keys.neutral("rope.scaling.type", "linear")
        keys.neutral("rope.scaling.finetuned", True, False)
        return {**default, "rope_type": "linear", "factor": keys.take("rope.scaling.factor")}
    return default


def _llama3_rope(file: GgufFile, base: float, head_size: int) -> dict[str, Any]:
    """Return the scaling of Llama 3.1 whose factors are those of the file, which holds nothing else of it."""
    written = file.read(ROPE_FACTORS).reshape(-1).astype(np.float64)
    factor = float(written.max())
    length, low, high = (
        _LLAMA3["original_max_position_embeddings"],
        _LLAMA3["low_freq_factor"],
        _LLAMA3["high_freq_factor"],
    )
    waves = 2 * np.pi * base ** (np.arange(0, head_size, 2) / head_size)
    smooth = np.clip((length / waves - low) / (high - low), 0.0, 1.0)
    expected = 1 / ((1 - smooth) / factor + smooth)
    if written.shape != expected.shape or not np.allclose(written, expected, rtol=1e-4):
        raise ContractError(
            f"{file.path.name}: its factors of rotary positions ({ROPE_FACTORS}) are not those of Llama 3; "
            f"{_INSTEAD}"
        )
    return {"rope_type": "llama3", "rope_theta": base, "factor": factor, **_LLAMA3}


# ── Families ──────────────────────────────────────────────────────────────────────────


def _llama(file: GgufFile, keys: _Keys, values: dict[str, Any]) -> dict[str, Any]:
    del keys, values
    return {
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
    }


def _qwen(file: GgufFile, keys: _Keys, values: dict[str, Any]) -> dict[str, Any]:
    del file, keys, values
    return {"use_sliding_window": False}


def _phi3(file: GgufFile, keys: _Keys, values: dict[str, Any]) -> dict[str, Any]:
    del file
    # Written also where nothing is scaled; where something is, tensors with factors are left over.
    keys.neutral("rope.scaling.original_context_length", values["max_position_embeddings"])
    keys.neutral("rope.scaling.attn_factor", 1.0)
    return {
        "sliding_window": keys.take("attention.sliding_window", 0) or None,
        "original_max_position_embeddings": values["max_position_embeddings"],
    }


def _gemma(file: GgufFile, keys: _Keys, values: dict[str, Any]) -> dict[str, Any]:
    del file, keys, values
    return {}


def _gemma2(file: GgufFile, keys: _Keys, values: dict[str, Any]) -> dict[str, Any]:
    caps = {name: keys.take(key, 0.0) or None for key, name in _GEMMA_CAPS.items()}
    return {
        **caps,
        "query_pre_attn_scalar": _query_scale(file, values),
        "sliding_window": keys.take("attention.sliding_window", 4096),
        "layer_types": _layer_types(keys, values, pattern=2),
    }


def _gemma3(file: GgufFile, keys: _Keys, values: dict[str, Any]) -> dict[str, Any]:
    local = {"rope_type": "default", "rope_theta": keys.take("rope.freq_base_swa", 10000.0)}
    return {
        "query_pre_attn_scalar": _query_scale(file, values),
        "sliding_window": keys.take("attention.sliding_window"),
        "layer_types": _layer_types(keys, values, pattern=6),
        "rope_parameters": {_FULL: values["rope_parameters"], _SLIDING: local},
    }


def _query_scale(file: GgufFile, values: dict[str, Any]) -> int:
    if values["num_hidden_layers"] == _LARGEST_GEMMA[file.architecture]:
        return int(values["hidden_size"] // values["num_attention_heads"])
    return int(values["head_dim"])


def _layer_types(keys: _Keys, values: dict[str, Any], *, pattern: int) -> list[str]:
    """Return the kind of each layer: every so many-th attends to everything, the others to a window."""
    keys.neutral("attention.sliding_window_pattern", pattern)
    layers = range(1, values["num_hidden_layers"] + 1)
    return [_SLIDING if number % pattern else _FULL for number in layers]


_FAMILIES: dict[str, tuple[str, Callable[[GgufFile, _Keys, dict[str, Any]], dict[str, Any]]]] = {
    "llama": ("llama", _llama),
    "qwen2": ("qwen2", _qwen),
    "qwen3": ("qwen3", _qwen),
    "phi3": ("phi3", _phi3),
    "gemma": ("gemma", _gemma),
    "gemma2": ("gemma2", _gemma2),
    "gemma3": ("gemma3_text", _gemma3),
}
"""By llama.cpp's name: the model type, and what its configuration has besides the sizes. Mistral is llama."""
