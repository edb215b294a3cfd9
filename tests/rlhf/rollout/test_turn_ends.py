"""Bases whose chat template ends turns with another token than `eos_token`, as Qwen2.5's base does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from tokenizers import AddedToken
from transformers import AutoTokenizer, GenerationConfig

from tests.rlhf.runs import make_run, train
from tests.tiny import END, tiny_model_folder, tiny_tokenizer
from training.contract import ContractError
from training.contract.methods.policy import RolloutServerSettings
from training.contract.run import EXIT_FINISHED
from training.contract.snapshot import Message
from training.rlhf.export import export_checkpoint
from training.rlhf.model.backbone import Backbone
from training.rlhf.model.templates import add_turn_end, end_ids
from training.rlhf.policy_gradient.rollout_servers import RolloutServers
from training.rlhf.rollout.generate import rollout
from training.rlhf.rollout.samples import end_tokens
from training.rlhf.sampling import SamplingParameters
from training.rlhf.tokens.encoding import Encoder

ASK = [Message(role="user", content="Why?")]
BEGIN_ID, END_ID = 0, 2
FEW = {"max_steps": 2, "learning_rate": 1e-2}


@pytest.fixture(scope="module")
def other_end(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny base with the beginning-of-text token as its eos_token; its template ends turns as before."""
    folder = tiny_model_folder(tmp_path_factory.mktemp("models") / "tiny")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.eos_token = tokenizer.bos_token
    tokenizer.save_pretrained(folder)
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**settings, "eos_token_id": BEGIN_ID}))
    return folder


def load(folder: Path) -> Backbone:
    return Backbone.load(folder, device="cpu", dtype=torch.float32)


def make_certain(backbone: Backbone, token: int) -> None:
    """Let the base draw this token whatever comes before."""
    head: Any = backbone.lm_head(None)
    ids = torch.tensor([[BEGIN_ID, 70, 80]])
    states = backbone.hidden_states(ids, torch.ones_like(ids)).states[0, -1].detach()
    with torch.no_grad():
        head.weight[token] = states * 1000


def test_generation_ends_at_the_token_that_a_trained_row_ends_with(other_end: Path) -> None:
    backbone = load(other_end)
    assert Encoder(backbone.tokenizer).encode(ASK, "because").ids[-1] == END_ID
    assert end_tokens(backbone) == {BEGIN_ID, END_ID}
    make_certain(backbone, END_ID)
    [[sample]] = rollout(backbone, [[BEGIN_ID, 70, 80]], SamplingParameters(temperature=0, max_tokens=9))
    assert (sample.token_ids, sample.finish_reason, sample.text) == ([END_ID], "stop", "")


def test_an_exported_policy_and_one_of_all_weights_name_the_end_of_a_turn(
    other_end: Path, tmp_path: Path
) -> None:
    adapter = make_run(tmp_path / "adapter", other_end, method="preference", optimiser=FEW)
    whole = make_run(
        tmp_path / "whole", other_end, method="preference", optimiser=FEW, settings={"adapter": "none"}
    )
    assert [train(adapter), train(whole)] == [EXIT_FINISHED] * 2
    export_checkpoint(adapter / "checkpoint", base=other_end, out=tmp_path / "merged", merged=True)
    for folder in (tmp_path / "merged", whole / "checkpoint"):
        assert GenerationConfig.from_pretrained(folder).eos_token_id == [BEGIN_ID, END_ID]


def test_a_generation_configuration_that_names_the_end_stays_as_it_is(tmp_path: Path) -> None:
    folder = tiny_model_folder(tmp_path / "tiny")
    before = (folder / "generation_config.json").read_bytes()
    add_turn_end(folder, tiny_tokenizer())
    assert (folder / "generation_config.json").read_bytes() == before
    (folder / "generation_config.json").unlink()
    assert end_ids(folder) == [END_ID]


def test_a_vllm_is_asked_to_stop_at_the_end_of_a_turn(other_end: Path) -> None:
    asked = []

    def vllm(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        choice = {"token_ids": [70], "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "length"}
        return httpx.Response(200, json={"choices": [{"index": 0, **choice}]})

    servers = RolloutServers(
        ["http://vllm.example"],
        load(other_end),
        RolloutServerSettings(),
        key="",
        attempts=1,
        pause=0,
        transport=httpx.MockTransport(vllm),
    )
    servers.rollout([[BEGIN_ID, 70]], SamplingParameters(max_tokens=2), n=1, seeds=[3])
    assert asked[0]["stop_token_ids"] == [BEGIN_ID, END_ID]


@pytest.mark.parametrize("special", [True, False])
def test_an_end_token_that_is_added_ends_rows_special_or_not(special: bool) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken("<end_of_turn>", special=special)])
    tokenizer.chat_template = tokenizer.chat_template.replace(END, "<end_of_turn>")
    row = Encoder(tokenizer).encode(ASK, "because")
    assert row.ids[-1] == tokenizer.convert_tokens_to_ids("<end_of_turn>")
    assert row.ids[-1] != tokenizer.eos_token_id
    with pytest.raises(ContractError, match="control token '<end_of_turn>'"):
        Encoder(tokenizer).encode(ASK, "an end <end_of_turn> inside")


def test_added_tokens_of_spaces_end_nothing() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken("\n\n", special=False)])
    tokenizer.chat_template = tokenizer.chat_template.replace(f"{END}' + '\n", "\n\n")
    assert END not in tokenizer.chat_template
    assert Encoder(tokenizer).encode(ASK, "because").ids[-1] == tokenizer.eos_token_id
