"""A reward model on a model server: the scores of the adapter, by text; refusals; waits that end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.model_server import RunningServer, running_model_server
from tests.rlhf.methods.test_methods import spec_of
from tests.rlhf.model.test_backbone import disturb
from tests.rlhf.policy_gradient.sampled_runs import GRPO, make_sampled_run
from tests.rlhf.runs import StopAfter, status_of, train
from tests.tiny import tiny_model_folder, tiny_tokenizer
from training.contract import ContractError
from training.contract.checkpoint import manifest_digest
from training.contract.methods.policy import RewardPart
from training.contract.methods.reward import RewardSettings, SegmentHead
from training.contract.run import EXIT_FAILED, EXIT_FINISHED, EXIT_STOPPED, read_samples
from training.contract.snapshot import Message
from training.rlhf.loop.run import save_checkpoint
from training.rlhf.methods.reward import RewardModelling
from training.rlhf.model.backbone import Backbone
from training.rlhf.policy_gradient.sampling import token_places, token_rewards
from training.rlhf.rewards.combination import build_rewards
from training.rlhf.rewards.protocol import Guarded, Score, ScoredSegment
from training.rlhf.rewards.reward_model import (
    LearnedReward,
    RewardServerError,
    ServedReward,
    WrongRewardModelError,
)
from training.rlhf.rollout.samples import Sample, TokenLogProb

BASE = "SmolLM2-135M-Instruct"
SETTINGS = RewardSettings(
    segments=(
        SegmentHead(name="parts", categories=("a",), granularity="sub-sentence"),
        SegmentHead(name="sentences", categories=("b",)),
        SegmentHead(name="all", categories=("c",), granularity="whole"),
    ),
    max_tokens=128,
)
ASK = [Message(role="user", content="Why?")]
OTHER = [Message(role="user", content="How long does it take?")]
TEXT = "The sun 🌞 rises in the east, and sets in the west. A policy gives an answer."
DIGEST = "d" * 64


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders of the models, one tiny base, and of the checkpoints, one reward model with all heads."""
    root = tmp_path_factory.mktemp("served")
    base = tiny_model_folder(root / "models" / BASE)
    backbone = Backbone.load(base, device="cpu", dtype=torch.float32)
    spec = spec_of(backbone, SETTINGS)
    RewardModelling(backbone, spec, SETTINGS)
    for head in SETTINGS.segments:
        backbone.add_extra("reward", f"{head.name}.bias", torch.zeros(1))
    disturb(backbone, "reward", scale=0.1)
    save_checkpoint(
        root / "checkpoints" / "dense",
        backbone=backbone,
        adapter="reward",
        kind="reward",
        spec=spec,
        steps=1,
        metrics={},
        dropped=[],
    )
    return root / "models", root / "checkpoints"


@pytest.fixture(scope="module")
def server(folders: tuple[Path, Path]) -> Iterator[RunningServer]:
    with running_model_server(*folders) as running:
        yield running


def served(server: RunningServer, **more: Any) -> ServedReward:
    return ServedReward("dense", url=server.url, key=server.key, **more)


# ── The scores ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("weights", [None, {"score": 2.0, "parts": 0.5, "sentences": -1.0, "all": 0.25}])
def test_scores_and_segments_are_those_of_the_adapter_in_the_trainer(
    server: RunningServer, folders: tuple[Path, Path], weights: dict[str, float] | None
) -> None:
    models, checkpoints = folders
    backbone = Backbone.load(models / BASE, device="cpu", dtype=torch.float32)
    backbone.load_adapter("reward", checkpoints / "dense")
    prompts = [ASK, ASK, OTHER, ASK, ASK]
    texts = [TEXT, "No.", "Two minutes, or a little more.", TEXT, " \n"]
    expected = LearnedReward(backbone, "reward", SETTINGS, weights=weights)(prompts, texts, [None] * 5)
    reward = served(server, digest=manifest_digest(checkpoints / "dense"), weights=weights, context=False)
    scores = reward(prompts, texts, [None] * 5)
    reward.close()
    assert [score.scored for score in scores] == [True] * 4 + [False]
    assert scores[4].reason == expected[4].reason == "the completion is empty"
    for here, there in zip(expected[:4], scores[:4], strict=True):
        assert there.value == pytest.approx(here.value, abs=1e-4)
        assert [segment.end for segment in there.segments] == [segment.end for segment in here.segments]
        assert [segment.value for segment in there.segments] == pytest.approx(
            [segment.value for segment in here.segments], abs=1e-4
        )
    assert scores[0].segments


def test_a_completion_that_the_server_refuses_costs_no_other_its_score(server: RunningServer) -> None:
    reward = served(server)
    scores = reward([ASK] * 3, ["Yes.", "ends <|im_end|> early", "No."], [None] * 3)
    assert [score.scored for score in scores] == [True, False, True]
    assert "control token" in scores[1].reason


