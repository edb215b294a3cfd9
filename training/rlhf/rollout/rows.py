"""One sample on its way from a prompt to its end, and the request that it belongs to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from training.rlhf.model.backbone import Backbone
from training.rlhf.rollout.distribution import Noise, noise_of
from training.rlhf.rollout.limits import context_length
from training.rlhf.rollout.prefixes import Known
from training.rlhf.rollout.samples import Delta, OnDelta, Sample, TokenLogProb
from training.rlhf.rollout.text import TextStream
from training.rlhf.sampling import FinishReason, SamplingParameters

if TYPE_CHECKING:
    from training.rlhf.rollout.constraint import Constraint


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleRequest:
    """One sample that is asked for."""

    prompt: tuple[int, ...]
    """Token ids, rendered chat included; not empty and shorter than the context."""
    parameters: SamplingParameters
    """Parameters of the draw; its seed is the next field."""
    seed: int
    adapter: str | None = None
    """Adapter that writes it; None is the base."""
    place: tuple[int, int] = (0, 0)
    """The numbers of prompt and sample in its deltas."""
    constraint: Constraint | None = None
    """Grammar that the sample is of; None leaves it free."""


@dataclass(slots=True, eq=False)
class Slot:
    """A prompt as one adapter reads it: what all samples of it have in common."""

    adapter: str | None
    prompt: tuple[int, ...]
    users: int = 0
    """Samples that are not finished; with the last one the prompt is forgotten."""
    broken: bool = False
    """True if it led to a number that is not finite."""
    known: Known | None = None
    """Its beginning that need not be read, from when it is looked up until it is used."""


class Handle:
    """The samples of one request, in the order in which they were asked for."""

    def __init__(self, on_delta: OnDelta | None) -> None:
        self.on_delta = on_delta
        self.rows: list[Row] = []
        self.error: Exception | None = None
        """Error of one of its samples; then none of them goes on."""

    @property
    def finished(self) -> bool:
        """Return whether nothing more will come."""
        return self.error is not None or all(row.finished is not None for row in self.rows)

    @property
    def samples(self) -> list[Sample]:
        """Return all of them. Raises what went wrong."""
        if self.error is not None:
            raise self.error
        return [row.finished for row in self.rows if row.finished is not None]


@dataclass(slots=True, eq=False)
class Row:
    """One sample being written."""

    wanted: SampleRequest
    handle: Handle
    slot: Slot
    generator: Noise
    text: TextStream
    limit: int
    """Tokens at most."""
    constraint: Constraint | None = None
    """Grammar of the sample, and how much of it is written."""
    read: int = 0
    """Number of its tokens in the slot's prompt: those that it had when it had to begin again."""
    tokens: list[TokenLogProb] = field(default_factory=list)
    streamed_tokens: int = 0
    finished: Sample | None = None

    @classmethod
    def begin(cls, backbone: Backbone, sample: SampleRequest, handle: Handle, slot: Slot) -> Row:
        """Return a sample without tokens."""
        return cls(
            wanted=sample,
            handle=handle,
            slot=slot,
            generator=noise_of(sample.seed, backbone.device),
            text=TextStream(backbone.tokenizer, sample.parameters.stop),
            limit=min(sample.parameters.max_tokens, context_length(backbone) - len(sample.prompt)),
            constraint=sample.constraint and sample.constraint.begin(),
        )

    @property
    def alive(self) -> bool:
        """Return whether it goes on."""
        return self.finished is None and self.handle.error is None

    @property
    def place(self) -> int:
        """Return the position of the token that it drew last."""
        return len(self.wanted.prompt) + len(self.tokens) - 1

    def append(self, token: TokenLogProb, ends: frozenset[int], tokenizer: object) -> None:
        """Take the token that was drawn. Raises `FloatingPointError` where that had no probability, and
        `ConstraintError` where the grammar has become too complex."""
        if not math.isfinite(token.log_prob):
            self.slot.broken = True
            raise FloatingPointError("the model's probabilities are not finite numbers")
        self.tokens.append(token)
        ended = token.id in ends
        if self.constraint is not None and not ended:
            self.constraint.advance(token.id)
        delta = self.text.push(token.id) if self._needs_text and not ended else ""
        if ended or self.text.stopped:
            self.finish("stop", tokenizer, delta, ended=ended)
        elif len(self.tokens) >= self.limit:
            self.finish("length", tokenizer, delta)
        elif delta:
            self._tell(delta)

    @property
    def _needs_text(self) -> bool:
        return self.handle.on_delta is not None or bool(self.wanted.parameters.stop)

    def finish(
        self, reason: FinishReason, tokenizer: object, delta: str = "", *, ended: bool = False
    ) -> None:
        """End the sample, and emit its last delta."""
        if not self._needs_text:
            self.text = TextStream(tokenizer)
            self.text.extend(token.id for token in self.tokens[: len(self.tokens) - ended])
        delta += self.text.finish(complete=ended)
        if self.text.stopped:
            # A stop string can also show only now, in bytes that were held back.
            reason = "stop"
        self.finished = Sample(
            tokens=tuple(self.tokens),
            text=self.text.text,
            visible_tokens=self.text.visible_tokens,
            finish_reason=reason,
            seed=self.wanted.seed,
        )
        self._tell(delta)

    def _tell(self, text: str) -> None:
        if self.handle.on_delta is None:
            return
        shown = self.text.visible_tokens
        tokens = tuple(self.tokens[self.streamed_tokens : shown])
        self.streamed_tokens = max(self.streamed_tokens, shown)
        prompt, sample = self.wanted.place
        self.handle.on_delta(
            Delta(prompt=prompt, sample=sample, text=text, tokens=tokens, finished=self.finished)
        )


def tokens_held(rows: Sequence[Row]) -> int:
    """Places that the keys of these rows take at most: every prompt as long as the longest, every sample as
    long as the one that may become longest."""
    if not rows:
        return 0
    slots = {row.slot for row in rows}
    longest = max(len(slot.prompt) for slot in slots)
    return len(slots) * longest + len(rows) * max(row.limit - row.read for row in rows)
