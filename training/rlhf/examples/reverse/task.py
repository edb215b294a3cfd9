"""The two settings of the task: a character-level model from scratch, and the course's model and recipe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from training.contract import PolicyGradientSettings, SftSettings, settings_from_json

GOAL = 0.926
"""Exact match that the course's recipe ends with (CMU 11-711, lecture 17)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Task: reverse a name, with its examples and settings."""

    wording: str
    """The question, with `{name}` in it."""
    max_tokens: int
    """Longest prompt + answer."""
    answer_tokens: int
    """Longest answer, its end token included."""
    asked: int | None
    """Number of names of dev it is measured on, the first ones; None takes all."""
    imitation: dict[str, Any] = field(default_factory=dict)
    """Steps of the supervised run."""
    reinforcement: dict[str, Any] = field(default_factory=dict)
    """Steps of the sampled run; batch_size counts prompts."""
    letters: float = 0.0
    """Weight of chrF, which rewards letters that stand together rightly, in addition to 1 for a right answer:
    so the answers to a name that is never reversed differ, too."""
    inner_epochs: int = 3
    """Passes over a step's answers."""

    def sft(self, **changed: int | None) -> SftSettings:
        """Settings of the supervised run; `changed` are optimiser settings, those that are not None."""
        settings = settings_from_json(
            "sft",
            {
                "adapter": "none",
                "max_tokens": self.max_tokens,
                "optimiser": _steps(self.imitation, changed),
            },
        )
        assert isinstance(settings, SftSettings)  # noqa: S101 - for the type checker
        return settings

    def policy_gradient(self, **changed: int | None) -> PolicyGradientSettings:
        """Settings of the sampled run: GRPO with the whole batch's deviation, a clip that leaves the unlikely
        room to grow, and nothing that holds the policy near where it began.

        `changed` are optimiser settings, those that are not None.
        """
        settings = settings_from_json(
            "policy_gradient",
            {
                "adapter": "none",
                "max_tokens": self.max_tokens,
                "optimiser": _steps(self.reinforcement, changed),
                "rewards": [
                    {"name": "exact", "kind": "exact_match"},
                    *([{"name": "letters", "kind": "chrf", "weight": self.letters}] if self.letters else []),
                ],
                "rollout": {"samples": 8, "max_tokens": self.answer_tokens},
                "advantage": {"kind": "group_relative", "scale": False, "whiten": True},
                "kl": {"place": "none"},
                "update": {"inner_epochs": self.inner_epochs, "clip_low": 0.2, "clip_high": 1.0},
            },
        )
        assert isinstance(settings, PolicyGradientSettings)  # noqa: S101 - for the type checker
        return settings


def _steps(steps: dict[str, Any], changed: dict[str, int | None]) -> dict[str, Any]:
    return {**steps, **{name: value for name, value in changed.items() if value is not None}}


CHARACTERS = Task(
    wording="{name}",
    max_tokens=48,
    answer_tokens=17,
    asked=None,
    imitation={
        "learning_rate": 2e-3,
        "weight_decay": 0.01,
        "warmup_steps": 50,
        "batch_size": 64,
        "micro_batch_tokens": 4096,
        "epochs": 100,
        "max_steps": 145,
        "save_every": 200,
        "evaluate_every": 0,
        "keep_best": False,
    },
    reinforcement={
        "learning_rate": 4e-4,
        "warmup_steps": 20,
        "batch_size": 128,
        "micro_batch_tokens": 16384,
        "epochs": 100,
        "max_steps": 800,
        "save_every": 100,
        "evaluate_every": 100,
        "keep_best": False,
    },
    letters=0.5,
    inner_epochs=1,
)
"""660,000 parameters, drawn at random; minutes on two cores."""

COURSE = Task(
    wording="Reverse the name: {name}.",
    max_tokens=96,
    answer_tokens=10,
    asked=500,
    imitation={
        "learning_rate": 5e-5,
        "warmup_steps": 0,
        "batch_size": 16,
        "micro_batch_tokens": 4096,
        "epochs": 1,
        "save_every": 400,
        "evaluate_every": 0,
        "keep_best": False,
    },
    reinforcement={
        "learning_rate": 1e-5,
        "warmup_steps": 0,
        "batch_size": 32,
        "micro_batch_tokens": 8192,
        "epochs": 3,
        "save_every": 200,
        "evaluate_every": 200,
        "keep_best": False,
    },
)
"""SmolLM2-135M as the course trained it: one epoch of imitation, three of reinforcement, all weights."""
