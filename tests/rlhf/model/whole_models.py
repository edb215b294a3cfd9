"""Tiny random models that read images beside text, of any family of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from tests.rlhf.model.architectures import NotTinyError
from tests.rlhf.model.families import FAMILIES, SIZES
from tests.tiny import tiny_tokenizer

WHOLE_KINDS = sorted(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)

_VISION: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "intermediate_size", "projection_dim", "embed_dim"), 16),
    **dict.fromkeys(("out_hidden_size", "vision_output_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "depth"), 1),
    **dict.fromkeys(("num_attention_heads", "num_heads"), 2),
    "image_size": 16,
    "patch_size": 8,
}


def whole_model(folder: Path, kind: str) -> Any:
    """Write a tiny model of the family `kind` into `folder`; return it. Raises `NotTinyError`."""
    try:
        default = CONFIG_MAPPING[kind]()
        text = default.get_text_config()
        if text is default:
            raise NotTinyError(f"{kind} has no text part")
        vision = getattr(default, "vision_config", None)
        named = {"model_type": vision.model_type} if hasattr(vision, "model_type") else {}
        config = CONFIG_MAPPING[kind](text_config=_text(text), vision_config={**named, **_VISION})
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
        model.save_pretrained(folder)
    except NotTinyError:
        raise
    except Exception as error:
        raise NotTinyError(f"{kind}: {type(error).__name__}: {error}") from error
    tiny_tokenizer().save_pretrained(folder)
    return model


def _text(text: Any) -> dict[str, Any]:
    kind = text.model_type
    sizes = {**SIZES, "num_key_value_heads": 2, **FAMILIES.get(kind, {})}
    if getattr(text, "num_experts", None):
        sizes |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    written: dict[str, Any] = CONFIG_MAPPING[kind](**sizes).to_dict()
    if "_vl_" in kind:
        # Three positions a token: of time, height and width.
        written["rope_parameters"] = {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [1, 1, 2],
        }
    return written