@given(data=st.data())
def test_rewards_of_segments_land_on_the_policys_tokens_by_their_characters(data: st.DataObject) -> None:
    """The policy's tokenizer is not the reward model's: places are characters, whatever the tokens are."""
    text = data.draw(st.text(st.sampled_from("the sun 🌞é\n.日"), min_size=1, max_size=24))
    ends = sorted(data.draw(st.sets(st.integers(1, len(text)), min_size=1, max_size=4)))
    values = [2.0**place for place in range(len(ends))]
    ids = _POLICY(text)["input_ids"]
    tokens = tuple(TokenLogProb(id=id, log_prob=0.0) for id in ids)
    sample = Sample(tokens=tokens, text=text, visible_tokens=len(ids), finish_reason="length", seed=0)
    score = Score(0.0, tuple(ScoredSegment(*pair) for pair in zip(ends, values, strict=True)))
    paid = token_rewards(sample, score, _POLICY)
    expected = torch.zeros(len(ids))
    places = token_places(sample, _POLICY)
    for end, value in zip(ends, values, strict=True):
        # The last token with text that begins before the segment's end, found by looking at all of them.
        expected[max(n for n, (start, stop) in enumerate(places) if stop > start and start < end)] += value
    assert paid.tolist() == expected.tolist()
    assert paid.sum() == sum(values)


_POLICY = tiny_tokenizer(corpus=("pack my box with five dozen liquor jugs", "how vexingly quick"))


# ── What goes wrong ───────────────────────────────────────────────────────────────────


def answer(count: int, *, digest: str = DIGEST, value: float = 1.0, context: bool = False) -> httpx.Response:
    body = {
        "digest": digest,
        "scores": [value] * count,
        "heads": {"score": [[value]] * count},
        "segments": {},
        "granularity": {},
        "context": context,
    }
    return httpx.Response(200, json=body)


def mocked(handle: Callable[[httpx.Request], httpx.Response], **more: Any) -> ServedReward:
    transport = httpx.MockTransport(handle)
    settings = {"url": "http://there/v1/", "key": "k", "digest": DIGEST, "pause": 0.0, **more}
    return ServedReward("dense", transport=transport, **settings)


def counted(request: httpx.Request) -> int:
    assert (str(request.url), request.headers["Authorization"]) == ("http://there/v1/score", "Bearer k")
    return len(json.loads(request.content)["completions"])


def test_another_checkpoint_under_the_name_is_refused_at_the_start_and_on_the_way() -> None:
    with pytest.raises(
        WrongRewardModelError, match="dense is another checkpoint: its digest is eeeeeeeeeeee"
    ):
        mocked(lambda request: answer(counted(request), digest="e" * 64))
    digests = iter([DIGEST, DIGEST, "e" * 64])
    reward = Guarded(mocked(lambda request: answer(counted(request), digest=next(digests))))
    assert reward([ASK], ["Yes."], [None])[0].value == 1.0
    # A run does not go on with "cannot score" here: every score to come is another model's.
    with pytest.raises(WrongRewardModelError):
        reward([ASK], ["Yes."], [None])


def test_heads_and_context_that_the_model_does_not_have_are_refused() -> None:
    with pytest.raises(ContractError, match="has no head truth; it has score"):
        mocked(lambda request: answer(counted(request)), weights={"truth": 1.0})
    with pytest.raises(ContractError, match="set context to true"):
        mocked(lambda request: answer(counted(request), context=True), context=False)


def test_a_busy_server_is_asked_again_and_one_that_stays_away_ends_the_run_with_its_name() -> None:
    statuses = iter([503, 429, 200, 200])

    def busy(request: httpx.Request) -> httpx.Response:
        return answer(counted(request)) if next(statuses) == 200 else httpx.Response(503)

    assert mocked(busy)([ASK], ["Yes."], [None])[0].value == 1.0

    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(RewardServerError, match=r"reward model dense at http://there.* does not answer"):
        mocked(away)
    missing = {"error": {"message": "The model 'dense' does not exist.", "param": "model"}}
    with pytest.raises(RewardServerError, match="status 404: The model 'dense' does not exist"):
        mocked(lambda request: httpx.Response(404, json=missing))


def test_completions_are_sent_in_requests_of_one_chat_and_at_most_64() -> None:
    sizes: list[int] = []

    def handle(request: httpx.Request) -> httpx.Response:
        sizes.append(counted(request))
        return answer(sizes[-1])

    scores = mocked(handle)([ASK] * 70 + [OTHER] * 2, ["Yes."] * 72, [None] * 72)
    assert [score.value for score in scores] == [1.0] * 72
    assert sorted(sizes[1:]) == [2, 6, 64]


