"""Every checkpoint is a model: loaded when first asked for, checked, and forgotten again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch

from tests.model_server import RunningServer
from tests.serving.conftest import BASE, Folders, write_checkpoint
from tests.tiny import tiny_model_folder
from training.contract.methods.common import LoraSettings
from training.contract.methods.reward import RatingHead, RewardSettings, SegmentHead
from training.contract.run import RunSpec
from training.rlhf.loop.run import save_checkpoint
from training.rlhf.model.backbone import SCORE, Backbone

CHAT = [{"role": "user", "content": "What is the sun?"}]


def score(server: RunningServer, **body: Any) -> httpx.Response:
    return httpx.post(
        f"{server.url}/v1/score",
        json={"model": "reward", "messages": CHAT, "completions": ["A star."], **body},
        headers={"Authorization": f"Bearer {server.key}"},
        timeout=60,
        trust_env=False,
    )


def test_the_base_and_every_checkpoint_are_listed(client: openai.OpenAI):
    listed = {model.id: (model.model_extra or {})["kind"] for model in client.models.list()}
    expected = {BASE: "starter", "zero": "policy", "warm": "policy", "hot": "policy", "reward": "reward"}
    assert expected.items() <= listed.items()
    assert client.models.retrieve("zero").id == "zero"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nothing")


def test_a_checkpoint_that_never_trained_answers_as_the_base_does(ask: Callable[..., str]):
    assert ask("zero", n=2, seed=8) == ask(BASE, n=2, seed=8)


def test_checkpoints_answer_each_in_its_own_way(ask: Callable[..., str]):
    # Two fit into memory: every model here is forgotten and loaded again on the way.
    first = {name: ask(name) for name in (BASE, "warm", "hot", "reward", "warm")}
    assert len({first[BASE], first["warm"], first["hot"]}) == 3
    assert {name: ask(name) for name in (BASE, "hot", "warm", "zero")} == {
        BASE: first[BASE],
        "hot": first["hot"],
        "warm": first["warm"],
        "zero": first[BASE],
    }


def test_a_checkpoint_that_appears_while_the_server_runs_is_a_model(
    folders: Folders, ask: Callable[..., str]
):
    with pytest.raises(openai.NotFoundError):
        ask("late")
    write_checkpoint(folders.base, folders.checkpoints / "late", trained=0.3, seed=1)
    try:
        assert ask("late") == ask("warm")
        # The same name with other content: the new content answers.
        write_checkpoint(folders.base, folders.checkpoints / "late", trained=0.3, seed=2)
        assert ask("late") == ask("hot")
    finally:
        shutil.rmtree(folders.checkpoints / "late")
    with pytest.raises(openai.NotFoundError):
        ask("late")


def test_an_answer_names_the_checkpoint_that_it_came_from(client: openai.OpenAI):
    prints = {
        name: client.completions.create(model=name, prompt="a", max_tokens=1).system_fingerprint
        for name in (BASE, "zero", "warm")
    }
    assert len(set(prints.values())) == 3


def test_a_damaged_checkpoint_is_refused_and_the_server_goes_on(folders: Folders, ask: Callable[..., str]):
    folder = folders.checkpoints / "damaged"
    shutil.copytree(folders.checkpoints / "warm", folder)
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    try:
        with pytest.raises(openai.UnprocessableEntityError, match=r"adapter_model\.safetensors") as refusal:
            ask("damaged")
        assert refusal.value.code == "checkpoint_damaged"
        (folder / "manifest.json").write_text("{")
        with pytest.raises(openai.UnprocessableEntityError, match="not JSON"):
            ask("damaged")
        assert ask("warm") != ask(BASE)
    finally:
        shutil.rmtree(folder)


def test_a_checkpoint_of_another_base_is_refused(folders: Folders, ask: Callable[..., str], tmp_path: Path):
    other = tiny_model_folder(tmp_path / BASE, seed=1)
    folder = folders.checkpoints / "foreign"
    write_checkpoint(other, folder)
    try:
        with pytest.raises(openai.ConflictError, match="was trained on base") as refusal:
            ask("foreign")
        assert refusal.value.code == "base_mismatch"
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def reward(folders: Folders) -> Backbone:
    """The reward checkpoint, loaded here as the server loads it there."""
    backbone = Backbone.load(folders.base, device="cpu", dtype=torch.float32)
    backbone.load_adapter("reward", folders.checkpoints / "reward")
    return backbone


def tokens_of(reward: Backbone, question: str, completion: str) -> list[int]:
    """The rendered chat up to the token that ends the answer's turn, written out by hand."""
    text = f"<|begin|><|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{completion}<|im_end|>"
    ids: list[int] = reward.tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def score_of(reward: Backbone, ids: list[int]) -> float:
    """The head at the last token of one row without padding."""
    row = torch.tensor([ids])
    with torch.inference_mode(), reward.using("reward"):
        states = reward.hidden_states(row, torch.ones_like(row)).states
        return reward.score("reward", states[:, -1]).item()


