"""Tiny random bases of any family of transformers: its configuration's sizes cut down by their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, GenerationConfig

from tests.tiny import tiny_tokenizer

CONTEXT = 512
MOST_PARAMETERS = 20_000_000
_ALWAYS: dict[str, Any] = {"vocab_size": 320, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": None}
_SIZES: dict[str, Any] = {
    # Widths, by the names that families give them.
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "model_dim", "word_embed_proj_dim"), 64),
    **dict.fromkeys(
        ("intermediate_size", "n_inner", "ffn_dim", "dff", "ffn_hidden_size", "ffn_hidden_dim"), 96
    ),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("head_dim", "v_head_dim", "kv_channels", "attention_head_dim"), 16),
    **dict.fromkeys(
        ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_seq_length"), CONTEXT
    ),
    **dict.fromkeys(("rotary_dim", "q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim"), 8),
    **dict.fromkeys(("sliding_window", "attention_window"), 16),
    # Experts.
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts"), 2),
    **dict.fromkeys(
        ("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 32
    ),
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}


class NotTinyError(Exception):
    """A family whose configuration is not cut down by these names."""


def architecture_folder(path: Path, kind: str) -> Path:
    """Build a base of the family `kind` in `path`; return the path. Raises `NotTinyError`."""
    try:
        config = _config(kind)
        with torch.device("meta"):
            size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
        if size > MOST_PARAMETERS:
            raise NotTinyError(f"{kind} has {size:,} parameters")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            with torch.no_grad():
                for parameter in model.parameters():
                    # Weights far from their start, so that what is computed otherwise shows.
                    parameter.add_(0.1 * torch.randn_like(parameter))
        model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=2, pad_token_id=2)
        model.save_pretrained(path)
    except NotTinyError:
        raise
    except Exception as error:
        raise NotTinyError(f"{kind}: {type(error).__name__}: {error}") from error
    tiny_tokenizer().save_pretrained(path)
    return path


def _config(kind: str) -> Any:
    family = CONFIG_MAPPING[kind]
    default = family().to_dict()
    # What has no size by default is left without one, except where the family cannot do without.
    needed = {"head_dim", "n_routed_experts", "num_experts_per_tok", "n_group", "topk_group"} & default.keys()
    sizes = {name: value for name, value in _SIZES.items() if name in needed or default.get(name) is not None}
    if "kv_lora_rank" in sizes and "num_key_value_heads" in sizes:
        # Heads of a latent attention share no keys.
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    if {"head_dim", "qk_rope_head_dim"} <= sizes.keys():
        sizes["head_dim"] = sizes["qk_rope_head_dim"]
    if kinds := default.get("layer_types"):
        sizes["layer_types"] = (sorted(set(kinds)) * 2)[:2]
    return family(**{**_ALWAYS, **sizes})
