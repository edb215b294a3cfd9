"""One model server with a tiny model for all tests here, and the checkpoints that it serves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

from tests.model_server import RunningServer, running_model_server
from tests.tiny import tiny_model_folder
from training.contract.checkpoint import CheckpointKind
from training.contract.methods.common import LoraSettings
from training.contract.methods.policy import PreferenceSettings
from training.contract.methods.reward import RewardSettings
from training.contract.run import RunSpec
from training.rlhf.loop.run import save_checkpoint
from training.rlhf.model.backbone import SCORE, Backbone

BASE = "SmolLM2-135M-Instruct"


@dataclass(frozen=True)
class Folders:
    """The folders in which the server of these tests finds models and checkpoints."""

    models: Path
    checkpoints: Path

    @property
    def base(self) -> Path:
        """The base model's folder."""
        return self.models / BASE


def write_checkpoint(
    base: Path, folder: Path, *, kind: CheckpointKind = "policy", trained: float = 0.0, seed: int = 0
) -> None:
    """A checkpoint on `base`. trained: how large its adapter's numbers are, drawn from `seed`; 0 leaves
    the adapter as one that never trained."""
    settings = RewardSettings() if kind == "reward" else PreferenceSettings()
    spec = RunSpec(
        method=settings.method,
        base_model=str(base),
        snapshot="snapshot",
        snapshot_digest="0" * 64,
        settings=settings,
        seed=seed,
        name=folder.name,
    )
    backbone = Backbone.load(base, device="cpu", dtype=torch.float32)
    backbone.add_adapter("trained", LoraSettings(rank=4), seed=seed)
    if trained:
        generator = torch.Generator().manual_seed(seed)
        state = backbone.adapter_state("trained")
        drawn = {name: trained * torch.randn(t.shape, generator=generator) for name, t in state.items()}
        backbone.restore("trained", drawn, {})
    if kind == "reward":
        backbone.add_head("trained", SCORE, seed=seed)
    save_checkpoint(
        folder, backbone=backbone, adapter="trained", kind=kind, spec=spec, steps=1, metrics={}, dropped=[]
    )


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """A tiny base, and checkpoints "zero" (never trained), "warm", "hot" and "reward"."""
    root = tmp_path_factory.mktemp("served")
    paths = Folders(root / "models", root / "checkpoints")
    tiny_model_folder(paths.base)
    write_checkpoint(paths.base, paths.checkpoints / "zero")
    write_checkpoint(paths.base, paths.checkpoints / "warm", trained=0.3, seed=1)
    write_checkpoint(paths.base, paths.checkpoints / "hot", trained=0.3, seed=2)
    write_checkpoint(paths.base, paths.checkpoints / "reward", kind="reward", trained=0.3, seed=3)
    return paths


@pytest.fixture(scope="session")
def server(folders: Folders) -> Iterator[RunningServer]:
    """The server, ready."""
    with running_model_server(
        folders.models, folders.checkpoints, arguments=["--max-adapters", "2"]
    ) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    """The official client, which must not retry: a refusal is what some tests are about."""
    with connect(server) as client:
        yield client


def connect(server: RunningServer, *, key: str | None = None) -> openai.OpenAI:
    """A client of `server`."""
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key or server.key, max_retries=0, timeout=120)


@pytest.fixture
def ask(client: openai.OpenAI) -> Callable[..., str]:
    """`ask("zero", seed=3)` is the text that a model answers "What is the sun?" with."""

    def answer(model: str, **choices: object) -> str:
        request: dict[str, Any] = {"max_tokens": 16, "seed": 1, **choices}
        messages: list[Any] = [{"role": "user", "content": "What is the sun?"}]
        completion = client.chat.completions.create(model=model, messages=messages, **request)
        text: str = completion.choices[0].message.content
        return text

    return answer
