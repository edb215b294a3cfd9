"""Settings that every training method shares."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from training.contract.files import require, require_types


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
    """Steps over which the learning rate rises from 0; it then follows the schedule."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How the learning rate goes on after the warm-up: it falls to 0 along half a cosine or a straight line,
    or stays."""
    weight_decay: float = 0.0
    """Decoupled weight decay (Loshchilov & Hutter 2019)."""
    beta1: float = 0.9
    """Share of AdamW's running mean of gradients that is kept at each step."""
    beta2: float = 0.999
    """Share of AdamW's running mean of squared gradients that is kept at each step; 0.95 to 0.99 follows
    changing gradients faster, for runs of few steps or noisy rewards."""
    max_gradient_norm: float = 1.0
    """Gradients longer than this are scaled down to it."""
    batch_size: int = 8
    """Judgments per optimiser step over all processes."""
    micro_batch_tokens: int = 2048
    """Tokens per forward pass in one process: judgments are packed without padding until it is full; one
    that is longer goes alone. Raise it on a GPU, lower it when memory runs out. Changes speed and memory,
    not results."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: a third slower, and far less
    memory."""
    epochs: int = 3
    """Passes over the training examples."""
    max_steps: int | None = None
    """Stop after this many optimiser steps; None trains all epochs."""
    save_every: int = 5
    """Optimiser steps between two saved states: what a killed run loses at most."""
    evaluate_every: int = 10
    """Optimiser steps between two evaluations on the held-out split; 0 only at the end."""
    keep_best: bool = True
    """The checkpoint is the evaluated state with the lowest held-out loss; false takes the last one."""
    patience: int | None = None
    """End the run after this many evaluations in a row without a lower held-out loss; null never does."""

    def __post_init__(self) -> None:
        require_types(self, "optimiser")
        require(self.learning_rate > 0, "learning_rate", "must be positive")
        require(self.warmup_steps >= 0, "warmup_steps", "must not be negative")
        require(self.weight_decay >= 0, "weight_decay", "must not be negative")
        for name in ("beta1", "beta2"):
            require(0 <= getattr(self, name) < 1, name, "must lie in [0, 1)")
        require(self.max_gradient_norm > 0, "max_gradient_norm", "must be positive")
        for name in ("batch_size", "epochs", "save_every"):
            require(getattr(self, name) >= 1, name, "must be at least 1")
        require(self.micro_batch_tokens >= 16, "micro_batch_tokens", "must be at least 16")
        require(self.evaluate_every >= 0, "evaluate_every", "must not be negative")
        require(self.max_steps is None or self.max_steps >= 1, "max_steps", "must be at least 1 or null")
        require(self.patience is None or self.patience >= 1, "patience", "must be at least 1 or null")
        require(
            self.patience is None or self.evaluate_every > 0,
            "patience",
            "needs evaluations on the way: set evaluate_every",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodSettings:
    """What all methods have: an adapter, an optimiser, and how prompts become tokens."""

    adapter: Literal["lora", "none"] = "lora"
    """What is trained: an adapter on the frozen base, or none, and all of the base's own weights are, in
    float32 (full fine-tuning). The checkpoint is then a model of its own: several times the memory."""
    lora: LoraSettings = field(default_factory=LoraSettings)
    """The adapter that is trained; unused with adapter none."""
    optimiser: OptimiserSettings = field(default_factory=OptimiserSettings)
    """Steps and step sizes."""
    context: bool = False
    """Put the context passages before the question in the prompt."""
    max_tokens: int = 1024
    """Longer rows lose tokens at the front of the prompt; answers longer than this are dropped and listed."""

    def __post_init__(self) -> None:
        require_types(self, f"{type(self).__name__}")
        require(self.max_tokens >= 16, "max_tokens", "must be at least 16")

    @property
    def trained(self) -> LoraSettings | None:
        """The adapter that is trained; None where it is all of the base."""
        return self.lora if self.adapter == "lora" else None


PARENT = "parent"
"""As a reference: the policy that training continues; the base where it continues none."""
BASE = "base"
"""As a reference: the base model, adapters off."""


def require_reference(reference: str, digest: str | None) -> None:
    """Refuse a reference without a name, and a digest of one that has none."""
    require(bool(reference.strip()), "reference", "write parent, base, or the name of a checkpoint")
    require(
        digest is None or reference not in (PARENT, BASE),
        "reference_digest",
        "only a reference that is a checkpoint has one; leave it empty",
    )
