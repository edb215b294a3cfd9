"""Families of models as tiny random bases, which differ in what packed rows and kept keys must know.

A few thousand weights each. Windows are shorter than the rows, caps low enough to bend what is computed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, GenerationConfig

from tests.chat_templates import template
from tests.tiny import tiny_tokenizer

CONTEXT = 512
WINDOW = 8
SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.15,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": None,
}
_GROUPED: dict[str, Any] = {"num_key_value_heads": 2}
_WIDE: dict[str, Any] = {**_GROUPED, "head_dim": 12}
_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
_ALTERNATE = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.1 * place for place in range(4)],
    "long_factor": [4.0] * 4,
    "original_max_position_embeddings": CONTEXT // 2,
}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {**_GROUPED, "tie_word_embeddings": True},
    "qwen2": {**_GROUPED, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    "qwen3": {**_WIDE, "tie_word_embeddings": True},
    "gemma": {"num_key_value_heads": 1, "head_dim": 12},
    "gemma2": {
        **_WIDE,
        **_ALTERNATE,
        "query_pre_attn_scalar": 7,
        "attn_logit_softcapping": 1.5,
        "final_logit_softcapping": 2.0,
    },
    "gemma3_text": {**_WIDE, **_ALTERNATE, "query_pre_attn_scalar": 7},
    "mistral": {**_GROUPED, "sliding_window": WINDOW},
    "phi3": {**_GROUPED, "sliding_window": 3 * WINDOW},
    "gpt_neox": {"rotary_pct": 0.5},
    "gpt2": {"n_inner": None},
    "olmo2": {},
    "olmo3": {**_GROUPED, **_ALTERNATE},
    "cohere": {**_GROUPED, "logit_scale": 0.3, "use_qk_norm": True},
    "cohere2": {**_GROUPED, **_ALTERNATE},
    "granite": {
        **_GROUPED,
        "logits_scaling": 4.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.3,
        "embedding_multiplier": 3.0,
    },
    "mixtral": {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {**_WIDE, **_EXPERTS, "num_experts": 4},
    "jetmoe": {"num_key_value_heads": 2, "kv_channels": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "hunyuan_v1_moe": {**_GROUPED, "head_dim": 8, "num_experts": 4, "moe_topk": 2},
    "glm4": {**_GROUPED, "head_dim": 8},
    "stablelm": {**_GROUPED},
    "smollm3": {**_GROUPED, "no_rope_layers": [1, 0]},
    "nemotron": {**_GROUPED, "head_dim": 8},
    "deepseek_v3": {
        **_EXPERTS,
        "n_routed_experts": 4,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "num_key_value_heads": 4,
        "kv_lora_rank": 8,
        "q_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 8,
        "v_head_dim": 6,
    },
    "gpt_oss": {**_WIDE, **_ALTERNATE, "num_local_experts": 4, "num_experts_per_tok": 2},
    "bloom": {"n_layer": 2, "n_head": 4},
    "lfm2": {**_GROUPED, "layer_types": ["conv", "full_attention"]},
    "mamba": {"state_size": 4},
    "rwkv": {"attention_hidden_size": 32},
    "qwen3_5_text": {
        **_WIDE,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
}
"""By model type, what its configuration has besides the sizes."""
PADDED = frozenset({"gpt_oss", "bloom", "lfm2", "mamba", "rwkv", "qwen3_5_text"})
"""Of these rows are padded, not packed."""

_TEMPLATES = {
    "llama": "llama3",
    "qwen2": "qwen2_5",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3_instruct_2507",
    "gemma": "gemma",
    "gemma2": "gemma",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
    "glm4": "glm4moe",
    "deepseek_v3": "deepseekv3",
    "cohere": "cohere",
}
"""The chat templates of their makers; the others have that of the tiny model."""


def family_folder(path: Path, kind: str, seed: int = 0, **more: Any) -> Path:
    """Build the base in `path` and return the path. more: of its configuration."""
    config = CONFIG_MAPPING[kind](**{**SIZES, **FAMILIES.get(kind, {}), **more})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                # Gains and biases that are 1 and 0 would hide what is done with them.
                parameter.add_(0.05 * torch.randn_like(parameter))
    model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=2, pad_token_id=2)
    model.save_pretrained(path)
    tokenizer = tiny_tokenizer()
    if kind in _TEMPLATES:
        tokenizer.chat_template = template(_TEMPLATES[kind])
    tokenizer.save_pretrained(path)
    return path
