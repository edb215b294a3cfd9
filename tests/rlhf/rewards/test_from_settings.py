"""Rewards from a run's settings: the right one for each kind, and a refusal that names part and option."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.rlhf.methods.test_methods import spec_of
from tests.rlhf.model.test_backbone import disturb
from training.contract import ContractError
from training.contract.checkpoint import manifest_digest
from training.contract.methods.policy import RewardPart
from training.contract.methods.reward import RewardSettings, SegmentHead
from training.contract.snapshot import Message
from training.rlhf.loop.run import save_checkpoint
from training.rlhf.methods.reward import RewardModelling
from training.rlhf.model.backbone import Backbone
from training.rlhf.rewards.combination import Combination, build_rewards
from training.rlhf.rewards.judge import JudgeReward
from training.rlhf.rewards.protocol import Chat, Reference
from training.rlhf.rewards.reward_model import LearnedReward

ASK = [Message(role="user", content="Say ab.")]
SETTINGS = RewardSettings(segments=(SegmentHead(name="parts", categories=("a",)),), max_tokens=128)


def shouting(prompts: list[Chat], completions: list[str], references: list[Reference]) -> list[float]:
    """A user's own reward: the share of capitals."""
    return [sum(letter.isupper() for letter in text) / len(text) for text in completions]


def build(backbone: Backbone, *parts: RewardPart, folder: Path = Path(), **more: Any) -> Combination:
    return build_rewards(parts, backbone=backbone, folder=folder, **more)


def part(kind: Any, name: str = "it", **more: Any) -> RewardPart:
    return RewardPart(name=name, kind=kind, **more)


@pytest.fixture
def checkpoint(backbone: Backbone, tmp_path: Path) -> Path:
    """Folder of a reward model with a score and a segment head, as if it had been trained."""
    spec = spec_of(backbone, SETTINGS)
    RewardModelling(backbone, spec, SETTINGS)
    backbone.add_extra("reward", "parts.bias", torch.zeros(1))
    disturb(backbone, "reward", scale=0.1)
    folder = tmp_path / "round" / "checkpoint"
    save_checkpoint(
        folder, backbone=backbone, adapter="reward", kind="reward", spec=spec, steps=1, metrics={}, dropped=[]
    )
    return folder


@pytest.mark.parametrize(
    ("kind", "options", "completion", "reference", "expected"),
    [
        ("exact_match", {"ignore_case": True}, " AB ", "ab", 1.0),
        ("exact_match", {"strip": False}, "ab ", "ab", 0.0),
        ("think_answer", {}, "<think>x</think><answer>y</answer>", None, 1.0),
        ("pattern", {"pattern": "[0-9]+", "whole": True}, "12b", None, 0.0),
        ("line_count", {"wanted": 4}, "a\nb\n\nc", None, 0.75),
        ("length", {"most": 2, "slack": 4, "unit": "characters"}, "abc", None, 0.75),
        ("mathematics", {"seconds": 60}, r"So it is \boxed{\frac{1}{2}}.", "0.5", 1.0),
        ("unit_tests", {"wall_seconds": 30.0, "workers": 1}, "x = 2", "assert x == 2", 1.0),
        ("bleu", {"tokenize": "char"}, "the cat sat", "the cat sat", 1.0),
        ("rouge", {"kind": "rouge1"}, "the cat", "the dog", 0.5),
        ("chrf", {"word_order": 2}, "the cat sat here", "the cat sat here", 1.0),
        ("function", {"path": f"{__name__}.shouting"}, "AbCd", None, 0.5),
    ],
)
def test_each_kind_scores_as_it_is_told(
    backbone: Backbone, kind: str, options: dict[str, Any], completion: str, reference: Any, expected: float
) -> None:
    environment = {"RONDO_REWARD_FUNCTIONS": f"acme.rewards.other, {__name__}.shouting"}
    rewards = build(backbone, part(kind, options=options), environment=environment)
    [score] = rewards([ASK], [completion], [reference])
    rewards.close()
    assert score.value == pytest.approx(expected), score.reason


