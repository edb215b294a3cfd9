"""The true quality of a checkpoint: measured on fresh prompts by the known preference."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import fmean
from typing import Any, TypeVar

from tests.benchmarks.loop.machine import STARTER, Machine
from tests.benchmarks.loop.preferences import Reward

Result = TypeVar("Result")

_AT_ONCE = 8
_FALL = 0.02
"""A fall of the truth below a parent's by this share of their spread is over-optimisation."""


class Truth:
    """Fresh prompts, and what checkpoints answer to them: each once, with the same seeds for all."""

    def __init__(self, machine: Machine, prompts: Sequence[str], *, tokens: int, seed: int) -> None:
        self._prompts = prompts
        self._tokens, self._seed = tokens, seed
        self._texts: dict[str, list[str]] = {}

    def texts_of(self, checkpoint: str) -> list[str]:
        """Return the responses of a checkpoint, one for each prompt."""
        if checkpoint not in self._texts:
            self._texts[checkpoint] = _of_all(self._prompts, partial(self._answer, checkpoint))
        return self._texts[checkpoint]

    def _answer(self, checkpoint: str, engine: Any, index: int, prompt: str) -> str:
        [answer] = engine.complete(
            model=checkpoint,
            messages=[{"role": "user", "content": prompt}],
            n=1,
            seed=self._seed * 1_000_003 + index,
            temperature=1.0,
            max_tokens=self._tokens,
        )
        text: str = answer.text
        return text

    def measure(
        self, reward: Reward, *, checkpoint: str, parent: str, served: str, reward_model: str
    ) -> dict[str, Any]:
        """Return the figures of a round by the truth."""
        rewards = {
            name: [
                reward(prompt, text) for prompt, text in zip(self._prompts, self.texts_of(name), strict=True)
            ]
            for name in {checkpoint, parent, served, STARTER}
        }
        proxies = {name: self._scores(reward_model, self.texts_of(name)) for name in {checkpoint, parent}}
        proxy_gain = fmean(proxies[checkpoint]) - fmean(proxies[parent])
        gain = fmean(rewards[checkpoint]) - fmean(rewards[parent])
        against_parent = win_rate(rewards[checkpoint], rewards[parent])
        return {
            "true_reward": fmean(rewards[served]),
            "true_reward_base": fmean(rewards[STARTER]),
            "true_gain": gain,
            "proxy_gain": proxy_gain,
            "true_win_rate_base": win_rate(rewards[served], rewards[STARTER]),
            "true_win_rate_parent": against_parent,
            "reward_accuracy": accuracy(
                [*rewards[checkpoint], *rewards[parent]],
                [*proxies[checkpoint], *proxies[parent]],
                pairs=len(self._prompts),
            ),
            "over_optimised": proxy_gain > 0 and against_parent["high"] < 0.5 - _FALL,
        }

    def _scores(self, model: str, texts: Sequence[str]) -> list[float]:
        def score(engine: Any, index: int, prompt: str) -> float:
            messages = [{"role": "user", "content": prompt}]
            [value] = engine.score(model=model, messages=messages, completions=[texts[index]])
            return float(value)

        return _of_all(self._prompts, score)


def _of_all(prompts: Sequence[str], ask: Callable[[Any, int, str], Result]) -> list[Result]:
    """Ask the model server about all prompts, several at a time, which it computes together."""
    from training.engine import Engine

    with Engine() as engine, ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(partial(ask, engine), range(len(prompts)), prompts))


def win_rate(new: Sequence[float], old: Sequence[float]) -> dict[str, float]:
    """Return the share of prompts on which the first is better, ties one half, with a 95 % interval."""
    outcomes = [1.0 if a > b else 0.0 if a < b else 0.5 for a, b in zip(new, old, strict=True)]
    mean = fmean(outcomes)
    spread = math.sqrt(fmean((outcome - mean) ** 2 for outcome in outcomes) / len(outcomes))
    return {"value": mean, "low": max(0.0, mean - 1.96 * spread), "high": min(1.0, mean + 1.96 * spread)}


def accuracy(rewards: Sequence[float], scores: Sequence[float], *, pairs: int) -> float | None:
    """Return how often scores order two responses to one prompt as the truth does; a tied score counts half.

    The lists hold the first responses to all prompts, then the second ones. None where the truth ties all.
    """
    right = []
    for index in range(pairs):
        true = rewards[index] - rewards[index + pairs]
        scored = scores[index] - scores[index + pairs]
        if true:
            right.append(0.5 if not scored else float((true > 0) == (scored > 0)))
    return fmean(right) if right else None


def decision_agrees(verdict: str, true_win_rate: dict[str, float]) -> bool | None:
    """Return whether a decision agrees with the truth; None where either of them leaves it open.

    A promotion is wrong where the truth is clearly worse, a rejection where it is clearly better.
    """
    if verdict == "promote" or verdict == "promoted":
        return true_win_rate["high"] >= 0.5
    if verdict == "reject" or verdict == "rejected":
        return true_win_rate["low"] <= 0.5
    return None