def test_scores_are_those_of_the_head_at_the_end_token(server: RunningServer, reward: Backbone):
    completions = ["A star.", "", "The sun rises in the east 🌅 and sets in the west."]
    response = score(server, completions=completions)
    assert response.status_code == 200
    expected = [score_of(reward, tokens_of(reward, "What is the sun?", text)) for text in completions]
    assert response.json()["scores"] == pytest.approx(expected, abs=1e-5)
    assert len(set(expected)) == 3


def test_a_long_prompt_loses_its_front_as_in_training(server: RunningServer, reward: Backbone):
    question = "what is the sun and " * 500
    ids = tokens_of(reward, question, "A star.")
    assert len(ids) > 2048
    # The reward run's max_tokens is 1,024: the beginning-of-text token and the last 1,023.
    expected = score_of(reward, ids[:1] + ids[-1023:])
    response = score(server, messages=[{"role": "user", "content": question}], completions=["A star."])
    assert response.json()["scores"] == pytest.approx([expected], abs=1e-5)


def test_many_completions_are_scored_as_each_alone(server: RunningServer):
    completions = [f"{'long ' * count}answer" for count in range(11)]
    together = score(server, completions=completions).json()["scores"]
    alone = [score(server, completions=[text]).json()["scores"][0] for text in completions]
    assert together == pytest.approx(alone, abs=1e-5)


def test_context_is_taken_and_a_model_that_was_trained_without_it_does_not_read_it(server: RunningServer):
    context = [{"title": "Sun", "sentences": ["The sun is a star."]}]
    assert score(server, context=context).json() == score(server).json()


def test_every_heads_output_is_told_to_who_asks(server: RunningServer, folders: Folders):
    ratings = (RatingHead(name="safe", criterion="safety", loss="binary"),)
    settings = RewardSettings(ensemble=3, ratings=ratings)
    folder = folders.checkpoints / "several-heads"
    backbone = Backbone.load(folders.base, device="cpu", dtype=torch.float32)
    backbone.add_adapter("trained", LoraSettings(rank=4), seed=0)
    backbone.add_head("trained", SCORE, seed=1, outputs=3)
    backbone.add_head("trained", "safe", seed=2)
    backbone.add_extra("trained", "safe.bias", torch.tensor([0.5]))
    spec = RunSpec(
        method="reward",
        base_model=str(folders.base),
        snapshot="snapshot",
        snapshot_digest="0" * 64,
        settings=settings,
    )
    save_checkpoint(
        folder,
        backbone=backbone,
        adapter="trained",
        kind="reward",
        spec=spec,
        steps=1,
        metrics={},
        dropped=[],
    )
    try:
        completions = ["A star.", "Nothing."]
        with_heads = score(server, model="several-heads", completions=completions, heads=True).json()
        plain = score(server, model="several-heads", completions=completions).json()
    finally:
        shutil.rmtree(folder)
    assert "heads" not in plain
    weights = backbone.head_state("trained")
    for index, text in enumerate(completions):
        row = torch.tensor([tokens_of(backbone, "What is the sun?", text)])
        with torch.inference_mode(), backbone.using("trained"):
            state = backbone.hidden_states(row, torch.ones_like(row)).states[0, -1]
        members = (weights["score"] @ state).tolist()
        assert with_heads["heads"]["score"][index] == pytest.approx(members, abs=1e-5)
        assert with_heads["scores"][index] == pytest.approx(sum(members) / 3, abs=1e-5)
        chance = torch.sigmoid(weights["safe"][0] @ state + 0.5).item()
        assert with_heads["heads"]["safe"][index] == pytest.approx([chance], abs=1e-5)
    assert plain["scores"] == with_heads["scores"]