def test_weights_normalising_clips_and_what_is_required_are_the_settings(backbone: Backbone) -> None:
    short = {"most": 3, "unit": "characters"}
    rewards = build(
        backbone,
        part("exact_match", "right", weight=2.0, clip=0.75, required=True),
        part("length", "short", weight=-1.0, options=short),
        clip=1.25,
    )
    scores = rewards([ASK] * 3, ["ab", "abcde", "ab"], ["ab", "abcde", None])
    # 2 × min(1, ¾) − 1 = ½; 2 × ¾ − 0 = 1½, cut to 1¼; the third has no reference, and that part is required.
    assert [score.value for score in scores[:2]] == [0.5, 1.25]
    assert not scores[2].scored
    [normalised] = build(backbone, part("length", normalise=True, options=short)).parts
    assert normalised.normalise


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (
            "exact_match",
            {"trim": True},
            "reward 'it', options: unknown option 'trim'; known are ignore_case,",
        ),
        ("think_answer", {"a": 1}, "unknown option 'a'; known are none"),
        ("pattern", {}, "option 'pattern' is missing"),
        ("pattern", {"pattern": "("}, "reward 'it', options: pattern .* is no regular expression"),
        ("length", {"most": "9"}, "option 'most': must be a whole number, not '9'"),
        ("length", {"most": True}, "option 'most': must be a whole number, not True"),
        ("length", {"most": 3, "unit": "tokens"}, "unit 'tokens' is not known"),
        ("bleu", {"tokenize": "flores200"}, "option 'tokenize': must be"),
        ("mathematics", {"seconds": 0}, "seconds 0 must be positive"),
        ("unit_tests", {"trust": True}, "'trust' is not for a run to set"),
        ("unit_tests", {"write_files": True}, "'write_files' is not for a run to set"),
        ("unit_tests", {"limits": {}}, "unknown option 'limits'"),
        ("unit_tests", {"workers": 0}, "option 'workers' must be positive"),
        ("judge", {"model": "m"}, "name the judge's server here or in RONDO_JUDGE_URL"),
        ("judge", {"url": "http://a"}, "option 'model' is missing"),
        ("judge", {"url": "http://a", "model": "m", "key": "secret"}, "unknown option 'key'"),
        ("judge", {"url": "http://a", "model": "m", "transport": None}, "unknown option 'transport'"),
        ("function", {"path": "os.system"}, "'os.system' is not on the allow-list .*RONDO_REWARD_FUNCTIONS"),
        ("function", {"path": "os.system", "allowed": ["os.system"]}, "unknown option 'allowed'"),
        ("function", {"path": "no.such"}, "the reward function 'no.such' does not exist"),
    ],
)
def test_options_that_a_kind_does_not_have_are_refused_by_name(
    backbone: Backbone, kind: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ContractError, match=message):
        build(backbone, part(kind, options=options), environment={"RONDO_REWARD_FUNCTIONS": "no.such"})


@pytest.mark.parametrize(
    ("options", "environment", "header"),
    [
        ({}, {"RONDO_JUDGE_URL": "http://ours", "RONDO_JUDGE_KEY": "k"}, "Bearer k"),
        ({"url": "http://ours"}, {"RONDO_JUDGE_URL": "http://ours", "RONDO_JUDGE_KEY": "k"}, "Bearer k"),
        ({"url": "http://theirs"}, {"RONDO_JUDGE_URL": "http://ours", "RONDO_JUDGE_KEY": "k"}, None),
        ({"url": "http://theirs"}, {"RONDO_JUDGE_KEY": "k"}, None),
    ],
)
def test_the_judges_key_goes_only_to_the_server_that_the_environment_names(
    backbone: Backbone, options: dict[str, Any], environment: Mapping[str, str], header: str | None
) -> None:
    rewards = build(backbone, part("judge", options={"model": "m", **options}), environment=environment)
    [built] = rewards.parts
    assert isinstance(built.reward, JudgeReward)
    assert built.reward._server._client.headers.get("Authorization") == header
    rewards.close()
    assert built.reward._server._client.is_closed


def test_a_reward_model_scores_as_the_adapter_that_was_saved(backbone: Backbone, checkpoint: Path) -> None:
    texts = ["The sun rises in the east.", "No."]
    parts = [
        part("model", "whole", checkpoint="checkpoint", heads={"score": 1.0}),
        part("model", "dense", checkpoint=str(checkpoint), heads={"parts": 0.5}),
    ]
    rewards = build(backbone, *parts, folder=checkpoint.parent)
    scores = rewards.combine([ASK] * 2, texts, [None] * 2).parts
    for name, heads in (("whole", {"score": 1.0}), ("dense", {"parts": 0.5})):
        expected = LearnedReward(backbone, "reward", SETTINGS, weights=heads)([ASK] * 2, texts, [None] * 2)
        assert scores[name] == expected
    assert scores["whole"][0].value != scores["whole"][1].value
    assert scores["dense"][0].segments


def test_a_checkpoint_that_several_parts_and_calls_name_is_one_frozen_adapter(
    backbone: Backbone, checkpoint: Path
) -> None:
    before = set(backbone.adapters)
    for name in ("watched", "trained for"):
        build(backbone, *(part("model", f"{name} {n}", checkpoint=str(checkpoint)) for n in range(2)))
    [added] = set(backbone.adapters) - before
    assert not any(weight.requires_grad for weight in backbone.parameters(added).values())


def test_a_reward_model_that_is_another_than_the_run_was_made_for_is_refused(
    backbone: Backbone, checkpoint: Path
) -> None:
    named = str(checkpoint)
    build(backbone, part("model", checkpoint=named, checkpoint_digest=manifest_digest(checkpoint)))
    with pytest.raises(ContractError, match=r"reward 'it': the digest of .* the spec asks for dddddddddddd"):
        build(backbone, part("model", checkpoint=named, checkpoint_digest="d" * 64))
    with pytest.raises(ContractError, match="reward 'it': the reward model has no head tone"):
        build(backbone, part("model", checkpoint=named, heads={"tone": 1.0}))
    with pytest.raises(ContractError, match=r"trained on prompts without .* set context to false"):
        build(backbone, part("model", checkpoint=named), context=True)
    with pytest.raises(ContractError, match=r"manifest\.json: the file is missing"):
        build(backbone, part("model", checkpoint="nowhere"), folder=checkpoint)


def test_a_policy_is_no_reward_model(backbone: Backbone, checkpoint: Path, tmp_path: Path) -> None:
    spec = spec_of(backbone, SETTINGS)
    folder = tmp_path / "policy"
    save_checkpoint(
        folder, backbone=backbone, adapter="reward", kind="policy", spec=spec, steps=1, metrics={}, dropped=[]
    )
    with pytest.raises(ContractError, match="is a checkpoint of kind 'policy'; name one of kind 'reward'"):
        build(backbone, part("model", checkpoint=str(folder)))
