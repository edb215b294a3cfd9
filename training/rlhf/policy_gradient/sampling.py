"""The samples of a step: prompts are answered, answers scored, scores put on the tokens that earned them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from training.contract import ContractError
from training.contract.methods.policy import PolicyGradientSettings, RolloutSettings
from training.contract.snapshot import Message, SnapshotPrompt, with_context
from training.rlhf.measures.pairs import name_hash
from training.rlhf.policy_gradient.credit import EpisodeBatch
from training.rlhf.rewards.combination import Combination, Combined
from training.rlhf.rewards.protocol import Score
from training.rlhf.rollout.samples import Sample, TextStream
from training.rlhf.runtime.processes import Share
from training.rlhf.sampling import MAX_SEED
from training.rlhf.spans import Stretch, place_segment_rewards
from training.rlhf.tokens.encoding import EncodedAnswer, Encoder

_SAMPLE_STREAM = 3
"""Keeps the seeds of samples apart from all else that is drawn from the run's seed."""


@dataclass(frozen=True, slots=True)
class RolloutPrompt:
    """A prompt as it is answered."""

    id: str
    chat: tuple[Message, ...]
    """Its conversation, context passages put in where the settings want them. Its next turn is the action."""
    ids: tuple[int, ...]
    reference: Any

    @property
    def tokens(self) -> int:
        """Its length."""
        return len(self.ids)


class Prompts(NamedTuple):
    """Prompts of a snapshot to sample completions for."""

    train: list[RolloutPrompt]
    held_out: list[RolloutPrompt]
    dropped: list[dict[str, str]]
    """One entry per prompt that cannot be used: prompt, reason."""
    shortened: int
    """Prompts that lost tokens at the front."""


def read_to_answer(
    prompts: Iterable[SnapshotPrompt], tokenizer: Any, settings: PolicyGradientSettings
) -> Prompts:
    """Tokenise a snapshot's prompts. Raises `ContractError` where none is left to train on."""
    encoder = Encoder(tokenizer)
    result = Prompts([], [], [], 0)
    shortened = 0
    room = settings.max_tokens - settings.rollout.max_tokens
    for prompt in prompts:
        try:
            chat = with_context(prompt.messages, prompt.context if settings.context else ())
            ids, cut = encoder.encode_prompt(chat, max_tokens=room)
        except ContractError as error:
            result.dropped.append({"prompt": prompt.id, "reason": str(error)})
            continue
        shortened += cut > 0
        side = result.train if prompt.split == "train" else result.held_out
        side.append(RolloutPrompt(prompt.id, tuple(chat), ids, prompt.reference))
    if not result.train:
        reasons = "; ".join(sorted({entry["reason"] for entry in result.dropped}))
        raise ContractError(
            f"the snapshot has no prompt to train on ({len(result.held_out)} held out, {len(result.dropped)} "
            f"unusable{': ' + reasons if reasons else ''}); freeze one with more prompts"
        )
    return result._replace(shortened=shortened)


def seeds_of_step(prompts: Sequence[RolloutPrompt], step: int, *, seed: int) -> list[int]:
    """Seed of each prompt's first sample: of the run's seed, the step and the prompt's id alone."""
    words = [
        np.random.SeedSequence([seed, _SAMPLE_STREAM, step, name_hash(prompt.id)]).generate_state(
            1, np.uint64
        )
        for prompt in prompts
    ]
    return [int(word[0]) % (MAX_SEED + 1) for word in words]


@dataclass(frozen=True, slots=True)
class Sampled:
    """B answers in all, those to the same prompt one after the other."""

    prompts: list[RolloutPrompt]
    """(B) the prompt of each."""
    group: list[int]
    """(B) number of that prompt in the step."""
    samples: list[Sample]
    """(B)"""
    versions: list[int] = field(default_factory=list)
    """(B) optimiser steps that the policy which drew each had taken; empty where the trainer draws."""

    @classmethod
    def of(
        cls,
        prompts: Sequence[RolloutPrompt],
        samples: Sequence[Sequence[Sample]],
        *,
        version: int | None = None,
    ) -> Sampled:
        """From samples by prompt, as `rollout` gives them."""
        group = [index for index, some in enumerate(samples) for _ in some]
        drawn = [sample for some in samples for sample in some]
        versions = [] if version is None else [version] * len(drawn)
        return cls([prompts[index] for index in group], group, drawn, versions)

    def joined(self, rows: Sequence[int], others: Sampled) -> Sampled:
        """Return these rows, and all of the others after them; whole prompts, numbered anew."""
        prompts = [*(self.prompts[row] for row in rows), *others.prompts]
        group = [*(self.group[row] for row in rows), *(len(self.group) + number for number in others.group)]
        numbers = {number: place for place, number in enumerate(dict.fromkeys(group))}
        samples = [*(self.samples[row] for row in rows), *others.samples]
        return Sampled(prompts, [numbers[number] for number in group], samples)

    @property
    def answers(self) -> list[EncodedAnswer]:
        """Prompt and drawn ids of each."""
        return [
            EncodedAnswer((*prompt.ids, *sample.after_prompt), len(prompt.ids), learned=sample.learned)
            for prompt, sample in zip(self.prompts, self.samples, strict=True)
        ]

    @property
    def lengths(self) -> list[int]:
        """(B) tokens drawn, end tokens included."""
        return [len(sample.tokens) for sample in self.samples]

    @property
    def unfinished(self) -> list[bool]:
        """(B) whether each was cut off."""
        return [cut_off(sample) for sample in self.samples]

    def scored_by(self, rewards: Combination, share: Share) -> Combined:
        """Return the scores of each sample; each process scores answers to its own prompts."""
        rows = share.rows(self.group)
        mine = rewards.scores(
            [self.prompts[row].chat for row in rows],
            [self.samples[row].text for row in rows],
            [self.prompts[row].reference for row in rows],
        )
        return rewards.combined({name: share.merged(rows, scores) for name, scores in mine.items()})


