"""Runs of the policy gradient for tests: a few prompts, a rule that rewards short answers, the tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.rlhf.runs import make_run
from training.contract.snapshot import Message, SnapshotPrompt, Split

SHORT = {"name": "short", "kind": "length", "options": {"most": 2, "slack": 30, "unit": "characters"}}
"""1 up to two characters, 0 from 32 on: what an untrained model writes earns about half."""

PPO: dict[str, Any] = {
    "advantage": {"kind": "gae", "whiten": True},
    "kl": {"place": "reward", "kind": "k1", "beta": 0.02, "target": 2.0, "horizon": 100.0},
    "update": {"inner_epochs": 2, "minibatches": 2, "value_pace": 2.0},
}
GRPO: dict[str, Any] = {
    "advantage": {"kind": "group_relative"},
    "kl": {"place": "loss", "kind": "k3", "beta": 0.02},
    "update": {"inner_epochs": 1, "aggregate": "sequence"},
}
BEST_OF_K: dict[str, Any] = {
    "advantage": {"kind": "best_and_worst"},
    "kl": {"place": "loss", "kind": "k3", "beta": 0.1},
    "update": {"loss": "dpo"},
}
GSPO: dict[str, Any] = {
    **{"advantage": {"kind": "group_relative"}, "kl": {"place": "none"}},
    "update": {"ratio": "sequence", "aggregate": "sequence", "clip_low": 0.01, "clip_high": 0.02},
}
CISPO: dict[str, Any] = {
    **{"advantage": {"kind": "group_relative"}, "kl": {"place": "none"}},
    "update": {"loss": "cispo", "inner_epochs": 2, "clip_low": 1.0, "clip_high": 4.0},
}
RAFT: dict[str, Any] = {"advantage": {"kind": "best"}, "kl": {"place": "none"}}
REINFORCE: dict[str, Any] = {
    "advantage": {"kind": "running_mean"},
    "kl": {"place": "none"},
    "update": {"inner_epochs": 1},
}


def prompts(count: int = 6) -> list[SnapshotPrompt]:
    """Prompts of different length, the last one held out, one of them a conversation."""
    rows = []
    for index in range(count):
        question = Message(role="user", content=f"question {index}: " + "why? " * (index % 3))
        turns: tuple[Message, ...] = (question,)
        if index == 1:
            turns = (
                question,
                Message(role="assistant", content="the sun"),
                Message(role="user", content="how?"),
            )
        split: Split = "held-out" if index == count - 1 else "train"
        rows.append(SnapshotPrompt(id=f"p{index}", split=split, messages=turns, reference="the sun"))
    return rows


def make_sampled_run(
    folder: Path,
    base: Path,
    method: dict[str, Any],
    *,
    settings: dict[str, Any] | None = None,
    optimiser: dict[str, Any] | None = None,
    **more: Any,
) -> Path:
    """A run of the policy gradient, ready to be started."""
    return make_run(
        folder,
        base,
        (),
        method="policy_gradient",
        prompts=prompts(),
        settings={
            "rewards": [SHORT],
            "rollout": {"samples": 4, "max_tokens": 12},
            "watch": {"length_drift": None},
            **method,
            **(settings or {}),
        },
        optimiser={
            "batch_size": 4,
            "epochs": 3,
            "learning_rate": 1e-2,
            "evaluate_every": 0,
            "keep_best": False,
            **(optimiser or {}),
        },
        **more,
    )
