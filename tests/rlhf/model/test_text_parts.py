"""The text part of a model that also reads images trains, is saved and is exported where it stands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.rlhf.model.families import family_folder
from tests.rlhf.model.whole_models import whole_model
from training.contract import ContractError
from training.rlhf.model.adapters import save_model_folder
from training.rlhf.model.backbone import Backbone
from training.rlhf.model.base_model import load_base_model, try_first_layers
from training.rlhf.model.families import read_supported_config
from training.rlhf.model.text_part import save_text_part

IDS = torch.arange(3, 20)[None]


def logits(folder: Path) -> torch.Tensor:
    backbone = Backbone.load(folder, device="cpu", dtype=torch.float32)
    with torch.no_grad():
        return backbone.logits(backbone.hidden_states(IDS, torch.ones_like(IDS)).states)


@pytest.mark.parametrize(
    "kind",
    [
        "gemma3",
        "llava",
        "smolvlm",
        "mistral3",
        "qwen2_vl",
        "qwen2_5_vl",
        "qwen3_vl",
        "qwen3_vl_moe",
        "qwen3_5",
    ],
)
def test_the_text_part_computes_where_it_stands_what_the_whole_computes_without_images(
    tmp_path: Path, kind: str
) -> None:
    whole = whole_model(tmp_path / "whole", kind)
    with torch.no_grad():
        expected = whole(input_ids=IDS).logits
    torch.testing.assert_close(logits(tmp_path / "whole"), expected, rtol=0, atol=1e-4)


def test_the_text_part_is_saved_under_the_names_of_a_model_of_text_alone(tmp_path: Path) -> None:
    whole = whole_model(tmp_path / "whole", "qwen2_5_vl")
    save_text_part(tmp_path / "whole", tmp_path / "part")
    assert json.loads((tmp_path / "part/config.json").read_text())["model_type"] == "qwen2"
    part = AutoModelForCausalLM.from_pretrained(tmp_path / "part").eval()
    with torch.no_grad():
        torch.testing.assert_close(part(IDS).logits, whole(input_ids=IDS).logits, rtol=0, atol=1e-5)


def test_all_its_weights_are_saved_as_a_model_of_text_alone(tmp_path: Path) -> None:
    whole_model(tmp_path / "whole", "smolvlm")
    model, _tokenizer = load_base_model(tmp_path / "whole", device="cpu", dtype=torch.float32)
    save_model_folder(model, tmp_path / "trained", base=tmp_path / "whole")
    torch.testing.assert_close(logits(tmp_path / "trained"), logits(tmp_path / "whole"), rtol=0, atol=0)


def test_its_first_layers_are_tried_alone(tmp_path: Path) -> None:
    whole_model(tmp_path / "whole", "llava")
    assert try_first_layers(read_supported_config(tmp_path / "whole"), tmp_path / "whole")


def test_a_text_part_that_transformers_has_no_model_of_is_refused(tmp_path: Path) -> None:
    whole_model(tmp_path / "whole", "glm4v")
    with pytest.raises(ContractError, match="no model of its text alone; choose another"):
        load_base_model(tmp_path / "whole", device="cpu", dtype=torch.float32)


def test_a_whole_whose_text_alone_has_other_logits_is_refused(tmp_path: Path) -> None:
    whole_model(tmp_path / "whole", "cohere2_vision")
    with pytest.raises(ContractError, match="other logits than its text part"):
        load_base_model(tmp_path / "whole", device="cpu", dtype=torch.float32)


def test_a_model_of_text_alone_has_no_text_part(tmp_path: Path) -> None:
    folder = family_folder(tmp_path / "llama", "llama")
    with pytest.raises(ContractError, match="is text alone; use it as it is"):
        save_text_part(folder, tmp_path / "part")
    with pytest.raises(ContractError, match="is already there; choose another folder"):
        save_text_part(folder, folder)
