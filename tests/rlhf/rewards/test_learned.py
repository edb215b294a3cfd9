"""A trained reward model as a reward: its heads' weighted sum, dense where they score segments."""

import math
from dataclasses import replace

import pytest
import torch

from tests.chat_templates import template
from tests.rlhf.methods.test_methods import spec_of
from tests.rlhf.model.test_backbone import disturb
from training.contract import ContractError
from training.contract.chat_template import Thinking
from training.contract.methods.reward import CompletenessHead, RewardSettings, SegmentHead
from training.contract.snapshot import Message
from training.rlhf.methods.reward import RewardModelling
from training.rlhf.model.backbone import Backbone
from training.rlhf.rewards.reward_model import LearnedReward
from training.rlhf.tokens.encoding import Encoder

SETTINGS = RewardSettings(
    segments=(
        SegmentHead(name="parts", categories=("a",), granularity="sub-sentence"),
        SegmentHead(name="sentences", categories=("b",)),
        SegmentHead(name="all", categories=("c",), granularity="whole"),
    ),
    completeness=CompletenessHead(),
    max_tokens=128,
)
ASK = [Message(role="user", content="Why?")]
OTHER = [Message(role="user", content="How long does it take?")]
# Two sub-sentences of five words, the second of which ends a sentence, and a sentence of one sub-sentence.
TEXT = "The sun rises in the east, and sets in the west. A policy gives an answer."
PARTS, SENTENCES = (26, 48, 74), (48, 74)


@pytest.fixture
def trained(backbone: Backbone) -> Backbone:
    """The tiny base with a reward model as if it had been trained."""
    RewardModelling(backbone, spec_of(backbone, SETTINGS), SETTINGS)
    for head in SETTINGS.segments:
        backbone.add_extra("reward", f"{head.name}.bias", torch.zeros(1))
    disturb(backbone, "reward", scale=0.1)
    return backbone


@pytest.mark.parametrize("thinking", ["train", "mask", "strip"])
def test_thinking_is_read_as_in_training(trained: Backbone, thinking: Thinking) -> None:
    tokenizer = trained.tokenizer
    original, thought = tokenizer.chat_template, "<think>\nLet me see. Now.\n</think>\n\n"
    tokenizer.chat_template = template("qwen3")
    try:
        reward = LearnedReward(trained, "reward", replace(SETTINGS, thinking=thinking))
        plain, thoughtful = reward([ASK, ASK], [TEXT, thought + TEXT], [None, None])
    finally:
        tokenizer.chat_template = original
    after = [segment for segment in thoughtful.segments if segment.end > len(thought)]
    assert [segment.end for segment in after] == [len(thought) + segment.end for segment in plain.segments]
    assert (len(after) == len(thoughtful.segments)) == (thinking != "train")
    same = [segment.value for segment in after] == pytest.approx(
        [segment.value for segment in plain.segments], abs=1e-4
    )
    assert same == (thinking == "strip")
    assert (thoughtful.value == pytest.approx(plain.value, abs=1e-4)) == (thinking == "strip")


def state_of(backbone: Backbone, text: str, length: int | None = None) -> torch.Tensor:
    """The state of the token that holds the character before `length` of an answer; of its end token."""
    answered = Encoder(backbone.tokenizer).encode(ASK, text, offsets=True)
    place = len(answered.ids) - 1
    if length is not None:
        ends = [end for _, end in answered.offsets[:-1]]
        place = answered.answer_start + next(n for n, end in enumerate(ends) if end >= length)
    ids = torch.tensor([answered.ids])
    with torch.no_grad(), backbone.using("reward"):
        return backbone.hidden_states(ids, torch.ones_like(ids)).states[0, place]


def output(backbone: Backbone, head: str, state: torch.Tensor) -> float:
    """w · h, and b where the head has one."""
    weights = backbone.head_state("reward")
    bias = weights.get(f"{head}.bias", torch.zeros(1))
    return float(weights[head][0] @ state + bias[0])


def test_values_and_segments_are_the_weighted_sums_of_the_heads(trained: Backbone) -> None:
    weights = {"score": 1.0, "completeness": 0.5, "all": 2.0, "parts": 0.3, "sentences": -1.0}
    [score] = LearnedReward(trained, "reward", SETTINGS, weights=weights)([ASK], [TEXT], [None])
    end = state_of(trained, TEXT)
    assert score.value == pytest.approx(
        sum(weights[head] * output(trained, head, end) for head in ("score", "completeness", "all")), abs=1e-4
    )
    expected = dict.fromkeys(PARTS, 0.0)
    for head, ends in (("parts", PARTS), ("sentences", SENTENCES)):
        for place in ends:
            expected[place] += weights[head] * output(trained, head, state_of(trained, TEXT, place))
    assert [segment.end for segment in score.segments] == list(PARTS)
    assert [segment.value for segment in score.segments] == pytest.approx(list(expected.values()), abs=1e-4)


def test_many_completions_of_several_prompts_are_scored_as_each_alone(trained: Backbone) -> None:
    prompts = [ASK, ASK, OTHER, ASK]
    texts = [TEXT, "No.", "Two minutes, or a little more.", TEXT]
    together = LearnedReward(trained, "reward", SETTINGS, micro_batch_tokens=100)(prompts, texts, [None] * 4)
    for prompt, text, score in zip(prompts, texts, together, strict=True):
        [alone] = LearnedReward(trained, "reward", SETTINGS)([prompt], [text], [None])
        assert score.value == pytest.approx(alone.value, abs=1e-4)
        assert [segment.end for segment in score.segments] == [segment.end for segment in alone.segments]
        assert [segment.value for segment in score.segments] == pytest.approx(
            [segment.value for segment in alone.segments], abs=1e-4
        )


def test_what_cannot_be_read_cannot_be_scored_and_the_others_are(trained: Backbone) -> None:
    texts = [" \n", TEXT, "ends <|im_end|> early", "word " * 200]
    scores = LearnedReward(trained, "reward", SETTINGS)([ASK] * 4, texts, [None] * 4)
    assert [score.scored for score in scores] == [False, True, False, False]
    assert scores[0].reason == "the completion is empty"
    assert "control token" in scores[2].reason
    assert "longer than the reward model takes (128 tokens)" in scores[3].reason
    assert not math.isnan(scores[1].value)


def test_heads_that_weigh_nothing_are_not_in_the_sum(trained: Backbone) -> None:
    [score] = LearnedReward(trained, "reward", SETTINGS, weights={"score": 1.0})([ASK], [TEXT], [None])
    assert score.value == pytest.approx(output(trained, "score", state_of(trained, TEXT)), abs=1e-4)
    assert score.segments == ()


def test_a_weight_for_a_head_that_is_not_there_is_refused(trained: Backbone) -> None:
    with pytest.raises(ContractError, match="no head truth; it has score, parts, sentences, all, completene"):
        LearnedReward(trained, "reward", SETTINGS, weights={"truth": 1.0})
