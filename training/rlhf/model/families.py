"""Differences between model families: configuration, context, blocks and output head."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING, AutoConfig

from training.contract import ContractError

# ── A base model's configuration: its window, its context, and why a base is refused before it is read ──

FULL, SLIDING = "full_attention", "sliding_attention"


def sliding_window(config: Any) -> int | None:
    """Return the number of tokens that a layer looks back where that is less than the context; else None."""
    text = config.get_text_config()
    window = getattr(text, "sliding_window", None)
    kinds = getattr(text, "layer_types", None)
    if not window or (kinds and set(kinds) == {FULL}):
        return None
    return int(window) if window < getattr(text, "max_position_embeddings", window + 1) else None


def context_limit(config: Any) -> int | None:
    """Return the tokens that fit into the model; None where it has no limit.

    Positions of the kind LongRoPE (Ding et al. 2024) change for all tokens once a pass has one beyond the
    length of the model's first training: what a row's states are would depend on the rows beside it. Such a
    model is used up to that length.
    """
    text = config.get_text_config()
    context = getattr(text, "max_position_embeddings", None)
    for rope in _ropes(getattr(text, "rope_parameters", None)):
        first = rope.get("original_max_position_embeddings")
        if rope.get("rope_type") == "longrope" and first:
            context = int(first) if context is None else min(int(first), int(context))
    return None if context is None else int(context)


def _ropes(parameters: Any) -> Iterator[dict[str, Any]]:
    """Yield the settings of rotary positions, which some families have by kind of layer."""
    if isinstance(parameters, dict):
        yield parameters
        yield from (inner for inner in parameters.values() if isinstance(inner, dict))


def read_supported_config(folder: Path) -> Any:
    """Return the configuration of the model in `folder`; of one that also reads images or sound, of its text
    part.

    Raises `ContractError` with the reason and a remedy where Rondo cannot train or serve such a model. Reads
    no weights.
    """
    whole, text = _read_configs(folder)
    reason = _other_model(whole, text)
    if reason:
        raise ContractError(f"{folder}: model type {whole.model_type!r} {reason}")
    return text


def is_text_part(folder: Path) -> bool:
    """Return True if the model in `folder` also reads images or sound: its text part alone is used."""
    whole, text = _read_configs(folder)
    return text is not whole


def _read_configs(folder: Path) -> tuple[Any, Any]:
    """Return the configurations of the model in `folder` and of its text part; of text alone one twice."""
    path = folder / "config.json"
    if not path.is_file():
        raise ContractError(f"{folder}: no model is here (config.json is missing); fetch the base model")
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
        kind = str(written.get("model_type"))
        if kind not in CONFIG_MAPPING:
            raise ContractError(f"{folder}: {_unknown(kind, written)}")
        whole = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        text = whole.get_text_config()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StrictDataclassError) as error:
        raise ContractError(
            f"{folder}: config.json cannot be read ({error}); fetch the base model again"
        ) from error
    return whole, whole if text is whole else _text_alone(whole, text)


_SAME_AS = {
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
}
"""Text parts that transformers has no model of, and the family that they are where there are no images: the
three positions of a token are equal then."""


def _text_alone(whole: Any, text: Any) -> Any:
    """Return the configuration of a text part as one of a family that writes text by itself."""
    # What the whole says of all its parts.
    for name in ("dtype", "tie_word_embeddings", "quantization_config"):
        if getattr(whole, name, None) is not None:
            setattr(text, name, getattr(whole, name))
    if text.model_type not in _SAME_AS:
        return text
    values = text.to_dict()
    rope = dict(values.get("rope_parameters") or {})
    rope.pop("mrope_section", None)
    rope.pop("mrope_interleaved", None)
    if rope.get("rope_type") == "mrope":
        rope["rope_type"] = "default"
    kind = _SAME_AS[values.pop("model_type")]
    if kind == "qwen3_moe":
        # Qwen3-VL always does.
        values["norm_topk_prob"] = True
    return CONFIG_MAPPING[kind].from_dict({**values, "rope_parameters": rope})


_OTHER_LOGITS = {"aya_vision", "cohere2_vision"}
"""Models of images and text that leave out the scale of Cohere's logits, which the text alone has."""


