"""Targets of adapters: the default fits each family, and what fits nothing is refused with what there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from tests.rlhf.model.families import FAMILIES, SIZES, family_folder
from tests.rlhf.model.whole_models import whole_model
from tests.serving.conftest import write_checkpoint
from training.contract import ContractError
from training.contract.methods.common import ALL_LINEAR, LoraSettings
from training.rlhf.export import export_checkpoint
from training.rlhf.model.adapters import add_low_rank, fitted_targets
from training.rlhf.model.backbone import Backbone
from training.rlhf.model.linear_layers import LoraLinear, quantise

ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
DEFAULT = set(LoraSettings().targets)


def model_of(kind: str, **more: Any) -> Any:
    config = CONFIG_MAPPING[kind](**{**SIZES, **FAMILIES.get(kind, {}), **more})
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def adapted_by(kind: str, settings: LoraSettings) -> set[str]:
    """The names of the layers on which an adapter lies once it was added."""
    model = model_of(kind)
    add_low_rank(model, "first", fitted_targets(model, settings, base="base"), seed=0)
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, BaseTunerLayer)}
    assert all(type(layer) is LoraLinear for layer in layers.values()), "not what rows of adapters can mix"
    # The names are the same when adapters are there.
    assert fitted_targets(model, settings, base="base") == fitted_targets(
        model_of(kind), settings, base="base"
    )
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
        ("gpt2", {"c_attn", "c_proj", "c_fc"}),
        ("jetmoe", {"kv_proj"}),
        ("hunyuan_v1_moe", ATTENTION),
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
        fitted_targets(model_of("phi3"), LoraSettings(targets=("o_proj", "q_proj")), base="tiny")


def test_layers_of_experts_are_refused_as_targets() -> None:
    settings = LoraSettings(targets=("q_proj", "up_proj"))
    with pytest.raises(ContractError, match=r"up_proj are layers of experts in tiny, .*; name some of kv_a"):
        fitted_targets(model_of("deepseek_v3", q_lora_rank=None), settings, base="tiny")


def test_a_name_of_a_block_is_no_target() -> None:
    with pytest.raises(ContractError, match="no layer self_attn"):
        fitted_targets(model_of("llama"), LoraSettings(targets=("self_attn",)), base="tiny")


def test_a_base_without_linear_layers_names_full_fine_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.rlhf.model.adapters.Conv1D", nn.Linear)
    with pytest.raises(ContractError, match=r"no linear layer that an adapter can lie on; set .* 'none'"):
        fitted_targets(model_of("gpt2"), LoraSettings(), base="tiny")


def test_as_many_blocks_as_there_are_is_all_of_them() -> None:
    assert fitted_targets(model_of("llama"), LoraSettings(layers=2), base="tiny").layers is None
    assert fitted_targets(model_of("llama"), LoraSettings(layers=1), base="tiny").layers == 1


@pytest.mark.parametrize("kind", ["gpt2", "smolvlm"])
def test_an_adapter_is_merged_on_export_into_weights_of_any_form(tmp_path: Path, kind: str) -> None:
    base = tmp_path / "base"
    if kind == "smolvlm":
        whole_model(base, kind)
    else:
        family_folder(base, kind)
    write_checkpoint(base, tmp_path / "checkpoint", trained=0.3)
    export_checkpoint(tmp_path / "checkpoint", base=base, out=tmp_path / "merged", merged=True)
    backbone = Backbone.load(base, device="cpu", dtype=torch.float32)
    backbone.load_adapter("it", tmp_path / "checkpoint")
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        plain = backbone.logits(backbone.hidden_states(ids, torch.ones_like(ids)).states)
    with torch.no_grad(), backbone.using("it"):
        adapted = backbone.logits(backbone.hidden_states(ids, torch.ones_like(ids)).states)
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")(ids).logits
    assert not torch.allclose(plain, adapted, atol=0.1)
    torch.testing.assert_close(merged, adapted, rtol=1e-4, atol=1e-4)


def test_a_base_without_plain_linear_layers_is_not_quantised() -> None:
    with pytest.raises(ContractError, match="spec, quantization"):
        quantise(model_of("gpt2"), "int8", "cpu")
