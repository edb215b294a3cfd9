"""Bases whose vocabulary is padded beyond their tokenizer: such ids are neither drawn nor learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.model_server import running_model_server
from tests.rlhf.model.families import family_folder
from tests.rlhf.policy_gradient.sampled_runs import GRPO, PPO, make_sampled_run
from tests.rlhf.runs import train
from tests.serving.conftest import connect
from tests.tiny import tiny_tokenizer
from training.contract import read_metrics
from training.contract.methods.policy import RolloutServerSettings
from training.contract.run import EXIT_FINISHED
from training.model_server import ServerError
from training.rlhf.model.backbone import Backbone, UnknownTokens
from training.rlhf.policy_gradient.rollout_servers import RolloutServers
from training.rlhf.rollout.generate import rollout
from training.rlhf.sampling import SamplingParameters

KNOWN = len(tiny_tokenizer())
SIZE = KNOWN + 64
BASE = "SmolLM2-135M-Instruct"
PROMPTS = [[0, 65, 66, 67], [0, 80]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base that would draw an id without a token every other time."""
    path = family_folder(tmp_path_factory.mktemp("models") / BASE, "llama", vocab_size=SIZE)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.no_grad():
        model.get_output_embeddings().weight[KNOWN:] *= 2
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def backbone(folder: Path) -> Backbone:
    return Backbone.load(folder, device="cpu", dtype=torch.float32)


def test_ids_without_a_token_are_not_drawn_and_have_no_part_in_log_probabilities(
    folder: Path, backbone: Backbone
) -> None:
    oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    parameters = SamplingParameters(max_tokens=24, alternatives=20)
    padded = 0.0
    for prompt, group in zip(PROMPTS, rollout(backbone, PROMPTS, parameters, n=4), strict=True):
        for sample in group:
            assert max(sample.token_ids) < KNOWN
            with torch.no_grad():
                logits = oracle(torch.tensor([[*prompt, *sample.token_ids]])).logits[0, len(prompt) - 1 : -1]
            padded = max(padded, float(logits.softmax(-1)[:, KNOWN:].sum(-1).max()))
            expected = logits[:, :KNOWN].log_softmax(-1)[range(len(sample.tokens)), sample.token_ids]
            assert [token.log_prob for token in sample.tokens] == pytest.approx(expected.tolist(), abs=1e-4)
            assert all(id < KNOWN for token in sample.tokens for id, _ in token.alternatives)
    assert padded > 0.2, "the base would not draw such ids"
    greedy = rollout(backbone, PROMPTS, SamplingParameters(temperature=0, max_tokens=24))
    assert all(max(sample.token_ids) < KNOWN for [sample] in greedy)


@pytest.mark.parametrize(
    "method",
    [
        {**GRPO, "update": {"inner_epochs": 2, "aggregate": "sequence"}},
        {**GRPO, "kl": {"place": "loss", "kind": "full", "beta": 0.02}, "update": {"entropy": 0.01}},
        PPO,
    ],
    ids=["grpo", "full divergence and entropy", "ppo"],
)
def test_sampler_and_trainer_have_one_policy_over_the_tokens_that_there_are(
    folder: Path, tmp_path: Path, method: dict[str, Any]
) -> None:
    run = make_sampled_run(tmp_path / "run", folder, method)
    assert train(run) == EXIT_FINISHED
    lines = read_metrics(run)
    assert max(line["sampler_gap"] for line in lines) < 1e-5
    assert lines[0]["kl"] == pytest.approx(0, abs=1e-5)
    assert all(line["skipped"] == 0 for line in lines)
    if method["update"].get("inner_epochs", 1) == 1:
        assert all(line["ratio_max"] == line["ratio_min"] == 1 for line in lines)


def test_holes_in_a_vocabulary_are_left_out_like_its_end() -> None:
    tokenizer = tiny_tokenizer()

    class Sparse:
        def get_vocab(self) -> dict[str, int]:
            return {token: id for token, id in tokenizer.get_vocab().items() if id not in (5, 9)}

    unknown = UnknownTokens(Sparse(), SIZE)
    assert unknown.ids == {5, 9, *range(KNOWN, SIZE)}
    logits = unknown.exclude(torch.zeros(2, 3, SIZE))
    assert set((logits == -torch.inf).all(0).all(0).nonzero()[:, 0].tolist()) == unknown.ids
    whole = torch.zeros(1, KNOWN)
    assert UnknownTokens(tokenizer, KNOWN).exclude(whole) is whole
    assert not whole.any()


def test_the_model_server_neither_draws_nor_takes_ids_without_a_token(folder: Path, tmp_path: Path) -> None:
    with running_model_server(folder.parent, tmp_path) as running, connect(running) as client:
        answer = client.completions.create(
            model=BASE, prompt=[0, 80], max_tokens=40, seed=1, n=4, extra_body={"return_token_ids": True}
        )
        choices: list[Any] = answer.choices
        assert max(id for choice in choices for id in choice.token_ids) < KNOWN
        with pytest.raises(openai.BadRequestError) as refusal:
            client.completions.create(model=BASE, prompt=[0, KNOWN], max_tokens=1)
        assert (refusal.value.code, refusal.value.param) == ("invalid_value", "prompt[0]")


@pytest.mark.parametrize("drawn", [70, KNOWN])
def test_a_vllm_is_asked_not_to_draw_them_and_refused_where_it_does(backbone: Backbone, drawn: int) -> None:
    asked = []

    def vllm(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        choice = {"token_ids": [drawn], "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "length"}
        return httpx.Response(200, json={"choices": [{"index": 0, **choice}]})

    servers = RolloutServers(
        ["http://vllm.example"],
        backbone,
        RolloutServerSettings(),
        key="",
        attempts=1,
        pause=0,
        transport=httpx.MockTransport(vllm),
    )
    if drawn < KNOWN:
        servers.rollout([[0, 70]], SamplingParameters(max_tokens=1), n=1, seeds=[3])
    else:
        with pytest.raises(ServerError):
            servers.rollout([[0, 70]], SamplingParameters(max_tokens=1), n=1, seeds=[3])
    assert asked[0]["logit_bias"] == {str(id): -100 for id in range(KNOWN, SIZE)}