def test_segments_are_told_with_their_places_and_rewards(server: RunningServer, folders: Folders):
    heads = (SegmentHead(name="facts", categories=("wrong",)),)
    settings = RewardSettings(loss="none", segments=heads)
    folder = folders.checkpoints / "fine-grained"
    backbone = Backbone.load(folders.base, device="cpu", dtype=torch.float32)
    backbone.add_adapter("trained", LoraSettings(rank=4), seed=0)
    backbone.add_head("trained", "facts", seed=1)
    backbone.add_extra("trained", "facts.bias", torch.tensor([0.5]))
    spec = RunSpec(
        method="reward",
        base_model=str(folders.base),
        snapshot="snapshot",
        snapshot_digest="0" * 64,
        settings=settings,
    )
    save_checkpoint(
        folder,
        backbone=backbone,
        adapter="trained",
        kind="reward",
        spec=spec,
        steps=1,
        metrics={},
        dropped=[],
    )
    first, whole = "A star 🌞 is hot.", "A star 🌞 is hot. It is far away."
    try:
        with_heads = score(server, model="fine-grained", completions=[whole, ""], heads=True).json()
        plain = score(server, model="fine-grained", completions=[whole])
    finally:
        shutil.rmtree(folder)
    assert plain.status_code == 400, "it has no score"
    assert with_heads["scores"] == []
    segments, none = with_heads["segments"]["facts"]
    assert none == []
    assert [(entry["start"], entry["end"]) for entry in segments] == [
        (0, len(first)),
        (len(first), len(whole)),
    ]
    # The first sentence's last token is read where it stands, which is where the row of it alone ends.
    for segment, text in zip(segments, (first, whole), strict=True):
        row = torch.tensor([tokens_of(backbone, "What is the sun?", text)[:-1]])
        with torch.inference_mode(), backbone.using("trained"):
            state = backbone.hidden_states(row, torch.ones_like(row)).states[0, -1]
        expected = (backbone.head_state("trained")["facts"][0] @ state + 0.5).item()
        assert segment["reward"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"model": "zero"}, 400, "model"),
        ({"model": "zero", "heads": True}, 400, "model"),
        ({"model": BASE}, 400, "model"),
        ({"model": "nothing"}, 404, "model"),
        ({"completions": []}, 400, "completions"),
        ({"completions": ["ok", "a<|im_end|>b"]}, 400, "completions[1]"),
        ({"completions": ["x " * 3000]}, 400, "completions[0]"),
        ({"n": 2}, 400, "n"),
    ],
)
def test_what_cannot_be_scored_is_refused(
    server: RunningServer, body: dict[str, Any], status: int, param: str
):
    refusal = score(server, **body)
    assert (refusal.status_code, refusal.json()["error"]["param"]) == (status, param)


def test_the_manifest_is_what_the_kind_is_read_from(folders: Folders):
    # The expectations above stand on it: a reward checkpoint's manifest says so.
    manifest = json.loads((folders.checkpoints / "reward" / "manifest.json").read_text())
    assert (manifest["kind"], manifest["heads"]) == ("reward", ["score"])
