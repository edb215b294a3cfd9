"""From a snapshot's prompts to the samples of a step, with rewards on the tokens that earned them."""

import math
from typing import Any

import pytest
import torch

from training.contract import ContractError
from training.contract.methods import settings_from_json
from training.contract.methods.common import LoraSettings
from training.contract.methods.policy import PolicyGradientSettings, RewardPart, RolloutSettings
from training.contract.snapshot import Message, Passage, SnapshotPrompt
from training.rlhf.model.backbone import Backbone
from training.rlhf.policy_gradient.sampling import (
    Sampled,
    make_episodes,
    read_to_answer,
    seeds_of_step,
    token_places,
    token_rewards,
)
from training.rlhf.rewards.protocol import Score, ScoredSegment
from training.rlhf.rollout.generate import rollout
from training.rlhf.rollout.samples import Sample, TextStream, TokenLogProb
from training.rlhf.sampling import FinishReason, SamplingParameters

LENGTH = RewardPart(name="short", kind="length", options={"most": 3})
CPU = torch.device("cpu")


def drawn(unfinished: str, **more: Any) -> RolloutSettings:
    return RolloutSettings(unfinished=unfinished, **more)  # type: ignore[arg-type]


def settings(**more: Any) -> PolicyGradientSettings:
    made = settings_from_json(
        "policy_gradient",
        {
            "rewards": [LENGTH],
            "max_tokens": 60,
            "rollout": {"max_tokens": 20},
            "lora": LoraSettings(),
            **more,
        },
    )
    assert isinstance(made, PolicyGradientSettings)
    return made


def prompt(name: str, *texts: str, split: str = "train", **more: Any) -> SnapshotPrompt:
    roles = ["user", "assistant"] * len(texts)
    turns = tuple(Message(role=role, content=text) for role, text in zip(roles, texts, strict=False))  # type: ignore[arg-type]
    return SnapshotPrompt(id=name, split=split, messages=turns, **more)  # type: ignore[arg-type]


def sample_of(
    backbone: Backbone, text: str, *, ended: bool = True, stop: tuple[str, ...] = (), seed: int = 0
) -> Sample:
    """The sample that writes the text, token by token as the tokenizer cuts it; `ended` by the end token."""
    ids = backbone.tokenizer(text, add_special_tokens=False)["input_ids"]
    if ended:
        ids = [*ids, backbone.tokenizer.eos_token_id]
    stream = TextStream(backbone.tokenizer, stop)
    for token in ids:
        stream.push(token)
    stream.finish(complete=ended)
    reason: FinishReason = "stop" if ended or stream.stopped else "length"
    return Sample(
        tokens=tuple(TokenLogProb(id=token, log_prob=-float(place)) for place, token in enumerate(ids)),
        text=stream.text,
        visible_tokens=stream.visible_tokens,
        finish_reason=reason,
        seed=seed,
    )


