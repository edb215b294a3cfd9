"""Settings that every training method shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from annotation.record.base import (
    ContractError,
    Count,
    CountOrZero,
    Fraction,
    NotNegative,
    Positive,
    record,
    require,
)
from training.contract.chat_template import Thinking

ALL_LINEAR = "all-linear"
"""As a target: every linear layer of the base's blocks, those aside that choose experts."""


@record
class LoraSettings:
    """A low-rank adapter on the linear layers of the base (Hu et al. 2021)."""

    rank: Count = 16
    """Width of the two factors; more learns more and costs more memory."""
    alpha: Positive = 32.0
    """The update is scaled by alpha / rank."""
    dropout: Fraction = 0.0
    """Share of adapter inputs dropped in training; 0 keeps runs reproducible."""
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )
    """Names of the linear layers that are adapted; all-linear adapts every one of a block, and so does the
    default on a base that lacks some of these names."""
    layers: Count | None = None
    """Adapt only this many of the transformer's last blocks; null, or more than it has, adapts all.
    Fewer train faster: the backward pass ends at the first adapted block."""
    last: Count | None = None
    """The last block that is adapted, from which `layers` count back; null is the base's last, or the one
    that a reward model's score reads."""


@record
class OptimiserSettings:
    """The number and size of optimiser steps, the same for every method."""

    learning_rate: Positive | None = None
    """Peak step size of AdamW; null takes the default of the method for its adapter."""
    warmup_steps: CountOrZero = 5
    """Steps over which the learning rate rises from 0; it then follows the schedule."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """Schedule of the learning rate after the warm-up: cosine or linear decay to 0, or constant."""
    weight_decay: NotNegative = 0.0
    """Decoupled weight decay (Loshchilov & Hutter 2019)."""
    beta1: Fraction = 0.9
    """Share of AdamW's running mean of gradients that is kept at each step."""
    beta2: Fraction = 0.999
    """Share of AdamW's running mean of squared gradients that is kept at each step; 0.95 to 0.99 follows
    changing gradients faster, for runs of few steps or noisy rewards."""
    max_gradient_norm: Positive = 1.0
    """Gradients longer than this are scaled down to it."""
    batch_size: Count = 8
    """Annotations per optimiser step over all processes."""
    micro_batch_tokens: Annotated[int, Field(ge=16)] = 2048
    """Tokens per forward pass in one process: annotations are packed without padding until it is full;
    a longer one is processed alone. Raise it on a GPU, lower it when memory runs out. Changes speed
    and memory, not results."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: a third slower, and far less
    memory."""
    epochs: Count = 3
    """Passes over the training examples."""
    max_steps: Count | None = None
    """Stop after this many optimiser steps; None trains all epochs."""
    save_every: Count = 5
    """Optimiser steps between two saved states: what a killed run loses at most."""
    evaluate_every: CountOrZero = 10
    """Optimiser steps between two evaluations on the held-out split; 0 only at the end."""
    keep_best: bool = True
    """The checkpoint is the evaluated state with the lowest loss; false takes the last one. The loss is that
    of a tenth of the training prompts, which nothing is then learned from; with fewer than 20 annotations on
    these it is the held-out loss."""
    patience: Count | None = None
    """End the run after this many evaluations in a row without a lower loss, measured as for keep_best; null
    never does."""

    def __post_init__(self) -> None:
        require(
            self.patience is None or self.evaluate_every > 0,
            "patience",
            "needs evaluations on the way: set evaluate_every",
        )

    @property
    def peak(self) -> float:
        """Return the learning rate; raise `ContractError` where no run has resolved it yet."""
        if self.learning_rate is None:
            raise ContractError("learning_rate: is null; a RunSpec resolves it")
        return self.learning_rate


@record
class MethodSettings:
    """Settings of all methods: adapter, optimiser, and the tokenisation of prompts."""

    default_rates: ClassVar[Mapping[str, float]]
    """Default learning rate by adapter, as the sweep in tests/benchmarks/learning_rates.md shows."""

    adapter: Literal["lora", "none"] = "lora"
    """The trained weights: an adapter on the frozen base; or none, for all of the base's own weights, in
    float32 (full fine-tuning). The checkpoint is then a model of its own: several times the memory."""
    lora: LoraSettings = field(default_factory=LoraSettings)
    """The adapter that is trained; unused with adapter none."""
    optimiser: OptimiserSettings = field(default_factory=OptimiserSettings)
    """Steps and step sizes."""
    context: bool = False
    """Put the context passages before the question in the prompt."""
    max_tokens: Annotated[int, Field(ge=16)] = 1024
    """Longer rows are truncated at the front of the prompt; responses longer than this are dropped and
    listed."""

    @property
    def trained(self) -> LoraSettings | None:
        """Return the adapter that is trained; None if the whole base is."""
        return self.lora if self.adapter == "lora" else None

    @property
    def samples_on_server(self) -> bool:
        """Return whether a rollout server samples for the trainer."""
        return False

    def resolved(self) -> Self:
        """Return the settings with the default learning rate of method and adapter where none is set."""
        if self.optimiser.learning_rate is not None:
            return self
        optimiser = replace(self.optimiser, learning_rate=self.default_rates[self.adapter])
        return replace(self, optimiser=optimiser)


@record
class JudgedSettings(MethodSettings):
    """Settings of methods that learn from judged texts."""

    thinking: Thinking = "train"
    """Use of the thinking of a response, <think> … </think> or the channels of gpt-oss. train: it is
    learned from like the rest; mask: it is read, and only what follows it is learned from; strip: it is taken
    out. Responses without thinking are the same in all three."""


PARENT = "parent"
"""As a reference: the policy that training continues; the base where it continues none."""
BASE = "base"
"""As a reference: the base model, adapters off."""


def require_reference(reference: str, digest: str | None) -> None:
    """Raise `ContractError` for a reference without a name, or a digest without a named reference."""
    require(bool(reference.strip()), "reference", "write parent, base, or the name of a checkpoint")
    require(
        digest is None or reference not in (PARENT, BASE),
        "reference_digest",
        "only a reference that is a checkpoint has one; leave it empty",
    )
