"""The real starter model, as it is fetched on a machine that has nothing: what it is and what it says."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from training.contract.files import sha256_of_file
from training.rlhf.model.backbone import Backbone
from training.rlhf.rollout.generate import rollout
from training.rlhf.rollout.samples import end_tokens
from training.rlhf.sampling import SamplingParameters

pytestmark = [
    pytest.mark.starter,
    pytest.mark.slow,
    pytest.mark.skipif("RONDO_SKIP_STARTER" in os.environ, reason="RONDO_SKIP_STARTER is set"),
]


@pytest.fixture(scope="module")
def backbone(starter: Path) -> Backbone:
    return Backbone.load(starter, device="cpu", dtype=torch.float32)


def prompt(backbone: Backbone, question: str) -> list[int]:
    text = backbone.tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
    )
    ids: list[int] = backbone.tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def test_it_answers_a_simple_question_and_ends_its_turn(backbone: Backbone):
    [[sample]] = rollout(
        backbone,
        [prompt(backbone, "What is the capital of France?")],
        SamplingParameters(temperature=0, max_tokens=30),
    )
    assert "Paris" in sample.text
    assert sample.finish_reason == "stop"
    assert sample.token_ids[-1] == backbone.tokenizer.convert_tokens_to_ids("<|im_end|>")


def test_a_chat_is_written_as_the_model_was_trained_to_read_it(backbone: Backbone):
    text = backbone.tokenizer.decode(prompt(backbone, "Hi"))
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_only_the_end_of_a_turn_ends_an_answer(backbone: Backbone):
    tokenizer = backbone.tokenizer
    assert end_tokens(backbone) == {2}
    assert tokenizer.convert_ids_to_tokens([0, 1, 2]) == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert tokenizer.decode([1, 2, 0], skip_special_tokens=True) == ""


def test_each_digit_is_a_token_and_spaces_before_it_stay_together(backbone: Backbone):
    # So did the tokenizer of the model's training, which the GGUF file names but does not hold.
    assert backbone.tokenizer.tokenize("a  12") == ["a", "ĠĠ", "1", "2"]


def test_the_folder_says_where_it_came_from_and_is_not_quantised(starter: Path):
    source = json.loads((starter / "source.json").read_text())
    configuration = json.loads((starter / "config.json").read_text())
    assert source["way"] in ("local", "hub", "package")
    assert "quantization_config" not in configuration
    assert configuration["dtype"] == "bfloat16"
    # 134,515,008 parameters of two bytes, embeddings tied.
    assert 269_030_016 <= (starter / "model.safetensors").stat().st_size < 269_200_000


def test_the_package_is_converted_to_the_bytes_that_1_0_wrote(starter: Path):
    if json.loads((starter / "source.json").read_text())["way"] != "package":
        pytest.skip("the model came from the hub or a folder")
    digests = {
        "model.safetensors": "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b",
        "tokenizer.json": "75b3182b3a5a2af0f60d57fa1002a42242c0abc4d1954d1bdda925dbb5c7601e",
        "chat_template.jinja": "872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788",
    }
    assert {name: sha256_of_file(starter / name) for name in digests} == digests
    configuration = json.loads((starter / "config.json").read_text())
    assert configuration["rms_norm_eps"] == 9.999999747378752e-06
    assert configuration["rope_parameters"] == {"rope_theta": 100000.0, "rope_type": "default"}
    assert (configuration["tie_word_embeddings"], configuration["max_position_embeddings"]) == (True, 8192)


def test_a_sample_is_drawn_again_alone_by_its_seed(backbone: Backbone):
    question = prompt(backbone, "Describe a thunderstorm.")
    parameters = SamplingParameters(temperature=1.0, max_tokens=16, seed=70)
    [group] = rollout(backbone, [question], parameters, n=3)
    for sample in group[1:]:
        alone = SamplingParameters(temperature=1.0, max_tokens=16, seed=sample.seed)
        [[again]] = rollout(backbone, [question], alone)
        assert again.text == sample.text