def staleness_figures(sampled: Sampled, step: int) -> dict[str, float]:
    """Return by how many steps the policies that drew were behind the one that learns; none without servers.

    step: optimiser steps that the learning policy has taken.
    """
    behind = [step - version for version in sampled.versions]
    if not behind:
        return {}
    return {"staleness": sum(behind) / len(behind), "staleness_max": float(max(behind))}


def make_episodes(
    sampled: Sampled,
    totals: Sequence[Score],
    *,
    tokenizer: Any,
    device: torch.device,
    settings: RolloutSettings,
) -> EpisodeBatch:
    """The samples as tensors. A value for the whole answer is paid on its last token, a segment's on the
    segment's last token. An answer that was cut off is worth what `settings.unfinished` says; left out it
    counts as one that could not be scored."""
    width = max(sampled.lengths)
    turns = _turns(sampled.samples, width)
    mask = torch.arange(width) < torch.tensor(sampled.lengths)[:, None]
    rewards = torch.zeros(mask.shape)
    behaviour = torch.zeros(mask.shape)
    for row, (sample, score) in enumerate(zip(sampled.samples, totals, strict=True)):
        length = len(sample.tokens)
        behaviour[row, :length] = torch.tensor([token.log_prob for token in sample.tokens])
        if turns is not None:
            rewards[row, :length] = _turn_rewards(sample, score, settings)
        elif score.scored:
            earned = token_rewards(sample, score, tokenizer)
            earned[-1] -= overlong_punishment(length, settings)
            rewards[row, :length] = _of_unfinished(earned, settings) if cut_off(sample) else earned
    leave_out = settings.unfinished == "leave_out"
    scored = [
        score.scored and not (leave_out and cut)
        for score, cut in zip(totals, sampled.unfinished, strict=True)
    ]
    return EpisodeBatch(
        mask=mask.to(device),
        rewards=rewards.to(device),
        scored=torch.tensor(scored, device=device),
        group=torch.tensor(sampled.group, device=device),
        behaviour_logp=behaviour.to(device),
        turns=None if turns is None else turns.to(device),
    )


def _turns(samples: Sequence[Sample], width: int) -> Tensor | None:
    """(B, width) number of the turn of each drawn token, −1 after the last; None where samples have none."""
    if any(sample.learned is None for sample in samples):
        return None
    turns = torch.full((len(samples), width), -1, dtype=torch.long)
    for row, sample in enumerate(samples):
        lengths = [end - start for start, end in sample.learned or ()]
        turns[row, : sum(lengths)] = torch.repeat_interleave(torch.tensor(lengths))
    return turns


def _turn_rewards(sample: Sample, score: Score, settings: RolloutSettings) -> Tensor:
    """(tokens,) rewards of an episode's turns, each on the turn's last token."""
    earned = torch.zeros(len(sample.tokens))
    ends = itertools.accumulate(end - start for start, end in sample.learned or ())
    if score.scored:
        for end, segment in zip(ends, score.segments, strict=True):
            earned[end - 1] = segment.value
        if cut_off(sample):
            earned = _of_unfinished(earned, settings)
    return earned


def overlong_punishment(tokens: int, settings: RolloutSettings) -> float:
    """Return what a response of so many tokens loses for its length: Yu et al. 2025, equation 13."""
    beyond = tokens - (settings.max_tokens - settings.overlong_buffer)
    return settings.unfinished_penalty * beyond / settings.overlong_buffer if beyond > 0 else 0.0


def cut_off(sample: Sample) -> bool:
    """Return whether a sample ends because it reached the limit of tokens."""
    return sample.finish_reason == "length"


def _of_unfinished(earned: Tensor, settings: RolloutSettings) -> Tensor:
    """(tokens,) what each token of an answer that was cut off is worth; `earned` were it finished."""
    if settings.unfinished == "missing_eos":
        earned = torch.zeros_like(earned)
        earned[-1] = settings.unfinished_value
    elif settings.unfinished == "penalty":
        earned[-1] -= settings.unfinished_penalty
    return earned


def token_rewards(sample: Sample, score: Score, tokenizer: Any) -> Tensor:
    """(tokens,) float32: what each drawn token earned."""
    rewards = torch.zeros(len(sample.tokens))
    if score.segments:
        ends = [segment.end for segment in score.segments]
        values = [segment.value for segment in score.segments]
        rewards += place_segment_rewards(token_places(sample, tokenizer), ends, values)
    rewards[-1] += score.value
    return rewards


def token_places(sample: Sample, tokenizer: Any) -> list[Stretch]:
    """Return each drawn token's [start, end) in the sample's text, in code points.

    A token without text of its own has an empty place: the end token, what a stop string cut off, and all
    but the last of the tokens whose bytes make one character.
    """
    stream = TextStream(tokenizer)
    ends = [0]
    for token in sample.tokens:
        stream.push(token.id)
        ends.append(min(len(stream.text), len(sample.text)))
    return list(itertools.pairwise(ends))
