"""Samples from a server: those of a rollout in this process, and clear words where the server gives none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from tests.model_server import RunningServer, running_model_server
from tests.tiny import tiny_model_folder, tiny_tokenizer
from training.model_server import ServerError
from training.rlhf.model.backbone import Backbone
from training.rlhf.policy_gradient.rollout_servers import RemoteRollout
from training.rlhf.rollout.generate import rollout
from training.rlhf.rollout.samples import end_tokens
from training.rlhf.sampling import SamplingParameters

BASE = "SmolLM2-135M-Instruct"
PROMPTS = [[0, 65, 66, 67, 68, 69, 70], [0, 80], [0, 90, 91, 92]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    base = tiny_model_folder(folder / BASE)
    # A fifth of the vocabulary ends a sample, so that some end before their last token.
    configuration = json.loads((base / "generation_config.json").read_text())
    configuration["eos_token_id"] = [configuration["eos_token_id"], *range(20, 40)]
    (base / "generation_config.json").write_text(json.dumps(configuration))
    return folder


@pytest.fixture(scope="module")
def backbone(models: Path) -> Backbone:
    return Backbone.load(models / BASE, device="cpu", dtype=torch.float32)


@pytest.fixture(scope="module")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_model_server(models, tmp_path_factory.mktemp("checkpoints")) as running:
        yield running


@pytest.fixture(scope="module")
def remote(server: RunningServer, backbone: Backbone) -> Iterator[RemoteRollout]:
    with RemoteRollout(
        url=server.url,
        key=server.key,
        model=BASE,
        tokenizer=backbone.tokenizer,
        end_tokens=end_tokens(backbone),
        timeout=120,
    ) as client:
        yield client


def faked(answer: Callable[[httpx.Request], httpx.Response], **choices: Any) -> RemoteRollout:
    """A client whose server is `answer`."""
    return RemoteRollout(
        url="http://server.example",
        model="policy",
        tokenizer=tiny_tokenizer(),
        end_tokens=frozenset({2}),
        pause=0,
        transport=httpx.MockTransport(answer),
        **choices,
    )


def response_body(**changes: Any) -> dict[str, Any]:
    """A server's answer of one sample of three tokens, the last of which is the end token."""
    choice = {
        "index": 0,
        "text": "aa",
        "token_ids": [70, 70, 2],
        "logprobs": {"token_logprobs": [-0.5, -1.5, -2.5]},
        "finish_reason": "stop",
    }
    return {"choices": [{**choice, **changes}]}


@pytest.mark.parametrize("stop", [(), ("a", "e")])
def test_samples_of_our_model_server_are_those_of_a_rollout_here(
    remote: RemoteRollout, backbone: Backbone, stop: tuple[str, ...]
):
    parameters = SamplingParameters(max_tokens=24, stop=stop)
    groups = remote.rollout(PROMPTS, parameters, n=4, seeds=[5, 50, 500])
    expected = rollout(backbone, PROMPTS, parameters, n=4, seeds=[5, 50, 500])
    reasons = {sample.finish_reason for group in expected for sample in group}
    assert "stop" in reasons
    for group, others in zip(groups, expected, strict=True):
        for sample, other in zip(group, others, strict=True):
            assert sample.token_ids == other.token_ids
            assert sample.text == other.text
            assert sample.visible_tokens == other.visible_tokens
            assert sample.finish_reason == other.finish_reason
            assert sample.seed == other.seed
            log_probs = [token.log_prob for token in sample.tokens]
            assert log_probs == pytest.approx([token.log_prob for token in other.tokens], abs=1e-4)


def test_our_model_server_refuses_to_stream_token_ids(server: RunningServer):
    answer = httpx.post(
        f"{server.url}/v1/completions",
        headers={"Authorization": f"Bearer {server.key}"},
        json={"model": BASE, "prompt": [0, 65], "return_token_ids": True, "stream": True},
    )
    assert answer.status_code == 400
    assert "'return_token_ids' is not supported with 'stream'" in answer.json()["error"]["message"]