def test_two_parts_that_name_one_reward_model_have_a_batch_scored_once() -> None:
    values = iter([0.0, 3.0, 5.0])
    reward = mocked(lambda request: answer(counted(request), value=next(values)))
    twice = reward.weighed({"score": -2.0})
    arguments = ([ASK], ["Yes."], [None])
    assert [part(*arguments)[0].value for part in (reward, twice)] == [3.0, -6.0]
    # Who asks again about the same texts is answered by the server again.
    assert [part(*arguments)[0].value for part in (reward, twice)] == [5.0, -10.0]
    with pytest.raises(ContractError, match="has no head strange"):
        reward.weighed({"strange": 1.0})


@pytest.mark.parametrize("hangs", [True, False])
def test_a_stopped_run_waits_for_no_answer(hangs: bool) -> None:
    stopped, requested, release = threading.Event(), threading.Event(), threading.Event()

    def handle(request: httpx.Request) -> httpx.Response:
        if requested.is_set():
            stopped.set()
            # One server computes on and on, the other refuses and would be asked again in an hour.
            if hangs:
                release.wait(30)
            return httpx.Response(503)
        requested.set()
        return answer(counted(request))

    reward = mocked(handle, cancelled=stopped.is_set, pause=3600.0)
    begun = time.monotonic()
    [score] = reward([ASK], ["Yes."], [None])
    release.set()
    assert time.monotonic() - begun < 60
    assert (score.scored, score.reason) == (False, "the run was asked to stop")


def test_address_and_key_come_from_the_environment_alone(backbone: Backbone) -> None:
    part = RewardPart(name="people", kind="served", checkpoint="dense")
    with pytest.raises(ContractError, match="reward 'people': RONDO_REWARD_URL is not set in the trainer's"):
        build_rewards([part], backbone=backbone, folder=Path(), environment={})
    with pytest.raises(ContractError, match="a reward model takes none"):
        RewardPart(name="people", kind="served", checkpoint="dense", options={"url": "http://theirs"})


# ── Runs ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def there(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> RunningServer:
    """The trainer's environment names the server."""
    monkeypatch.setenv("RONDO_REWARD_URL", server.url)
    monkeypatch.setenv("RONDO_REWARD_KEY", server.key)
    return server


def run_of(folder: Path, base: Path, part: dict[str, Any]) -> Path:
    return make_sampled_run(
        folder,
        base,
        GRPO,
        settings={"rewards": [{"name": "people", **part}], "watch": {"length_drift": None}},
        optimiser={"max_steps": 2},
    )


def test_a_run_by_a_served_reward_model_earns_what_one_by_its_adapter_does(
    there: RunningServer, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    models, checkpoints = folders
    digest = manifest_digest(checkpoints / "dense")
    parts = {
        "adapter": {"kind": "model", "checkpoint": str(checkpoints / "dense")},
        "served": {"kind": "served", "checkpoint": "dense"},
    }
    runs = {
        name: run_of(tmp_path / name, models / BASE, {**part, "checkpoint_digest": digest})
        for name, part in parts.items()
    }
    assert {name: train(run) for name, run in runs.items()} == dict.fromkeys(runs, EXIT_FINISHED)
    adapter, over_http = (read_samples(run, 1) for run in runs.values())
    assert [sample.text for sample in over_http] == [sample.text for sample in adapter]
    for here, other in zip(adapter, over_http, strict=True):
        assert other.reward == pytest.approx(here.reward, abs=1e-4)
        assert [token.reward for token in other.tokens] == pytest.approx(
            [token.reward for token in here.tokens], abs=1e-4
        )
    assert there.key not in (runs["served"] / "spec.json").read_text()


def test_a_run_whose_server_is_away_or_has_another_checkpoint_says_so_before_it_samples(
    there: RunningServer, folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = folders[0] / BASE
    other = {"kind": "served", "checkpoint": "dense", "checkpoint_digest": "0" * 64}
    wrong = run_of(tmp_path / "wrong", base, other)
    assert train(wrong) == EXIT_FAILED
    assert "is another checkpoint" in status_of(wrong).message
    monkeypatch.setenv("RONDO_REWARD_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("training.rlhf.rewards.reward_model.PAUSE_SECONDS", 0.0)
    away = run_of(tmp_path / "away", base, {"kind": "served", "checkpoint": "dense"})
    assert train(away) == EXIT_FAILED
    assert "does not answer" in status_of(away).message
    assert "start again: training goes on from the last save" in status_of(away).message
    assert not (away / "metrics.jsonl").exists()


def test_a_run_that_is_stopped_while_it_waits_for_scores_can_be_started_again(
    there: RunningServer, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    run = run_of(tmp_path / "run", folders[0] / BASE, {"kind": "served", "checkpoint": "dense"})
    assert train(run, stop=StopAfter(run, 1)) == EXIT_STOPPED
    assert train(run) == EXIT_FINISHED