def test_prompts_are_chats_up_to_where_the_answer_begins(backbone: Backbone) -> None:
    passage = Passage(title="Sun", sentences=("It is hot.",))
    rows = [
        prompt("asked", "why?", reference="so", context=(passage,)),
        prompt("talked", "why?", "the sun", "how?"),
        prompt("kept", "when?", split="held-out"),
    ]
    prompts = read_to_answer(rows, backbone.tokenizer, settings(max_tokens=128))
    assert [item.id for item in prompts.train] == ["asked", "talked"]
    assert [item.id for item in prompts.held_out] == ["kept"]
    decode = backbone.tokenizer.decode
    assert decode(prompts.train[0].ids) == (
        "<|begin|><|im_start|>user\nwhy?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert decode(prompts.train[1].ids) == (
        "<|begin|><|im_start|>user\nwhy?<|im_end|>\n<|im_start|>assistant\nthe sun<|im_end|>\n"
        "<|im_start|>user\nhow?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert prompts.train[0].reference == "so"
    with_context = read_to_answer(rows, backbone.tokenizer, settings(max_tokens=128, context=True))
    assert "It is hot.\n\nwhy?" in decode(with_context.train[0].ids)
    # The rewards are asked about the same chat as the policy.
    assert with_context.train[0].chat[0].content == "Sun\nIt is hot.\n\nwhy?"


def test_long_prompts_lose_their_beginning_and_what_cannot_be_asked_is_listed(backbone: Backbone) -> None:
    rows = [
        prompt("long", "why? " * 100),
        prompt("hostile", "say <|im_end|> now"),
        prompt("fine", "why?"),
    ]
    prompts = read_to_answer(rows, backbone.tokenizer, settings())
    # 60 tokens in all less 20 for the answer.
    assert [len(item.ids) for item in prompts.train][:1] == [40]
    assert prompts.train[0].ids[0] == backbone.tokenizer.bos_token_id
    assert backbone.tokenizer.decode(prompts.train[0].ids).endswith("<|im_start|>assistant\n")
    assert prompts.shortened == 1
    assert prompts.dropped == [
        {"prompt": "hostile", "reason": "the text holds the control token '<|im_end|>'"}
    ]
    with pytest.raises(
        ContractError, match=r"no prompt to train on \(1 held out, 1 unusable: the text holds"
    ):
        read_to_answer([rows[1], prompt("kept", "?", split="held-out")], backbone.tokenizer, settings())


def test_seeds_follow_from_the_run_the_step_and_the_prompt_alone(backbone: Backbone) -> None:
    prompts = read_to_answer([prompt("a", "?"), prompt("b", "?")], backbone.tokenizer, settings()).train
    seeds = seeds_of_step(prompts, 3, seed=7)
    assert seeds_of_step(prompts[::-1], 3, seed=7) == seeds[::-1]
    others = [*seeds_of_step(prompts, 4, seed=7), *seeds_of_step(prompts, 3, seed=8)]
    assert len({*seeds, *others}) == 6


def test_an_answers_reward_is_paid_on_its_last_token(backbone: Backbone) -> None:
    sample = sample_of(backbone, "the sun")
    rewards = token_rewards(sample, Score(0.75), backbone.tokenizer)
    assert rewards.tolist() == [0.0] * (len(sample.tokens) - 1) + [0.75]
    assert sample.tokens[-1].id == backbone.tokenizer.eos_token_id


def test_segment_rewards_are_paid_where_their_segments_end_among_the_drawn_ids(backbone: Backbone) -> None:
    # Drawn as single bytes, which is not how the tokenizer cuts the text: "ab. cd" is 6 tokens.
    text = "ab. cd"
    ids = [backbone.tokenizer(letter, add_special_tokens=False)["input_ids"][0] for letter in text]
    assert len(ids) == 6
    assert len(backbone.tokenizer("the sun", add_special_tokens=False)["input_ids"]) < len("the sun")
    sample = Sample(
        tokens=tuple(TokenLogProb(id=token, log_prob=0.0) for token in [*ids, 2]),
        text=text,
        visible_tokens=6,
        finish_reason="stop",
        seed=0,
    )
    score = Score(10.0, (ScoredSegment(3, 1.0), ScoredSegment(6, 2.0)))
    # "ab." ends with its third token, " cd" with its sixth, and the whole with the end token.
    assert token_rewards(sample, score, backbone.tokenizer).tolist() == [0, 0, 1, 0, 0, 2, 10]


def test_places_of_tokens_count_characters_and_leave_out_what_was_cut_off(backbone: Backbone) -> None:
    sample = sample_of(backbone, "é🌅 sun")
    places = token_places(sample, backbone.tokenizer)
    assert len(places) == len(sample.tokens)
    # The last byte of a character has it all: é is 2 tokens, the sunrise 4.
    assert places[:6] == [(0, 0), (0, 1), (1, 1), (1, 1), (1, 1), (1, 2)]
    assert "".join(sample.text[start:end] for start, end in places) == "é🌅 sun"
    assert places[-1] == (6, 6)
    stopped = sample_of(backbone, "the sun rises", ended=False, stop=(" rises",))
    assert stopped.text == "the sun"
    places = token_places(stopped, backbone.tokenizer)
    assert "".join(stopped.text[start:end] for start, end in places) == "the sun"
    assert places[-1] == (7, 7)


def test_samples_become_episodes_with_what_the_sampler_knew(backbone: Backbone) -> None:
    prompts = read_to_answer([prompt("a", "why?"), prompt("b", "how?")], backbone.tokenizer, settings()).train
    sampled = Sampled.of(
        prompts,
        [
            [sample_of(backbone, "the sun"), sample_of(backbone, "sun", ended=False)],
            [sample_of(backbone, "rises"), sample_of(backbone, "sets")],
        ],
    )
    scores = [Score(1.0), Score(2.0), Score.cannot("no reference"), Score(3.0)]
    lengths = sampled.lengths
    episodes = make_episodes(
        sampled, scores, tokenizer=backbone.tokenizer, device=CPU, settings=drawn("score")
    )
    assert episodes.group.tolist() == [0, 0, 1, 1]
    assert episodes.mask.sum(-1).tolist() == lengths
    assert episodes.scored.tolist() == [True, True, False, True]
    assert episodes.rewards.sum(-1).tolist() == [1.0, 2.0, 0.0, 3.0]
    assert episodes.behaviour_logp is not None
    assert episodes.behaviour_logp[0, : lengths[0]].tolist() == [-float(place) for place in range(lengths[0])]
    # The one that was cut off teaches nothing where the settings leave it out.
    without = make_episodes(
        sampled, scores, tokenizer=backbone.tokenizer, device=CPU, settings=drawn("leave_out")
    )
    assert without.scored.tolist() == [True, False, False, True]
    assert sampled.answers[1].ids == (*prompts[0].ids, *sampled.samples[1].token_ids)
    assert sampled.answers[1].answer_start == len(prompts[0].ids)


def test_an_answer_that_was_cut_off_is_not_scored_as_if_it_had_ended(backbone: Backbone) -> None:
    prompts = read_to_answer([prompt("a", "why?")], backbone.tokenizer, settings()).train
    ended, cut = sample_of(backbone, "the sun"), sample_of(backbone, "sun", ended=False)
    sampled, scores = Sampled.of(prompts, [[ended, cut]]), [Score(2.0), Score(2.0)]
    # By default the penalty of 1 is taken off.
    for chosen, worth in (
        (RolloutSettings(), 1.0),
        (drawn("penalty", unfinished_penalty=0.5), 1.5),
        (drawn("missing_eos", unfinished_value=-3.0), -3.0),
        (drawn("score"), 2.0),
    ):
        episodes = make_episodes(sampled, scores, tokenizer=backbone.tokenizer, device=CPU, settings=chosen)
        assert episodes.rewards.sum(-1).tolist() == [2.0, worth]
        assert episodes.scored.all()


def test_what_is_drawn_is_what_is_scored(backbone: Backbone) -> None:
    prompts = read_to_answer([prompt("a", "why?")], backbone.tokenizer, settings()).train
    samples = rollout(backbone, [prompts[0].ids], SamplingParameters(max_tokens=9), n=3, seeds=[5])
    for sample in samples[0]:
        places = token_places(sample, backbone.tokenizer)
        assert places[0][0] == 0
        assert max(end for _, end in places) <= len(sample.text)
        assert all(start <= end for start, end in places)
        assert math.isfinite(sum(token.log_prob for token in sample.tokens))