def _unknown(kind: str, written: dict[str, Any]) -> str:
    if written.get("auto_map"):
        return (
            f"model type {kind!r} comes with its own code, which Rondo never runs; choose a base that "
            "transformers knows by itself"
        )
    return f"model type {kind!r} is not known to transformers; update Rondo, or choose another base model"


def _other_model(whole: Any, text: Any) -> str | None:
    """Return why this is no decoder of text, by itself or as a part."""
    if whole.is_encoder_decoder:
        return "is an encoder with a decoder; choose a base that is a decoder alone"
    writes, fills = (
        type(text) in models for models in (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING)
    )
    if fills and not (writes and getattr(text, "is_decoder", False)):
        return "is an encoder, which reads texts and writes none; choose a base made for chats"
    if text is whole:
        return None if writes else "writes no text; choose a base made for chats"
    if whole.model_type in _OTHER_LOGITS:
        return "computes other logits than its text part would by itself; choose another base model"
    if writes:
        return None
    return (
        "reads images or sound beside text, and transformers has no model of its text alone; choose "
        "another base model"
    )


def why_not_packed(config: Any) -> str | None:
    """Return why packed rows of this model would be wrong, as far as its configuration shows it."""
    unknown = sorted(set(getattr(config, "layer_types", None) or ()) - {FULL, SLIDING})
    if any(kind == "chunked_attention" for kind in unknown):
        return "attends in chunks in some layers"
    if unknown:
        return f"has layers of the kind {unknown[0]!r}"
    return None


# ── The blocks of a transformer, which families keep under names of their own ──


def decoder_in(model: Any) -> Any:
    """Return the transformer without the LM head that stands behind it."""
    decoder = model.get_decoder()
    # Llama 4 gives itself.
    return model.model if decoder is model else decoder


def decoder_blocks(model: Any) -> nn.ModuleList:
    """Return the decoder's blocks: `layers` in most families, `h` in those of GPT-2's kind.

    Raises `ContractError` where the decoder keeps none in a list.
    """
    decoder = decoder_in(model)
    lists = {name: child for name, child in decoder.named_children() if isinstance(child, nn.ModuleList)}
    for name in ("layers", "h"):
        if name in lists:
            return lists[name]
    if not lists:
        raise ContractError(
            f"model type {model.config.model_type!r} keeps no blocks in a list; choose another base model"
        )
    return max(lists.values(), key=len)


# ── The output head: states to logits, with the scale and the cap that some families apply to these ──


class _Changed(nn.Module):
    """Logits times a factor, then bent towards ± cap (Gemma Team 2024, §2)."""

    def __init__(self, factor: float, cap: float | None) -> None:
        super().__init__()
        self._factor, self._cap = factor, cap

    def forward(self, logits: Tensor) -> Tensor:
        """Return the logits as the family's own code changes them."""
        if self._factor != 1:
            logits = logits * self._factor
        if self._cap is not None:
            logits = torch.tanh(logits / self._cap) * self._cap
        return logits


_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""Names by which Gemma, RecurrentGemma and xLSTM call the cap of their logits."""


def output_head(model: Any) -> nn.Module:
    """Return what turns the model's last states into its logits. Where nothing follows the LM head, that is
    the LM head itself."""
    head: nn.Module = model.get_output_embeddings()
    config = model.config.get_text_config()
    # Cohere multiplies, Granite divides, Gemma 2 caps.
    factor = float(getattr(config, "logit_scale", None) or 1) / float(
        getattr(config, "logits_scaling", None) or 1
    )
    cap = next((cap for name in _CAPS if (cap := getattr(config, name, None)) is not None), None)
    return head if factor == 1 and cap is None else nn.Sequential(head, _Changed(factor, cap))
