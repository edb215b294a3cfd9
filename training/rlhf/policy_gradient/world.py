"""The environment of a run: its beginnings as prompts, its episodes as samples, its pay as scores."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from training.contract import ContractError
from training.contract.methods.policy import PolicyGradientSettings
from training.contract.snapshot import Message
from training.rlhf.environments.episodes import (
    EpisodeEncoder,
    EpisodeSample,
    held_out_seeds,
    play,
    success_figures,
)
from training.rlhf.environments.protocol import (
    BrokenEnvironmentError,
    Episodes,
    Messages,
    describe,
    opened,
)
from training.rlhf.model.backbone import Backbone
from training.rlhf.policy_gradient.sampling import Prompts, RolloutPrompt, Sampled
from training.rlhf.rewards.combination import Combined
from training.rlhf.rewards.protocol import Score, ScoredSegment
from training.rlhf.sampling import SamplingParameters


def read_starts(settings: PolicyGradientSettings, encoder: EpisodeEncoder, episodes: Episodes) -> Prompts:
    """Begin every episode once, for its prompt. Raises `ContractError` where none can be trained on."""
    result = Prompts([], [], [], 0)
    sides = (
        (range(settings.environment.starts if settings.environment else 0), result.train),
        (held_out_seeds(settings.evaluation_prompts), result.held_out),
    )
    for seeds, side in sides:
        for seed, reply in episodes.reset({seed: seed for seed in seeds}).items():
            name = f"seed-{seed}"
            try:
                if isinstance(reply, BrokenEnvironmentError):
                    raise reply
                ids = encoder.prompt(reply.messages)
            except BrokenEnvironmentError as failure:
                result.dropped.append({"prompt": name, "reason": str(failure)})
                continue
            if len(ids) + settings.rollout.max_tokens > settings.max_tokens:
                reason = "the beginning and one turn do not fit into max_tokens"
                result.dropped.append({"prompt": name, "reason": reason})
                continue
            side.append(RolloutPrompt(name, as_messages(reply.messages), ids, seed))
    if not result.train:
        reasons = "; ".join(sorted({entry["reason"] for entry in result.dropped})[:3])
        raise ContractError(f"environment: no episode can be begun: {reasons}")
    return result


def as_messages(messages: Messages) -> tuple[Message, ...]:
    """Return an episode's beginning as a prompt of the contract."""
    return tuple(Message(role=message["role"], content=message["content"]) for message in messages)  # type: ignore[arg-type]


class World:
    """The environment of a run: what it states of itself, its messages as ids, and its episodes."""

    def __init__(self, settings: PolicyGradientSettings, tokenizer: Any, folder: Path) -> None:
        """folder: the run's, where a relative path of an environment begins."""
        if settings.environment is None:
            raise ValueError("the settings name no environment")
        self.settings = settings.environment
        self.folder = folder
        self.description = describe(self.settings.name, folder)
        self.encoder = EpisodeEncoder(tokenizer, self.description)

    def prompts(self, settings: PolicyGradientSettings) -> Prompts:
        """Return the beginnings of its episodes. Raises `ContractError` where there is none."""
        with opened(self.settings, base=self.folder) as episodes:
            return read_starts(settings, self.encoder, episodes)

    def play(
        self,
        backbone: Backbone,
        prompts: Sequence[RolloutPrompt],
        sampler: SamplingParameters,
        *,
        n: int,
        seeds: Sequence[int],
        max_tokens: int,
        adapter: str | None,
        cancelled: Callable[[], bool] = lambda: False,
        max_rows: int | None = None,
    ) -> list[list[EpisodeSample]]:
        """Return `n` episodes from each beginning. Raises `ContractError` where there is none."""
        try:
            with opened(self.settings, base=self.folder) as episodes:
                return play(
                    backbone,
                    episodes,
                    self.encoder,
                    [prompt.reference for prompt in prompts],
                    sampler,
                    n=n,
                    turns=self.settings.turns,
                    max_tokens=max_tokens,
                    adapter=adapter,
                    seeds=seeds,
                    cancelled=cancelled,
                    max_rows=max_rows,
                )
        except BrokenEnvironmentError as failure:
            raise ContractError(
                f"environment: {failure}; mend it, then start again: training goes on from the last save"
            ) from failure

    def scored(self, sampled: Sampled) -> Combined:
        """Return what the episodes earned; one in which the environment broke cannot be scored."""
        scores = []
        for sample in sampled.samples:
            assert isinstance(sample, EpisodeSample)  # noqa: S101 - `play` gave them
            if sample.failure:
                scores.append(Score.cannot(sample.failure))
                continue
            ends = itertools.accumulate(map(len, sample.completions))
            segments = tuple(map(ScoredSegment, ends, sample.rewards))
            scores.append(Score(0.0, segments))
        return Combined(scores, {"environment": scores})

    def figures(self, sampled: Sampled) -> dict[str, float]:
        """Return success, turns and how episodes ended."""
        samples = [sample for sample in sampled.samples if isinstance(sample, EpisodeSample)]
        return success_figures(samples, self.description.success)
