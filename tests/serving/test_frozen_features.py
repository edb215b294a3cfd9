"""A reward model on frozen features is served like any other: the trainer's scores, whole and by head."""

from __future__ import annotations

import httpx
import pytest
import torch

from tests.model_server import RunningServer
from tests.rlhf.runs import judgments, make_run, train
from tests.serving.conftest import Folders
from training.contract import read_manifest
from training.contract.methods import settings_from_json
from training.contract.methods.reward import RewardSettings
from training.contract.run import EXIT_FINISHED
from training.contract.snapshot import SnapshotRow
from training.rlhf.data import build_examples
from training.rlhf.methods.reward import read_rewards
from training.rlhf.model.backbone import Backbone
from training.rlhf.rewards.reward_model import LearnedReward
from training.rlhf.tokens.packing import pack


@pytest.fixture(scope="module")
def frozen(folders: Folders, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of a served checkpoint with an ensemble on frozen features."""
    folder = make_run(
        tmp_path_factory.mktemp("frozen") / "run",
        folders.base,
        judgments(),
        settings={"adapter": "none", "features": "frozen", "ensemble": 2},
    )
    assert train(folder) == EXIT_FINISHED
    (folder / "checkpoint").rename(folders.checkpoints / "frozen")
    return "frozen"


@pytest.fixture(scope="module")
def backbone(folders: Folders, frozen: str) -> Backbone:
    """The checkpoint as the trainer loads it."""
    loaded = Backbone.load(folders.base, device="cpu", dtype=torch.float32)
    loaded.load_adapter(frozen, folders.checkpoints / frozen)
    return loaded


def scored(server: RunningServer, row: SnapshotRow, *, heads: bool) -> dict[str, object]:
    """Return the server's response about a row's completions."""
    body = {
        "model": "frozen",
        "messages": [{"role": turn.role, "content": turn.content} for turn in row.messages],
        "completions": [completion.text for completion in row.completions],
        "heads": heads,
    }
    response = httpx.post(
        f"{server.url}/v1/score",
        json=body,
        headers={"Authorization": f"Bearer {server.key}"},
        timeout=60,
        trust_env=False,
    )
    assert response.status_code == 200, response.text
    result: dict[str, object] = response.json()
    return result


def test_the_server_gives_the_trainers_scores_of_every_judgment(
    server: RunningServer, backbone: Backbone, frozen: str
) -> None:
    rows = judgments()[:4]
    examples = build_examples(rows, backbone.tokenizer, max_tokens=128, context=False).train
    for row, example in zip(rows, examples, strict=True):
        expected = read_rewards(backbone, frozen, pack([example], device=torch.device("cpu"))).tolist()
        answer = scored(server, row, heads=True)
        assert answer["scores"] == pytest.approx(expected, abs=1e-5)
        members = answer["heads"]["score"]  # type: ignore[index]
        assert [sum(of_one) / 2 for of_one in members] == pytest.approx(expected, abs=1e-5)
        assert members[0][0] != members[0][1]


def test_a_policy_is_rewarded_with_the_same_scores(folders: Folders, backbone: Backbone, frozen: str) -> None:
    row = judgments()[1]
    values = read_manifest(folders.checkpoints / frozen).spec["settings"]
    settings = settings_from_json("reward", values)
    assert isinstance(settings, RewardSettings)
    reward = LearnedReward(backbone, frozen, settings)
    texts = [completion.text for completion in row.completions]

    scores = [score.value for score in reward([row.messages] * len(texts), texts, [None] * len(texts))]

    (example,) = build_examples([row], backbone.tokenizer, max_tokens=128, context=False).train
    expected = read_rewards(backbone, frozen, pack([example], device=torch.device("cpu"))).tolist()
    assert scores == pytest.approx(expected, abs=1e-5)
