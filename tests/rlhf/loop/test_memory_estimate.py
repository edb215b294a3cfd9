"""The memory estimate of a dry run, compared with the bytes of real tensors on the tiny model."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from tests.rlhf.model.families import CONTEXT, LONG_ROPE, family_folder
from tests.tiny import tiny_model_folder
from training.contract.methods.common import LoraSettings, OptimiserSettings
from training.contract.methods.policy import (
    AdvantageSettings,
    PolicyGradientSettings,
    PreferenceSettings,
    RewardPart,
    SftSettings,
)
from training.contract.methods.reward import RewardSettings
from training.rlhf.model.backbone import Backbone
from training.rlhf.model.families import context_limit
from training.rlhf.rollout.cache import KeyCache
from training.services.runs.memory import Shape, memory_of, parameters_in


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def backbone(folder: Path) -> Backbone:
    return Backbone.load(folder, device="cpu", dtype=torch.float32)


@pytest.fixture(scope="module")
def shape(folder: Path) -> Shape:
    result = Shape.read(folder)
    assert result is not None
    return result


def bytes_of(tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def test_the_base_is_counted_to_the_byte_from_its_shape_and_from_its_files(
    folder: Path, backbone: Backbone, shape: Shape
):
    real = bytes_of({id(parameter): parameter for parameter in backbone._model.parameters()}.values())
    assert shape.parameters * 4 == real
    assert parameters_in(folder) == shape.parameters
    assert memory_of(SftSettings(), shape).base == real


@pytest.mark.parametrize(
    "lora",
    [
        LoraSettings(),
        LoraSettings(rank=3, layers=2),
        LoraSettings(targets=("q_proj", "down_proj"), layers=99),
    ],
    ids=["all", "two blocks", "two targets"],
)
def test_what_is_trained_is_counted_to_the_byte(backbone: Backbone, shape: Shape, lora: LoraSettings):
    backbone.add_adapter("policy", lora, seed=0)
    weights = list(backbone.parameters("policy").values())
    optimiser = torch.optim.AdamW(weights, lr=1e-3)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimiser.step()
    moments = [
        value
        for state in optimiser.state.values()
        for name, value in state.items()
        if name.startswith("exp_avg")
    ]
    real = bytes_of(weights) + bytes_of(weight.grad for weight in weights) + bytes_of(moments)
    assert memory_of(SftSettings(lora=lora), shape).trained == real


@pytest.mark.parametrize("kind", ["qwen3", "gemma2", "gemma3_text", "phi3", "olmo2", "mixtral", "qwen3_moe"])
def test_families_are_counted_with_their_key_heads_tied_heads_and_experts(tmp_path: Path, kind: str):
    folder = family_folder(tmp_path / kind, kind, hidden_size=64, intermediate_size=160)
    # As their makers write it: what is a family's default is left out.
    config = json.loads((folder / "config.json").read_text())
    if kind.startswith("gemma"):
        del config["tie_word_embeddings"]
    (folder / "config.json").write_text(json.dumps(config))
    family, shape = Backbone.load(folder, device="cpu", dtype=torch.float32), Shape.read(folder)
    assert shape is not None
    # Norms of heads, and more norms to a block than Llama has, are not counted.
    assert shape.parameters == pytest.approx(parameters_in(folder), rel=0.02)
    family.add_adapter("policy", LoraSettings(), seed=0)
    trained = sum(parameter.numel() for parameter in family.parameters("policy").values())
    estimate = shape.adapter_parameters(LoraSettings())
    # One factor A serves what Phi-3 joins into one layer.
    assert estimate == trained or (kind == "phi3" and trained < estimate)
    cache = KeyCache(family.device)
    with torch.no_grad():
        layout = cache.read([(cache.add_prompt(), 5)])
        family.packed_states(torch.arange(5)[None], torch.arange(5)[None], layout)
    cached_numbers = sum(tensor.numel() for layer in cache._layers.values() for tensor in layer.prompts)
    assert cached_numbers == 5 * 2 * shape.layers * shape.key_heads * shape.head_size


def test_positions_by_longrope_count_as_the_trainer_counts_them(tmp_path: Path):
    folder = family_folder(
        tmp_path / "long", "phi3", rope_parameters=LONG_ROPE, original_max_position_embeddings=CONTEXT // 2
    )
    shape = Shape.read(folder)
    assert shape is not None
    config = AutoConfig.from_pretrained(folder)
    assert shape.context == context_limit(config) == CONTEXT // 2


def test_training_all_weights_needs_sixteen_bytes_each_and_the_base_where_it_is_the_reference(shape: Shape):
    taught = memory_of(SftSettings(adapter="none"), shape)
    assert (taught.trained, taught.base) == (16 * shape.parameters, 0)
    preferred = memory_of(PreferenceSettings(adapter="none"), shape)
    assert (preferred.trained, preferred.base) == (16 * shape.parameters, 4 * shape.parameters)


def test_what_else_a_method_holds_is_counted(shape: Shape):
    lora = LoraSettings(rank=4)
    adapter = shape.adapter_parameters(lora)
    part = RewardPart(name="people", kind="model", checkpoint="round")
    twice = RewardPart(name="again", kind="model", checkpoint="round")
    ppo = PolicyGradientSettings(
        lora=lora, rewards=(part, twice), advantage=AdvantageSettings(kind="gae"), max_tokens=256
    )
    # A value adapter is trained beside the policy's; one reward model is frozen, however often it is named.
    assert memory_of(ppo, shape).trained == 2 * 16 * adapter
    assert memory_of(ppo, shape).frozen == 4 * adapter
    # Keys and values of two heads of twelve in three blocks, for 16 prompts × 8 answers of 256 tokens.
    assert memory_of(ppo, shape).samples == 16 * 8 * 256 * (2 * 3 * 2 * 12 * 4)
    continued = memory_of(PreferenceSettings(lora=lora), shape, continues=True)
    assert continued.frozen == 4 * adapter
    # A reward model begins at the base, whatever the policy continues.
    assert memory_of(RewardSettings(lora=lora), shape, continues=True).frozen == 0


def test_checkpointing_and_fewer_blocks_and_tokens_need_less(shape: Shape):
    def activations(shape: Shape = shape, **optimiser) -> int:
        return memory_of(SftSettings(optimiser=OptimiserSettings(**optimiser)), shape).activations

    whole = activations(micro_batch_tokens=2048)
    assert activations(micro_batch_tokens=4096) == 2 * whole
    # Of three blocks nothing is saved; of thirty a hidden state each is kept, and three blocks.
    assert activations(micro_batch_tokens=2048, gradient_checkpointing=True) == whole
    deep = dataclasses.replace(shape, layers=30)
    few = activations(deep, micro_batch_tokens=2048, gradient_checkpointing=True)
    assert few == whole + 2048 * 30 * shape.hidden * 4
    assert memory_of(SftSettings(lora=LoraSettings(layers=1)), shape).activations == whole / 3


def test_a_folder_without_a_configuration_tells_nothing(tmp_path: Path):
    assert Shape.read(tmp_path) is None
    assert parameters_in(tmp_path) is None
    (tmp_path / "config.json").write_text("[]")
    assert Shape.read(tmp_path) is None
    (tmp_path / "model.safetensors").write_bytes(b"\x01")
    assert parameters_in(tmp_path) is None
