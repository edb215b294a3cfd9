"""One dataclass per training method: every setting with its meaning, checked when built."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from training.contract.files import ContractError, known_fields, require, require_types

Method = Literal["reward", "preference"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraSettings:
    """A low-rank adapter on the linear layers of the base (Hu et al. 2021)."""

    rank: int = 16
    """Width of the two factors; more learns more and costs more memory."""
    alpha: float = 32.0
    """The update is scaled by alpha / rank."""
    dropout: float = 0.0
    """Share of adapter inputs dropped in training; 0 keeps runs reproducible."""
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Names of the linear layers that are adapted."""
    layers: int | None = None
    """Adapt only this many of the transformer's last blocks; null, or more than it has, adapts all.
    Fewer train faster: the backward pass ends at the first adapted block."""

    def __post_init__(self) -> None:
        require_types(self, "lora")
        require(self.rank >= 1, "rank", "must be at least 1")
        require(self.alpha > 0, "alpha", "must be positive")
        require(0 <= self.dropout < 1, "dropout", "must lie in [0, 1)")
        require(bool(self.targets), "targets", "name at least one linear layer")
        require(self.layers is None or self.layers >= 1, "layers", "must be at least 1 or null")


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimiserSettings:
    """How many steps are taken and how long each is; the same for every method."""

    learning_rate: float = 1e-4
    """Peak step size of AdamW."""
    warmup_steps: int = 5
    """Steps over which the learning rate rises from 0; it then falls to 0 along a cosine."""
    weight_decay: float = 0.0
    """Decoupled weight decay (Loshchilov & Hutter 2019)."""
    max_gradient_norm: float = 1.0
    """Gradients longer than this are scaled down to it."""
    batch_size: int = 8
    """Examples per optimiser step over all processes."""
    micro_batch_size: int = 1
    """Examples per forward pass in one process. An example is a judgment with all its answers, so 1 fills a
    CPU; raise it on a GPU, lower it when memory runs out. Changes speed and memory, not results."""
    epochs: int = 3
    """Passes over the training examples."""
    max_steps: int | None = None
    """Stop after this many optimiser steps; None trains all epochs."""
    save_every: int = 5
    """Optimiser steps between two saved states: what a killed run loses at most."""
    evaluate_every: int = 10
    """Optimiser steps between two evaluations on the held-out split; 0 only at the end."""

    def __post_init__(self) -> None:
        require_types(self, "optimiser")
        require(self.learning_rate > 0, "learning_rate", "must be positive")
        require(self.warmup_steps >= 0, "warmup_steps", "must not be negative")
        require(self.weight_decay >= 0, "weight_decay", "must not be negative")
        require(self.max_gradient_norm > 0, "max_gradient_norm", "must be positive")
        for name in ("batch_size", "micro_batch_size", "epochs", "save_every"):
            require(getattr(self, name) >= 1, name, "must be at least 1")
        require(self.evaluate_every >= 0, "evaluate_every", "must not be negative")
        require(self.max_steps is None or self.max_steps >= 1, "max_steps", "must be at least 1 or null")


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardSettings:
    """A reward model: one scalar at the last token of an answer (Bradley & Terry 1952)."""

    method: ClassVar[Method] = "reward"

    lora: LoraSettings = field(default_factory=LoraSettings)
    """The adapter that is trained with the head."""
    optimiser: OptimiserSettings = field(default_factory=OptimiserSettings)
    """Steps and step sizes."""
    margin_per_strength: float = 0.0
    """Margin asked for per step of stated strength (Touvron et al. 2023); 0 asks for none."""
    label_smoothing: float = 0.0
    """Probability that a stated preference is taken to be the other way round."""
    centring: float = 0.01
    """Weight of the mean squared sum of rewards, which fixes their origin (Eisenstein et al. 2023)."""
    use_corrections: bool = False
    """Learn from every corrected answer, beside the rankings, that the corrected text is better than the
    original. Held-out figures stay those of what people chose. Off in a run that does not say so."""
    context: bool = False
    """Put the context passages before the question in the prompt."""
    max_tokens: int = 1024
    """Longer rows lose tokens at the front of the prompt; answers longer than this are dropped and listed."""

    def __post_init__(self) -> None:
        require_types(self, "reward settings")
        require(self.margin_per_strength >= 0, "margin_per_strength", "must not be negative")
        require(0 <= self.label_smoothing < 0.5, "label_smoothing", "must lie in [0, 0.5)")
        require(self.centring >= 0, "centring", "must not be negative")
        require(self.max_tokens >= 16, "max_tokens", "must be at least 16")


@dataclass(frozen=True, kw_only=True, slots=True)
class PreferenceSettings:
    """Direct preference optimisation of a policy (Rafailov et al. 2023, equation 7)."""

    method: ClassVar[Method] = "preference"

    lora: LoraSettings = field(default_factory=LoraSettings)
    """The adapter that is the policy; with it off the base is the reference."""
    optimiser: OptimiserSettings = field(default_factory=lambda: OptimiserSettings(learning_rate=5e-5))
    """Steps and step sizes."""
    beta: float = 0.1
    """How dear it is to leave the reference; smaller moves further."""
    loss: Literal["sigmoid", "ipo", "hinge", "robust"] = "sigmoid"
    """Shape of the loss on the margin."""
    label_smoothing: float = 0.0
    """Probability that a stated preference is taken to be the other way round."""
    use_corrections: bool = False
    """Learn from every corrected answer, beside the rankings, that the corrected text is better than the
    original. Held-out figures stay those of what people chose. Off in a run that does not say so."""
    context: bool = False
    """Put the context passages before the question in the prompt."""
    max_tokens: int = 1024
    """Longer rows lose tokens at the front of the prompt; answers longer than this are dropped and listed."""

    def __post_init__(self) -> None:
        require_types(self, "preference settings")
        require(self.beta > 0, "beta", "must be positive")
        require(self.loss in ("sigmoid", "ipo", "hinge", "robust"), "loss", f"{self.loss!r} is not known")
        require(0 <= self.label_smoothing < 0.5, "label_smoothing", "must lie in [0, 0.5)")
        require(self.max_tokens >= 16, "max_tokens", "must be at least 16")


Settings = RewardSettings | PreferenceSettings
SETTINGS: dict[str, type[RewardSettings] | type[PreferenceSettings]] = {
    RewardSettings.method: RewardSettings,
    PreferenceSettings.method: PreferenceSettings,
}


def settings_from_json(method: str, values: Mapping[str, Any]) -> Settings:
    """The settings of a method, defaults filled in. Raises `ContractError` naming the field."""
    if method not in SETTINGS:
        raise ContractError(f"method {method!r} is not known; it is one of {', '.join(sorted(SETTINGS))}")
    cls = SETTINGS[method]
    known = known_fields(cls, values, f"{method} settings")
    if "lora" in known:
        lora = known_fields(LoraSettings, known["lora"], f"{method} settings, lora")
        if isinstance(lora.get("targets"), list):
            lora["targets"] = tuple(lora["targets"])
        known["lora"] = LoraSettings(**lora)
    if "optimiser" in known:
        # A method's own defaults stand for what the caller leaves out.
        optimiser = known_fields(OptimiserSettings, known["optimiser"], f"{method} settings, optimiser")
        known["optimiser"] = dataclasses.replace(cls().optimiser, **optimiser)
    return cls(**known)
