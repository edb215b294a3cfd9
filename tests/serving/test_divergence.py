"""POST /v1/kl: how far a checkpoint is from its reference, token by token of one answer."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import torch

from tests.model_server import RunningServer
from tests.serving.conftest import BASE, Folders
from training.rlhf.model.backbone import Backbone

CHAT = [{"role": "user", "content": "What is the sun?"}]
ANSWER = "A star 🌞, the sun rises."


def ask(server: RunningServer, **body: Any) -> httpx.Response:
    return httpx.post(
        f"{server.url}/v1/kl",
        json={"model": "warm", "messages": CHAT, "completion": ANSWER, **body},
        headers={"Authorization": f"Bearer {server.key}"},
        timeout=60,
        trust_env=False,
    )


@pytest.fixture(scope="module")
def backbone(folders: Folders) -> Backbone:
    loaded = Backbone.load(folders.base, device="cpu", dtype=torch.float32)
    for name in ("warm", "hot"):
        loaded.load_adapter(name, folders.checkpoints / name)
    return loaded


def log_probabilities(backbone: Backbone, model: str) -> list[float]:
    """Of the answer's tokens and the token that ends its turn, by one plain pass over the rendered chat."""
    before = "<|begin|><|im_start|>user\nWhat is the sun?<|im_end|>\n<|im_start|>assistant\n"
    tokenizer = backbone.tokenizer
    start = len(tokenizer(before, add_special_tokens=False)["input_ids"])
    ids = tokenizer(f"{before}{ANSWER}<|im_end|>", add_special_tokens=False)["input_ids"]
    row = torch.tensor([ids])
    with torch.inference_mode(), backbone.using(None if model == BASE else model):
        logits = backbone.logits(backbone.hidden_states(row, torch.ones_like(row)).states[0])
    values = torch.log_softmax(logits.float(), -1)
    log_probs: list[float] = values[range(start - 1, len(ids) - 1), ids[start:]].tolist()
    return log_probs


@pytest.mark.parametrize(("model", "reference"), [("warm", None), ("warm", "hot"), (BASE, "hot")])
def test_it_is_the_difference_of_the_two_models_log_probabilities(
    server: RunningServer, backbone: Backbone, model: str, reference: str | None
):
    divergence = ask(server, model=model, **({"reference": reference} if reference else {})).json()
    of_model, other = log_probabilities(backbone, model), log_probabilities(backbone, reference or BASE)
    assert divergence["kl"] == pytest.approx(
        [mine - theirs for mine, theirs in zip(of_model, other, strict=True)], abs=1e-4
    )
    assert max(map(abs, divergence["kl"])) > 0.1
    assert (divergence["model"], divergence["reference"]) == (model, reference or BASE)


def test_every_token_has_its_place_in_the_answer(server: RunningServer):
    divergence = ask(server).json()
    assert len(divergence["tokens"]) == len(divergence["offsets"]) == len(divergence["kl"])
    covered = set()
    for token, (start, end) in zip(divergence["tokens"][:-1], divergence["offsets"][:-1], strict=True):
        covered |= set(range(start, end))
        # Bytes of the sun have its whole place; every other token is what stands there.
        assert token == ANSWER[start:end] or "🌞" in ANSWER[start:end]
    assert covered == set(range(len(ANSWER)))
    assert divergence["tokens"][-1] == "<|im_end|>"
    assert divergence["offsets"][-1] == [len(ANSWER), len(ANSWER)]


def test_a_model_is_at_no_distance_from_itself(server: RunningServer):
    assert ask(server, reference="warm").json()["kl"] == [0.0] * len(ask(server).json()["kl"])
    assert ask(server, model="zero").json()["kl"] == [0.0] * len(ask(server).json()["kl"])


def test_an_empty_answer_is_its_end_token(server: RunningServer):
    divergence = ask(server, completion="").json()
    assert divergence["offsets"] == [[0, 0]]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"model": "nothing"}, 404, "model"),
        ({"reference": "nothing"}, 404, "reference"),
        ({"completion": "a<|im_end|>b"}, 400, "completion"),
        ({"completion": "x " * 3000}, 400, "completion"),
        ({"messages": []}, 400, "messages"),
        ({"n": 2}, 400, "n"),
        ({"timeout": 0}, 400, "timeout"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    server: RunningServer, body: dict[str, Any], status: int, param: str
):
    refusal = ask(server, **body)
    assert (refusal.status_code, refusal.json()["error"]["param"]) == (status, param)
