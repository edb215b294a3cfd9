"""Targets of adapters: the default fits each family, and what fits nothing is refused with what there is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from tests.rlhf.model.families import FAMILIES, SIZES
from training.contract import ALL_LINEAR, ContractError, LoraSettings
from training.rlhf.model.lora_layer import LoraLinear
from training.rlhf.model.lora_targets import fitted
from training.rlhf.model.low_rank import add_low_rank

ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
DEFAULT = set(LoraSettings().targets)


def model_of(kind: str, **more: Any) -> Any:
    config = CONFIG_MAPPING[kind](**{**SIZES, **FAMILIES.get(kind, {}), **more})
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def adapted_by(kind: str, settings: LoraSettings) -> set[str]:
    """The names of the layers on which an adapter lies once it was added."""
    model = model_of(kind)
    add_low_rank(model, "first", fitted(model, settings, base="base"), seed=0)
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, BaseTunerLayer)}
    assert all(type(layer) is LoraLinear for layer in layers.values()), "not what rows of adapters can mix"
    # The names are the same when adapters are there.
    assert fitted(model, settings, base="base") == fitted(model_of(kind), settings, base="base")
    return {name.rpartition(".")[2] for name in layers}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("llama", DEFAULT),
        ("gemma2", DEFAULT),
        ("phi3", {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}),
        ("glm4", ATTENTION | {"gate_up_proj", "down_proj"}),
        ("gpt_neox", {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}),
        ("nemotron", ATTENTION | {"up_proj", "down_proj"}),
        ("mixtral", ATTENTION),
        ("qwen3_moe", ATTENTION),
        ("deepseek_v3", {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"}),
    ],
)
@pytest.mark.parametrize("targets", [LoraSettings().targets, (ALL_LINEAR,)], ids=["default", ALL_LINEAR])
def test_the_default_and_all_linear_are_the_linear_layers_without_head_router_and_experts(
    kind: str, expected: set[str], targets: tuple[str, ...]
) -> None:
    assert adapted_by(kind, LoraSettings(targets=targets)) == expected


def test_a_target_that_matches_nothing_is_refused_with_the_names_that_there_are() -> None:
    with pytest.raises(
        ContractError,
        match="no layer q_proj; name some of down_proj, gate_up_proj, o_proj, qkv_proj, or all-linear",
    ):
        fitted(model_of("phi3"), LoraSettings(targets=("o_proj", "q_proj")), base="tiny")


def test_layers_of_experts_are_refused_as_targets() -> None:
    settings = LoraSettings(targets=("q_proj", "up_proj"))
    with pytest.raises(ContractError, match=r"up_proj are layers of experts in tiny, .*; name some of kv_a"):
        fitted(model_of("deepseek_v3", q_lora_rank=None), settings, base="tiny")


def test_a_name_of_a_block_is_no_target() -> None:
    with pytest.raises(ContractError, match="no layer self_attn"):
        fitted(model_of("llama"), LoraSettings(targets=("self_attn",)), base="tiny")


def test_a_base_without_linear_layers_names_full_fine_tuning() -> None:
    with pytest.raises(ContractError, match=r"no linear layer that an adapter can lie on; set .* 'none'"):
        fitted(model_of("gpt2"), LoraSettings(), base="tiny")


def test_as_many_blocks_as_there_are_is_all_of_them() -> None:
    assert fitted(model_of("llama"), LoraSettings(layers=2), base="tiny").layers is None
    assert fitted(model_of("llama"), LoraSettings(layers=1), base="tiny").layers == 1
