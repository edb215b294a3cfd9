"""A policy trained on its own samples: REINFORCE, PPO, GRPO, RLOO and fine-grained RLHF are its settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from training.contract import CheckpointKind, PolicyGradientSettings, RunSpec
from training.rlhf.loop.method import start_adapter
from training.rlhf.loop.reference import Reference
from training.rlhf.model.backbone import Backbone
from training.rlhf.policy_gradient.actor import VALUE, Models
from training.rlhf.policy_gradient.credit import CreditAssignment
from training.rlhf.policy_gradient.sampling import Sampled
from training.rlhf.policy_gradient.watch import LENGTH, REWARD, Watch, held_out_figure, part_figure
from training.rlhf.rewards.combination import Combination, Combined
from training.rlhf.rewards.from_settings import build_rewards
from training.rlhf.rewards.protocol import Score


class PolicyGradient:
    """Models, rewards and state of a policy-gradient run.

    Policy, value head, reward models and reference are adapters on one backbone. The reference is that of
    the settings, see `Reference`; where no divergence is paid for there is none. The value head
    reads an adapter of its own, shaped like the policy's, and says 0 before it has learned; it is saved with
    the run's state and is no part of the checkpoint.
    """

    kind: CheckpointKind = "policy"
    adapter = "policy"

    def __init__(
        self,
        backbone: Backbone,
        spec: RunSpec,
        settings: PolicyGradientSettings,
        *,
        folder: Path,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """`folder` is the run's, where relative paths of reward models begin. cancelled: whether the run was
        asked to stop."""
        self.settings = settings
        start_adapter(backbone, self.adapter, spec, settings.trained)
        self.models = Models(
            policy=self.adapter,
            value=VALUE if settings.advantage.kind == "gae" else None,
            reference=Reference(backbone, spec, settings.trained).adapter if self.asks_reference else None,
        )
        if self.models.value is not None:
            backbone.add_adapter(VALUE, settings.lora, seed=spec.seed)
            backbone.add_head(VALUE, VALUE, seed=spec.seed, scale=0.0)
        self.rewards = build_rewards(
            settings.rewards,
            backbone=backbone,
            folder=folder,
            clip=settings.reward_clip,
            context=settings.context,
            cancelled=cancelled,
        )
        self.watched: Combination | None = None
        if settings.watch.held_out:
            self.watched = build_rewards(
                settings.watch.held_out,
                backbone=backbone,
                folder=folder,
                context=settings.context,
                cancelled=cancelled,
            )
        self.credit = CreditAssignment(settings.advantage, settings.kl)
        self.watch = Watch(settings.watch, weights={part.name: part.weight for part in settings.rewards})

    @property
    def asks_reference(self) -> bool:
        """Return whether anything depends on the reference."""
        return self.settings.kl.place != "none"

    @property
    def reports_base(self) -> bool:
        """Return whether to report the divergence from the base: always under an adapter, which holds it
        anyway; under full fine-tuning only where it is the reference, as it costs memory."""
        return self.settings.adapter == "lora"

    @property
    def adapters(self) -> Mapping[str, float]:
        """Return the value adapter and its pace."""
        return {} if self.models.value is None else {self.models.value: self.settings.update.value_pace}

    def to_json(self) -> dict[str, Any]:
        """Running means, β, and what the watch has seen."""
        state = {"credit": self.credit.state_dict(), "rewards": self.rewards.state_dict()}
        state |= {"watch": self.watch.state_dict()}
        return state | ({"watched": self.watched.state_dict()} if self.watched else {})

    def load(self, values: Mapping[str, Any]) -> None:
        """Go on where `to_json` was taken."""
        self.credit.load_state_dict(values["credit"])
        self.rewards.load_state_dict(values["rewards"])
        self.watch.load_state_dict(values["watch"])
        if self.watched is not None:
            self.watched.load_state_dict(values["watched"])

    def close(self) -> None:
        """End what the rewards keep open."""
        for rewards in (self.rewards, self.watched):
            if rewards is not None:
                rewards.close()


def part_figures(combined: Combined, watched: Combined | None) -> dict[str, float]:
    """Mean score of each part of the reward, and of each that is watched; a part without any is left out."""
    figures = {part_figure(name): _mean(scores) for name, scores in combined.parts.items()}
    if watched is not None:
        figures |= {held_out_figure(name): _mean(scores) for name, scores in watched.parts.items()}
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def sample_figures(sampled: Sampled, totals: Sequence[Score]) -> dict[str, float]:
    """Mean reward of the answers that were scored, NaN where none was; lengths; how many were cut off."""
    lengths = sampled.lengths
    return {
        REWARD: _mean(totals),
        LENGTH: sum(lengths) / len(lengths),
        "unfinished": sum(sampled.unfinished) / len(lengths),
        "tokens": float(sum(lengths)),
        "answers": float(len(lengths)),
    }


def worth(score: Score) -> float:
    """Return a completion's total reward: its value and its segments'."""
    return score.value + math.fsum(segment.value for segment in score.segments)


def _mean(scores: Sequence[Score]) -> float:
    values = [worth(score) for score in scores if score.scored]
    return math.fsum(values) / len(values) if values else math.nan
