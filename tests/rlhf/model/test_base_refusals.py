"""Bases that Rondo cannot train or serve are refused by configuration and tokenizer, with the reason and a
remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken
from transformers import (
    CONFIG_MAPPING,
    PythonBackend,
)

from tests.rlhf.model.families import FAMILIES, SIZES, family_folder
from tests.tiny import END, tiny_tokenizer
from training.contract import ContractError
from training.rlhf.model.backbone import Backbone
from training.rlhf.model.base_model import load_base_model, load_shared_base, refuse_unsupported_folder
from training.rlhf.model.inspection import inspect_folder
from training.rlhf.runtime.processes import Processes


def folder_of(path: Path, config: dict[str, Any]) -> Path:
    """A folder with a configuration and a tokenizer, and no weights."""
    tiny_tokenizer().save_pretrained(path)
    (path / "config.json").write_text(json.dumps(config))
    return path


def config_of(kind: str, **more: Any) -> dict[str, Any]:
    written: dict[str, Any] = CONFIG_MAPPING[kind](**{**SIZES, **FAMILIES.get(kind, {}), **more}).to_dict()
    return written


@pytest.mark.parametrize(
    ("config", "reason", "remedy"),
    [
        (
            config_of("bert"),
            "is an encoder, which reads texts and writes none",
            "choose a base made for chats",
        ),
        (config_of("xlm-roberta"), "is an encoder", "choose a base made for chats"),
        ({"model_type": "t5"}, "is an encoder with a decoder", "choose a base that is a decoder alone"),
        (
            {
                "model_type": "vision-encoder-decoder",
                "encoder": {"model_type": "vit"},
                "decoder": {"model_type": "gpt2"},
            },
            "is an encoder with a decoder",
            "choose a base that is a decoder alone",
        ),
        (
            {"model_type": "own", "auto_map": {"AutoConfig": "configuration_own.OwnConfig"}},
            "comes with its own code, which Rondo never runs",
            "choose a base that transformers knows",
        ),
        ({"model_type": "of tomorrow"}, "is not known to transformers", "update Rondo"),
        ({"model_type": "glm4v"}, "reads images or sound beside text", "choose another base model"),
        ({"model_type": "vit"}, "writes no text", "choose a base made for chats"),
    ],
    ids=lambda value: value.get("model_type") if isinstance(value, dict) else None,
)
def test_what_is_not_supported_is_refused_before_weights_are_read(
    tmp_path: Path, config: dict[str, Any], reason: str, remedy: str
) -> None:
    folder = folder_of(tmp_path, config)
    with pytest.raises(ContractError, match=f"{config['model_type']}.*{reason}.*; .*{remedy}"):
        refuse_unsupported_folder(folder)
    # Loading says the same and has not looked for weights, which are not there.
    with pytest.raises(ContractError, match=reason):
        load_base_model(folder, device="cpu", dtype=torch.float32)


def test_a_base_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, config_of("llama"))
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ContractError, match=r"has no chat template; .* put its chat_template\.jinja into"):
        refuse_unsupported_folder(folder)


def test_a_tokenizer_that_is_not_fast_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path, config_of("llama"))
    slow = type("Slow", (PythonBackend,), {"__init__": lambda self: None})()
    monkeypatch.setattr("training.rlhf.model.base_model.AutoTokenizer.from_pretrained", lambda *_, **__: slow)
    with pytest.raises(ContractError, match=r"is not a fast one, .*; save it as tokenizer\.json"):
        refuse_unsupported_folder(folder)


def test_a_tokenizer_with_tokens_beyond_the_models_vocabulary_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, config_of("llama", vocab_size=len(tiny_tokenizer()) - 5))
    with pytest.raises(ContractError, match=r": 5 tokens of the tokenizer, .* put the model's own tokenizer"):
        refuse_unsupported_folder(folder)


@pytest.mark.parametrize("used", [True, False])
def test_a_control_token_beyond_the_vocabulary_is_refused_where_rows_hold_it(
    tmp_path: Path, used: bool
) -> None:
    # As the token for images in Gemma 3's text models.
    tokenizer = tiny_tokenizer()
    folder = folder_of(tmp_path, config_of("llama", vocab_size=len(tokenizer)))
    tokenizer.add_tokens([AddedToken("<image>", special=True)])
    if used:
        tokenizer.chat_template = tokenizer.chat_template.replace(END, "<image>")
    tokenizer.save_pretrained(folder)
    if used:
        with pytest.raises(ContractError, match=": 1 tokens of the tokenizer, such as '<image>'"):
            refuse_unsupported_folder(folder)
    else:
        assert len(refuse_unsupported_folder(folder)) == len(tokenizer)


def test_a_template_without_an_end_is_refused_where_the_tokenizer_has_none(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, config_of("llama"))
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = tokenizer.chat_template.replace(END, "")
    tokenizer.save_pretrained(folder)
    assert refuse_unsupported_folder(folder).eos_token == END
    tokenizer.eos_token = None
    tokenizer.save_pretrained(folder)
    with pytest.raises(ContractError, match=r"no end token after an answer, .*; name one as eos_token"):
        refuse_unsupported_folder(folder)


def test_a_family_that_cannot_be_cut_to_its_first_layers_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As RWKV's, which divides by the number of its layers less one.
    folder = family_folder(tmp_path / "llama", "llama")

    def dividing(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("training.rlhf.model.base_model.AutoModelForCausalLM.from_pretrained", dividing)
    with pytest.raises(ContractError, match=r"cannot be loaded alone .*; choose another base model"):
        inspect_folder(folder)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_of("llama")))
    with pytest.raises(ContractError, match=r"tokenizer .*; put its tokenizer\.json into the folder"):
        refuse_unsupported_folder(tmp_path)


@pytest.mark.parametrize("written", ["{", "[]", '{"model_type": "llama", "hidden_size": "wide"}'])
def test_a_configuration_that_cannot_be_read_is_refused(tmp_path: Path, written: str) -> None:
    folder = folder_of(tmp_path, {})
    (folder / "config.json").write_text(written)
    with pytest.raises(ContractError, match=r"(?s)config\.json cannot be read .*fetch the base model again"):
        refuse_unsupported_folder(folder)


def test_rows_through_layers_that_attend_twice_are_padded_as_their_keys_could_not_be_kept(
    tmp_path: Path,
) -> None:
    folder = family_folder(tmp_path / "differential", "diffllama", num_key_value_heads=2)
    assert not Backbone.load(folder, device="cpu", dtype=torch.float32).packs
    assert inspect_folder(folder)["packs"] is False


def test_a_base_whose_rows_are_padded_is_not_shared_by_processes(tmp_path: Path) -> None:
    folder = family_folder(tmp_path / "state", "mamba")
    with pytest.raises(ContractError, match="padded, not packed, which processes cannot share"):
        load_shared_base(
            folder,
            device=torch.device("cpu"),
            dtype=torch.float32,
            mesh=None,
            processes=Processes(),
        )
