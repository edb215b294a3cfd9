"""Runs whose answers a server draws: our own model server, and a vLLM as its documentation describes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file

from tests.model_server import RunningServer, running_model_server
from tests.rlhf.loop.test_interruptions import same_run
from tests.rlhf.model.whole_models import whole_model
from tests.rlhf.policy_gradient.sampled_runs import GRPO, make_sampled_run
from tests.rlhf.runs import StopAfter, files_of, status_of, train
from tests.tiny import tiny_model_folder
from training.contract import ContractError, read_metrics
from training.contract.methods import settings_from_json
from training.contract.methods.common import LoraSettings
from training.contract.methods.policy import RolloutServerSettings
from training.contract.run import (
    EXIT_FAILED,
    EXIT_FINISHED,
    EXIT_STOPPED,
    RunSpec,
    read_samples,
    read_spec,
)
from training.model_server import ServerError
from training.rlhf.model.backbone import Backbone
from training.rlhf.policy_gradient import rollout_servers
from training.rlhf.policy_gradient.rollout_servers import BatchRequest, ServedPolicy
from training.rlhf.rollout.samples import Sample
from training.rlhf.sampling import SamplingParameters

BASE = "SmolLM2-135M-Instruct"
RONDO = {"kind": "rondo"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tiny_model_folder(folder / BASE)
    return folder


@pytest.fixture(scope="module")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, Path]]:
    checkpoints = tmp_path_factory.mktemp("checkpoints")
    with running_model_server(models, checkpoints) as running:
        yield running, checkpoints


@pytest.fixture
def served_folder(server: tuple[RunningServer, Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment names our server; the folder of its checkpoints."""
    running, checkpoints = server
    monkeypatch.setenv("RONDO_ROLLOUT_URL", running.url)
    monkeypatch.setenv("RONDO_ROLLOUT_KEY", running.key)
    monkeypatch.setenv("RONDO_ROLLOUT_FOLDER", str(checkpoints))
    return checkpoints


def make_served_run(folder: Path, base: Path, server: dict[str, Any] | None, **settings: Any) -> Path:
    return make_sampled_run(
        folder,
        base,
        GRPO,
        settings={"rollout": {"samples": 4, "max_tokens": 12, "server": server}, **settings},
    )


def texts_of(run: Path) -> list[str]:
    return [sample.text for step in range(1, 7) for sample in read_samples(run, step)]


def test_a_run_whose_answers_our_server_draws_learns_the_same(
    models: Path, tmp_path: Path, served_folder: Path
):
    here = make_served_run(tmp_path / "here", models / BASE, None)
    there = make_served_run(tmp_path / "there", models / BASE, RONDO)
    assert train(here) == EXIT_FINISHED
    assert train(there) == EXIT_FINISHED
    assert texts_of(there) == texts_of(here)
    lines = read_metrics(there)
    # The policy moves far in a step at this learning rate: a server that had an older one would differ.
    assert max(line["sampler_gap"] for line in lines) < 1e-4
    assert lines[-1]["kl"] > 0.01
    weights = [load_file(run / "checkpoint" / "adapter_model.safetensors") for run in (here, there)]
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, atol=1e-5, rtol=1e-4)
    # Nothing stays behind with the server.
    assert list(served_folder.iterdir()) == []


def test_answers_of_a_policy_that_is_behind_are_weighed(models: Path, tmp_path: Path, served_folder: Path):
    run = make_served_run(tmp_path / "run", models / BASE, {**RONDO, "every": 2}, update={"truncate": 2.0})
    assert train(run) == EXIT_FINISHED
    lines = read_metrics(run)
    gaps = [line["sampler_gap"] for line in lines]
    assert max(gaps[0::2]) < 1e-4
    assert min(gaps[1::2]) > 1e-3
    assert all(line["importance_weight"] == pytest.approx(1, abs=1e-4) for line in lines[0::2])


@pytest.mark.slow
def test_all_weights_of_a_policy_go_to_our_server_too(models: Path, tmp_path: Path, served_folder: Path):
    run = make_sampled_run(
        tmp_path / "run",
        models / BASE,
        GRPO,
        settings={"adapter": "none", "rollout": {"samples": 4, "max_tokens": 12, "server": RONDO}},
        optimiser={"max_steps": 2, "learning_rate": 1e-3},
    )
    assert train(run) == EXIT_FINISHED
    assert max(line["sampler_gap"] for line in read_metrics(run)) < 1e-4
    assert list(served_folder.iterdir()) == []


