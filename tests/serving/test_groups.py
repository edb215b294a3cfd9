"""Group options of /v1/score, through the server and through the file for other libraries."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch

from tests.model_server import RunningServer
from tests.rlhf.methods.test_group_heads import LONG, SHORT, opposed
from tests.rlhf.runs import make_run, train
from tests.serving.conftest import Folders
from tests.serving.test_checkpoints import score
from training.contract.run import EXIT_FINISHED
from training.rlhf.data import build_examples
from training.rlhf.methods.people import group_scores
from training.rlhf.methods.reward import encode
from training.rlhf.model.backbone import Backbone
from training.rlhf.tokens.packing import pack
from training.serving import rondo_reward
from training.serving.rondo_reward import Reward, RewardError

ROW = opposed(2)[1]
CHAT = [{"role": turn.role, "content": turn.content} for turn in ROW.messages]
TEXTS = [completion.text for completion in ROW.completions]


@pytest.fixture(scope="module")
def grouped(folders: Folders, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of a served reward model with heads of groups A, which likes long texts, and B, short ones."""
    settings = {"adapter": "none", "features": "frozen", "group_heads": True}
    folder = make_run(tmp_path_factory.mktemp("groups") / "run", folders.base, opposed(), settings=settings)
    assert train(folder) == EXIT_FINISHED
    (folder / "checkpoint").rename(folders.checkpoints / "grouped")
    return "grouped"


@pytest.fixture(scope="module")
def by_group(folders: Folders, grouped: str) -> dict[str, list[float]]:
    """Each group's reward of both texts, as the trainer computes it."""
    backbone = Backbone.load(folders.base, device="cpu", dtype=torch.float32)
    backbone.load_adapter("it", folders.checkpoints / grouped)
    (example,) = build_examples([ROW], backbone.tokenizer, max_tokens=128, context=False).train
    batch = pack([example], device=torch.device("cpu"))
    with torch.no_grad():
        states = encode(backbone, "it", batch)[batch.last]
        return {name: values.tolist() for name, values in group_scores(backbone, "it", states).items()}


def expected(by_group: dict[str, list[float]], a: float, b: float) -> list[float]:
    """The weighted mean of both groups' rewards."""
    return [
        (a * of_a + b * other) / (a + b) for of_a, other in zip(by_group["A"], by_group["B"], strict=True)
    ]


def test_the_server_scores_for_the_groups_that_are_named(
    server: RunningServer, grouped: str, by_group: dict[str, list[float]]
) -> None:
    def scores(**options: object) -> list[float]:
        answered = score(server, model=grouped, messages=CHAT, completions=TEXTS, **options)
        assert answered.status_code == 200, answered.text
        values: list[float] = answered.json()["scores"]
        return values

    assert scores(reward="groups", groups={"A": 1}) == pytest.approx(by_group["A"], abs=1e-5)
    assert scores(reward="groups", groups={"A": 3, "B": 1}) == pytest.approx(
        expected(by_group, 3, 1), abs=1e-5
    )
    worst = [min(both) for both in zip(by_group["A"], by_group["B"], strict=True)]
    assert scores(reward="worst_group") == pytest.approx(worst, abs=1e-5)
    # The long text is the first: A prefers it, B the other.
    assert (by_group["A"][0] > by_group["A"][1], by_group["B"][0] > by_group["B"][1]) == (True, False)
    groups = score(server, model=grouped, messages=CHAT, completions=TEXTS, heads=True).json()["groups"]
    assert {name: pytest.approx(values, abs=1e-5) for name, values in groups.items()} == by_group


@pytest.mark.parametrize(
    ("model", "options", "code"),
    [
        ("grouped", {"reward": "groups", "groups": {"nobody": 1}}, "no_such_group"),
        ("reward", {"reward": "worst_group"}, "no_such_group"),
    ],
)
def test_a_group_that_the_model_does_not_know_is_refused(
    server: RunningServer, grouped: str, model: str, options: dict[str, object], code: str
) -> None:
    refused = score(server, model=model, **options)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, code)


@pytest.fixture
def for_groups(server: RunningServer, grouped: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment names the model and the groups that count."""
    monkeypatch.setenv("RONDO_REWARD_URL", server.url)
    monkeypatch.setenv("RONDO_REWARD_MODEL", grouped)
    monkeypatch.setenv("RONDO_REWARD_KEY", server.key)
    monkeypatch.setenv("RONDO_REWARD_GROUPS", json.dumps({"A": 1, "B": 3}))
    rondo_reward.reward_from_environment.cache_clear()
    yield
    rondo_reward.reward_from_environment().close()
    rondo_reward.reward_from_environment.cache_clear()


def test_other_libraries_are_rewarded_for_the_groups_that_the_environment_names(
    for_groups: None, by_group: dict[str, list[float]]
) -> None:
    rewards = rondo_reward.trl_reward(prompts=[CHAT] * 2, completions=TEXTS)
    assert rewards == pytest.approx(expected(by_group, 1, 3), abs=1e-5)


def test_a_client_may_train_for_the_worst_off_group(
    server: RunningServer, grouped: str, by_group: dict[str, list[float]]
) -> None:
    with Reward(server.url, grouped, server.key, population="worst_group") as reward:
        worst = [min(both) for both in zip(by_group["A"], by_group["B"], strict=True)]
        assert reward.score(CHAT, TEXTS) == pytest.approx(worst, abs=1e-5)
    with (
        Reward(server.url, grouped, server.key, population="groups", groups={"C": 1}) as reward,
        pytest.raises(RewardError, match="C"),
    ):
        reward.score(CHAT, [LONG, SHORT])
