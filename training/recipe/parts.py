"""The parts of a recipe that no trainer sees: how prompts are answered, when training starts, how its outcome
is judged, and what it may cost."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import Any, Literal

from training.contract import CHECKPOINT_NAME, ContractError, RewardPart
from training.contract.files import require, require_types

POLICY = "policy"
"""As a sampler's checkpoint: the round's policy."""
RIVAL = "rival"
"""As a sampler's checkpoint: the policy of the round before; in a first round, the policy."""

RULES_WITHOUT_TORCH = (
    "exact_match",
    "think_answer",
    "pattern",
    "line_count",
    "length",
    "mathematics",
    "unit_tests",
    "bleu",
    "rouge",
    "chrf",
)
"""Kinds of rewards that are computed from texts alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingSettings:
    """How a checkpoint answers prompts."""

    temperature: float = 0.8
    """Spread of the answers; 0 always takes the likeliest token."""
    top_p: float = 0.95
    """Sample from the smallest set of tokens that holds this share of the probability."""
    top_k: int = 0
    """Sample from this many of the likeliest tokens; 0 sets no limit."""
    max_tokens: int = 200
    """An answer is cut off after this many tokens."""

    def __post_init__(self) -> None:
        require_number(self.temperature, "sampling, temperature", 0, 2)
        require_number(self.top_p, "sampling, top_p", 0.01, 1)
        require_integer(self.top_k, "sampling, top_k", 0, 1_000_000)
        require_integer(self.max_tokens, "sampling, max_tokens", 1, 8192)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampler:
    """One of several that answer every prompt of a round."""

    checkpoint: str = POLICY
    """Who answers: "policy", the round's own; "rival", that of the round before; or a checkpoint's name."""
    completions: int = 1
    """How many answers it gives to each prompt."""
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    """How it is sampled."""

    def __post_init__(self) -> None:
        require_types(self, "sampler")
        require(
            CHECKPOINT_NAME.fullmatch(self.checkpoint) is not None,
            "sampler, checkpoint",
            f"{self.checkpoint!r} is no checkpoint's name; take one, or {POLICY!r}, or {RIVAL!r}",
        )
        require_integer(self.completions, "sampler, completions", 1, 9)


@dataclass(frozen=True, kw_only=True, slots=True)
class StartSettings:
    """When a round's training starts by itself; with neither condition a manager starts it."""

    judgments: int | None = None
    """Start once so many current judgments of the round are in; null does not count them."""
    at: str | None = None
    """Start at this time, as ISO 8601 with a time zone (2026-01-31T22:00+01:00); null sets none."""

    def __post_init__(self) -> None:
        require_types(self, "start")
        if self.judgments is not None:
            require_integer(self.judgments, "start, judgments", 1, 100_000_000)
        if self.at is not None:
            require(
                self.time is not None,
                "start, at",
                f"{self.at!r} is no time with a zone; write it as 2026-01-31T22:00+01:00",
            )

    @property
    def time(self) -> datetime.datetime | None:
        """`at`, as a moment; None where there is none."""
        try:
            moment = datetime.datetime.fromisoformat(self.at) if self.at else None
        except ValueError:
            return None
        return moment if moment and moment.tzinfo else None


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationSettings:
    """How a new policy is held against its parent."""

    prompts: int = 100
    """How many of the project's held-out prompts both answer; all where there are fewer. Some 94 show a true
    win rate of 70 % with a probability of 80 %."""
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    """How both are sampled, with the same seeds."""
    people: bool = False
    """Put the answers of both before annotators, blind, and wait for their judgments before deciding."""
    people_judgments: int = 30
    """How many of those judgments the decision waits for; as many as can be had where there are fewer."""
    evaluator: Literal["auto", "second", "same"] = "auto"
    """The reward model that scores the responses. second: one of its own, with another seed, trained on the
    judgments of one half of the training prompts; policy and reward model learn from the other half. same:
    the reward model of the round. auto: second from 200 decided training judgments on, else same."""
    rules: tuple[RewardPart, ...] = ()
    """Rules and metrics that score both texts: exact match, mathematics, unit tests, BLEU, length and so on.
    Those that need a reference leave out prompts without one."""

    def __post_init__(self) -> None:
        require_types(self, "evaluation")
        require_integer(self.prompts, "evaluation, prompts", 1, 100_000)
        require_integer(self.people_judgments, "evaluation, people_judgments", 1, 1_000_000)
        names = [rule.name for rule in self.rules]
        require(len(set(names)) == len(names), "evaluation, rules", "names must differ")
        for rule in self.rules:
            require(
                rule.kind in RULES_WITHOUT_TORCH,
                "evaluation, rules",
                f"{rule.name!r} is of kind {rule.kind!r}; take one of {', '.join(RULES_WITHOUT_TORCH)}",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class PromotionSettings:
    """What must hold for a new policy to be promoted; every condition that is set must."""

    by_hand: bool = False
    """A manager promotes or rejects; the conditions are only reported."""
    judged_by: Literal["reward_model", "people"] = "reward_model"
    """Whose verdicts the win rate counts: those of the round's reward model, or people's."""
    not_worse: bool = True
    """Decide by the win rate: promote where its 95 % interval lies above one half, reject where it lies
    below, and leave the decision to people where it includes one half. False decides by the other conditions
    alone."""
    least_differing_prompts: int = 20
    """On fewer held-out prompts with different responses the win rate decides nothing."""
    least_reward_model_judgments: int = 30
    """A reward model decides only where its accuracy was measured on at least this many held-out judgments
    and the interval of the accuracy lies above one half."""
    least_win_rate: float | None = None
    """The lower end of the interval of the win rate must reach this share; null does not ask."""
    least_reward_gain: float | None = None
    """The mean reward must rise by this much at least; null does not ask."""
    most_kl: float | None = None
    """The mean divergence from the base, in nats per answer, may be this at most; null does not ask."""
    most_length_ratio: float | None = None
    """Answers may be this many times as long as the parent's, in characters; null does not ask."""
    rules: dict[str, float] = field(default_factory=dict)
    """Least mean score by name of a rule of the evaluation."""

    def __post_init__(self) -> None:
        require_types(self, "promotion")
        require_integer(self.least_differing_prompts, "promotion, least_differing_prompts", 1, 100_000)
        require_integer(
            self.least_reward_model_judgments, "promotion, least_reward_model_judgments", 1, 1_000_000
        )
        if self.least_win_rate is not None:
            require_number(self.least_win_rate, "promotion, least_win_rate", 0, 1)
        require(self.most_kl is None or self.most_kl >= 0, "promotion, most_kl", "must not be negative")
        require(
            self.most_length_ratio is None or self.most_length_ratio > 0,
            "promotion, most_length_ratio",
            "must be positive or null",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetSettings:
    """What a round's training may cost."""

    hours: float | None = None
    """Hours after which the training of a round is stopped; null sets no end."""

    def __post_init__(self) -> None:
        require_types(self, "budget")
        require(self.hours is None or self.hours > 0, "budget, hours", "must be positive or null")


def require_number(value: Any, where: str, low: float, high: float) -> None:
    """Refuse what is no number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ContractError(f"{where}: must be a number from {low} to {high}, not {value!r}")


def require_integer(value: Any, where: str, low: int, high: int) -> None:
    """Refuse what is no whole number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ContractError(f"{where}: must be a whole number from {low} to {high}, not {value!r}")