def test_a_server_that_dies_ends_the_run_in_words_and_it_goes_on_later(
    models: Path,
    tmp_path: Path,
    served_folder: Path,
    server: tuple[RunningServer, Path],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(rollout_servers, "_PAUSE", 0.0)
    run = make_served_run(tmp_path / "run", models / BASE, RONDO)
    assert train(run, StopAfter(run, 2)) == EXIT_STOPPED
    # Nothing listens on a port that is reserved.
    monkeypatch.setenv("RONDO_ROLLOUT_URL", "http://127.0.0.1:1")
    assert train(run) == EXIT_FAILED
    message = status_of(run).message
    assert "the model server at http://127.0.0.1:1 does not answer (ConnectError)" in message
    assert "start again: training goes on from the last save" in message
    assert list(served_folder.iterdir()) == []
    monkeypatch.setenv("RONDO_ROLLOUT_URL", server[0].url)
    assert train(run) == EXIT_FINISHED
    whole = same_run(run, tmp_path / "whole")
    assert train(whole) == EXIT_FINISHED
    assert files_of(run / "checkpoint") == files_of(whole / "checkpoint")


def test_neither_key_nor_address_is_written_down(
    models: Path, tmp_path: Path, served_folder: Path, server: tuple[RunningServer, Path]
):
    run = make_sampled_run(
        tmp_path / "run",
        models / BASE,
        GRPO,
        settings={"rollout": {"samples": 4, "max_tokens": 12, "server": RONDO}},
        optimiser={"max_steps": 1},
    )
    assert train(run) == EXIT_FINISHED
    for name, content in files_of(run).items():
        assert server[0].key.encode() not in content, name
        assert server[0].url.encode() not in content, name


@pytest.mark.parametrize("lacking", ["RONDO_ROLLOUT_URL", "RONDO_ROLLOUT_FOLDER"])
def test_a_run_that_is_not_told_where_its_server_is_says_so(
    models: Path, tmp_path: Path, served_folder: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
):
    monkeypatch.delenv(lacking)
    run = make_served_run(tmp_path / "run", models / BASE, RONDO)
    assert train(run) == EXIT_FAILED
    assert f"{lacking} is not set in the trainer's environment" in status_of(run).message


# ── vLLM ──────────────────────────────────────────────────────────────────────────────


class Vllm:
    """A fake vLLM that loads adapters at run time as documented; every answer is one token."""

    def __init__(self, *, may_load: bool = True) -> None:
        self.may_load = may_load
        self.held: dict[str, dict[str, torch.Tensor]] = {}
        self.calls: list[str] = []
        self.asked: list[dict[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.calls.append(request.url.path.removeprefix("/v1/"))
        if request.url.path == "/v1/load_lora_adapter":
            return self._load(body)
        if request.url.path == "/v1/unload_lora_adapter":
            if self.held.pop(body["lora_name"], None) is None:
                return httpx.Response(404, json={"error": {"message": "The lora adapter cannot be found."}})
            return httpx.Response(200, text="Success")
        self.asked.append(body)
        if body["model"] not in self.held:
            return httpx.Response(
                404, json={"error": {"message": f"The model {body['model']} does not exist."}}
            )
        choice = {"token_ids": [70], "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "length"}
        return httpx.Response(200, json={"choices": [{"index": 0, **choice}]})

    def _load(self, body: dict[str, str]) -> httpx.Response:
        if not self.may_load:
            return httpx.Response(404, json={"detail": "Not Found"})
        assert body["lora_name"] not in self.held
        folder = Path(body["lora_path"])
        assert json.loads((folder / "adapter_config.json").read_text())["peft_type"] == "LORA"
        self.held[body["lora_name"]] = load_file(folder / "adapter_model.safetensors")
        return httpx.Response(200, text="Success")


def served_by(
    vllm: Callable[[httpx.Request], httpx.Response],
    backbone: Backbone,
    spec: RunSpec,
    run: Path,
    folder: Path,
    urls: str = "http://vllm.example",
) -> ServedPolicy:
    backbone.add_adapter("policy", LoraSettings(rank=4), seed=0)
    return ServedPolicy(
        backbone,
        "policy",
        spec,
        RolloutServerSettings(kind="vllm"),
        run=run,
        environment={"RONDO_ROLLOUT_URL": urls, "RONDO_ROLLOUT_FOLDER": str(folder)},
        transport=httpx.MockTransport(vllm),
    )


def draw(
    policy: ServedPolicy,
    step: int,
    prompts: Sequence[Sequence[int]] = ((0, 65),),
    seeds: Sequence[int] = (5,),
) -> list[list[Sample]]:
    """One sample of each prompt, one token long."""
    request = BatchRequest(prompts, SamplingParameters(max_tokens=1), 1, seeds)
    drawn = policy.drawn(step, lambda _: request, last=step + 1, stopped=lambda: False)
    assert drawn is not None
    return drawn.samples


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "adapters"
    made.mkdir()
    return made


def test_vllm_is_refused_for_a_base_that_also_reads_images(
    base: Path, backbone: Backbone, tmp_path: Path, folder: Path
):
    run = make_served_run(tmp_path / "run", base, {"kind": "vllm"})
    whole_model(tmp_path / "whole", "smolvlm")
    whole = Backbone.load(tmp_path / "whole", device="cpu", dtype=torch.float32)
    with pytest.raises(ContractError, match=r"save its text part by .*text_part"):
        served_by(Vllm(), whole, read_spec(run), run, folder)


def test_vllm_holds_the_adapter_of_each_step_and_only_that(
    base: Path, backbone: Backbone, tmp_path: Path, folder: Path
):
    run = make_served_run(tmp_path / "run", base, {"kind": "vllm"})
    vllm = Vllm()
    policy = served_by(vllm, backbone, read_spec(run), run, folder)
    parameter = next(iter(backbone.parameters("policy").values()))
    for step in range(3):
        with torch.no_grad():
            parameter.fill_(float(step))
        draw(policy, step)
        [(name, weights)] = vllm.held.items()
        assert name.endswith(f"-{step}")
        assert vllm.asked[-1]["model"] == name
        # Some weight of the adapter is the one that was just set.
        assert any(bool((weight == float(step)).all()) for weight in weights.values())
        assert [place.name for place in folder.iterdir()] == [name]
    # What the model's generation configuration would say is said here.
    assert {field: vllm.asked[0][field] for field in ("top_k", "min_p", "repetition_penalty")} == {
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }
    policy.close()
    assert vllm.held == {}
    assert list(folder.iterdir()) == []
    handed = ["load_lora_adapter", "completions"]
    later = ["load_lora_adapter", "unload_lora_adapter", "completions"]
    assert vllm.calls == [*handed, *later, *later, "unload_lora_adapter"]


def test_what_a_killed_trainer_left_is_removed_and_does_not_clash(
    base: Path, backbone: Backbone, tmp_path: Path, folder: Path
):
    run = make_served_run(tmp_path / "run", base, {"kind": "vllm"})
    other = folder / "rollout-0123456789-aaaaaaaa-0"
    other.mkdir()
    vllm = Vllm()
    killed = served_by(vllm, backbone, read_spec(run), run, folder)
    draw(killed, 0)
    [left] = vllm.held
    backbone.drop_adapter("policy")
    anew = served_by(vllm, backbone, read_spec(run), run, folder)
    assert list(folder.iterdir()) == [other]
    draw(anew, 0)
    assert vllm.asked[-1]["model"] != left


def test_a_vllm_that_loads_no_adapters_is_told_how_to(
    base: Path, backbone: Backbone, tmp_path: Path, folder: Path
):
    run = make_served_run(tmp_path / "run", base, {"kind": "vllm"})
    policy = served_by(Vllm(may_load=False), backbone, read_spec(run), run, folder)
    with pytest.raises(
        ServerError, match=r"status 404: the adapter .* VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
    ):
        draw(policy, 0)


def test_a_server_of_another_base_is_warned_of_once(
    base: Path, backbone: Backbone, tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
):
    run = make_served_run(tmp_path / "run", base, {"kind": "vllm"})
    policy = served_by(Vllm(), backbone, read_spec(run), run, folder)
    with caplog.at_level("WARNING"):
        policy.check(0.02)
        policy.check(3.0)
        policy.check(3.0)
    assert [record.getMessage()[:60] for record in caplog.records] == [
        "The server's log-probabilities are 3.00 nats per token from "
    ]


class Cluster:
    """Several of them by host. A host that is down refuses connections."""

    def __init__(self, *hosts: str) -> None:
        self.hosts = {host: Vllm() for host in hosts}
        self.down: set[str] = set()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        host = request.url.host
        if host in self.down:
            raise httpx.ConnectError("refused", request=request)
        answer = self.hosts[host](request)
        body = json.loads(request.content)
        if request.url.path == "/v1/completions" and answer.is_success:
            # A token that tells the prompt and the seed, whichever host draws it.
            choice = answer.json()["choices"][0] | {"token_ids": [body["prompt"][-1] + body["seed"]]}
            return httpx.Response(200, json={"choices": [choice]})
        return answer


def test_several_servers_share_the_prompts_and_one_that_dies_comes_back(
    base: Path,
    backbone: Backbone,
    tmp_path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    monkeypatch.setattr(rollout_servers, "_PAUSE", 0.0)
    run = make_served_run(tmp_path / "run", base, {"kind": "vllm"})
    cluster = Cluster("one.example", "two.example")
    urls = "http://one.example, http://two.example"
    policy = served_by(cluster, backbone, read_spec(run), run, folder, urls)
    first, two = cluster.hosts.values()

    def answers(step: int) -> list[int]:
        prompts = [[0, 65], [0, 66], [0, 67], [0, 68], [0, 69]]
        drawn = draw(policy, step, prompts, seeds=[1, 2, 3, 4, 5])
        return [sample.tokens[0].id for [sample] in drawn]

    expected = [66, 68, 70, 72, 74]
    assert answers(0) == expected
    assert (len(first.asked), len(two.asked)) == (3, 2)
    # One dies between loading and drawing: the other answers all prompts, and the run goes on.
    cluster.down = {"two.example"}
    with caplog.at_level("WARNING"):
        assert answers(1) == expected
    assert "http://two.example is left out until the next adapter" in caplog.text
    assert len(first.asked) == 3 + 5
    # It is back, with the next adapter.
    cluster.down = set()
    two.held.clear()
    assert answers(2) == expected
    assert (len(first.asked), len(two.asked)) == (8 + 3, 2 + 2)
    assert list(two.held) == list(first.held)
    cluster.down = {"one.example", "two.example"}
    with pytest.raises(ServerError, match="does not answer"):
        answers(3)


# ── What is refused ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("rollout", "message"),
    [
        ({"server": {"kind": "rondo", "tells": "sampler"}}, "tells: Rondo's model server tells the model's"),
        ({"server": {"every": 0}}, "every: must be at least 1"),
        ({"server": {"seconds": 0.0}}, "seconds: must be positive"),
        ({"server": {}, "temperature": 0.7}, "server, tells: log-probabilities of the model are those"),
        ({"server": {}, "top_p": 0.9}, "server, tells"),
        ({"server": {"url": "http://anyone.example"}}, "unknown field 'url'"),
        ({"server": {"every": 2}}, "update, truncate: the answers are of a policy up to 1 steps behind"),
        ({"server": {"max_staleness": 3}}, "update, truncate: the answers are of a policy up to 3 steps"),
        ({"server": {"max_staleness": 1, "every": 2}}, "every: servers that sample ahead get every adapter"),
        ({"server": {"max_staleness": -1}}, "max_staleness: must not be negative"),
    ],
)
def test_a_server_that_would_give_wrong_samples_is_refused(rollout: dict[str, Any], message: str):
    with pytest.raises(ContractError, match=message):
        settings_from_json(
            "policy_gradient", {"rewards": [{"name": "short", "kind": "length"}], "rollout": rollout}
        )


def test_all_weights_cannot_be_loaded_into_vllm():
    with pytest.raises(ContractError, match="adapter: vLLM can load an adapter, not all weights"):
        settings_from_json(
            "policy_gradient",
            {
                "adapter": "none",
                "rewards": [{"name": "short", "kind": "length"}],
                "rollout": {"server": {"kind": "vllm"}},
            },
        )


def test_the_samplers_own_log_probabilities_serve_at_any_temperature():
    built = settings_from_json(
        "policy_gradient",
        {
            "rewards": [{"name": "short", "kind": "length"}],
            "rollout": {"temperature": 0.7, "server": {"tells": "sampler"}},
        },
    )
    assert built.rollout.server == RolloutServerSettings(tells="sampler")