def test_what_the_server_refuses_is_told_in_its_own_words(remote: RemoteRollout):
    with pytest.raises(ServerError, match=r"status 400: The prompt's 3 tokens and the 5000 asked for"):
        remote.rollout([[0, 65, 66]], SamplingParameters(max_tokens=5000))


def test_a_prompt_is_asked_for_as_vllm_wants_it():
    requests: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append((request.url.path, request.headers["Authorization"], json.loads(request.content)))
        return httpx.Response(200, json=response_body())

    parameters = SamplingParameters(temperature=0.7, top_k=5, max_tokens=9, stop=("x",), seed=3)
    with faked(answer, key="secret", tells="sampler") as remote:
        [[sample]] = remote.rollout([[0, 65]], parameters)
    body = {
        "model": "policy",
        "prompt": [0, 65],
        "n": 1,
        "seed": 3,
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": 5,
        "max_tokens": 9,
        "stop": ["x"],
        "logprobs": 0,
        "return_token_ids": True,
    }
    assert requests == [("/v1/completions", "Bearer secret", body)]
    assert sample.token_ids == [70, 70, 2]
    assert [token.log_prob for token in sample.tokens] == [-0.5, -1.5, -2.5]
    # The end token has no part in the text.
    assert sample.text == tiny_tokenizer().decode([70, 70])
    assert sample.visible_tokens == 2


def test_a_busy_server_is_asked_again():
    answers = iter([httpx.Response(503), httpx.Response(429), httpx.Response(200, json=response_body())])
    with faked(lambda _: next(answers), attempts=3) as remote:
        assert len(remote.rollout([[0]], SamplingParameters())) == 1


def test_a_server_that_stays_busy_or_silent_is_named():
    with faked(lambda _: httpx.Response(503), attempts=2) as remote, pytest.raises(ServerError, match="503"):
        remote.rollout([[0]], SamplingParameters())

    def silent(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("", request=request)

    message = r"the model server at http://server\.example does not answer \(ReadTimeout\)"
    with faked(silent, attempts=2) as remote, pytest.raises(ServerError, match=message):
        remote.rollout([[0]], SamplingParameters())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": None}, "lacks token ids"),
        ({"logprobs": None}, "lacks token ids or their log-probabilities"),
        ({"token_ids": [70, 70]}, "lacks token ids or their log-probabilities"),
        ({"finish_reason": "abort"}, r"broke a sample off \(abort\)"),
    ],
)
def test_an_answer_that_a_sample_cannot_be_made_of_is_refused(changes: dict[str, Any], message: str):
    with (
        faked(lambda _: httpx.Response(200, json=response_body(**changes))) as remote,
        pytest.raises(ServerError, match=message),
    ):
        remote.rollout([[0]], SamplingParameters())


def test_fewer_samples_than_asked_for_are_refused():
    with (
        faked(lambda _: httpx.Response(200, json=response_body())) as remote,
        pytest.raises(ServerError, match="gave 1 samples of 2"),
    ):
        remote.rollout([[0]], SamplingParameters(), n=2)


@pytest.mark.parametrize(
    ("choices", "more", "message"),
    [
        ({"temperature": 0.7}, {}, "processed_logprobs"),
        ({"top_p": 0.9}, {}, "before temperature and filters"),
        ({"alternatives": 1}, {}, "alternatives must be None"),
        ({}, {"n": 0}, "n must be at least 1"),
        ({}, {"seeds": [1, 2]}, "2 numbers for 1 prompts"),
    ],
)
def test_what_no_server_can_be_asked_is_refused_before_it_is_sent(
    choices: dict[str, Any], more: dict[str, Any], message: str
):
    def answer(_: httpx.Request) -> httpx.Response:
        raise AssertionError("it was sent")

    with faked(answer) as remote, pytest.raises(ValueError, match=message):
        remote.rollout([[0]], SamplingParameters(**choices), **more)
