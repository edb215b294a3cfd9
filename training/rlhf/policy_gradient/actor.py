"""A language model as the actor of a step: what it makes of the answers that it gave.

The answers to a prompt stand in one packed row after that prompt, which is encoded once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from training.rlhf.kl import full
from training.rlhf.loop.log_probabilities import token_log_probabilities
from training.rlhf.losses import entropy as entropy_of
from training.rlhf.model.backbone import Backbone
from training.rlhf.policy_gradient.update import Evaluated
from training.rlhf.rollout.distribution import sampling_log_probs
from training.rlhf.runtime.processes import Share
from training.rlhf.runtime.run_folder import log
from training.rlhf.sampling import SamplingParameters
from training.rlhf.tokens.encoding import EncodedAnswer
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import PackedRow, pack_predictions, packed_tokens

_CHUNK = 512
"""Tokens whose logits are held at a time: 512 × 49,152 × 4 bytes are 100 MB, a few times over."""

Head = Callable[[Tensor], Tensor]
"""States (N, hidden) to logits (N, vocabulary)."""


class TokenFigures(NamedTuple):
    """Figures of each drawn token, (N,) float32 each; None where not requested."""

    logp: Tensor
    """log π of the token."""
    entropy: Tensor | None
    """−Σ π log π, in nats."""
    full_kl: Tensor | None
    """KL(π ‖ π_ref) over the whole vocabulary, in nats. π_ref has the temperature and no filter: what the
    filters cut from π counts as distance."""


def token_figures(
    states: Tensor,
    targets: Tensor,
    head: Head,
    parameters: SamplingParameters,
    *,
    entropy: bool = False,
    reference: tuple[Tensor, Head] | None = None,
) -> TokenFigures:
    """log π of the `targets` and, if wished, entropy and divergence, with gradient to states and head.

    states (N, hidden), targets (N,). reference: states (N, hidden) and head of π_ref, without gradient.
    The logits of a chunk are let go and computed again in the backward pass.

    With temperature τ, the policy is softmax(logits / τ), cut to the tokens that top-k and top-p leave and
    normalised again, just as it was sampled from. The drawn token is always among them: once the policy has
    moved, its own filter might leave it out, and its probability would be 0 for good.
    """
    chunks: list[tuple[Tensor, ...]] = []
    for start in range(0, len(targets), _CHUNK):
        part = slice(start, start + _CHUNK)
        ref_states, ref_head = (None, head) if reference is None else (reference[0][part], reference[1])

        def chunk(
            rows: Tensor,
            chunk_targets: Tensor = targets[part],
            ref_rows: Tensor | None = ref_states,
            ref_head: Head = ref_head,
        ) -> tuple[Tensor, ...]:
            logits = _filtered(head(rows).float(), chunk_targets, parameters)
            values = [-F.cross_entropy(logits, chunk_targets, reduction="none")]
            if entropy:
                values.append(entropy_of(logits))
            if ref_rows is not None:
                with torch.no_grad():
                    ref_logits = ref_head(ref_rows).float() / _divisor(parameters)
                values.append(full(logits, ref_logits))
            return tuple(values)

        rows = states[part]
        again = torch.is_grad_enabled() and rows.requires_grad
        chunks.append(checkpoint(chunk, rows, use_reentrant=False) if again else chunk(rows))
    columns = [torch.cat(column) for column in zip(*chunks, strict=True)]
    logp, *rest = columns
    return TokenFigures(
        logp, rest[0] if entropy else None, rest[-1] if reference is not None and rest else None
    )


def _filtered(logits: Tensor, targets: Tensor, parameters: SamplingParameters) -> Tensor:
    """Logits / τ with −∞ where the sampler's filters leave no token."""
    scaled = logits / _divisor(parameters)
    if not parameters.top_k and parameters.top_p == 1:
        return scaled
    with torch.no_grad():
        allowed = sampling_log_probs(logits, parameters) > -torch.inf
        allowed.scatter_(1, targets[:, None], True)
    return scaled.masked_fill(~allowed, -torch.inf)


def _divisor(parameters: SamplingParameters) -> float:
    # Greedy answers are looked at under the model's own distribution: that of temperature 0 says nothing.
    return parameters.temperature or 1.0


_Result = TypeVar("_Result")

_LEAST_TOKENS = 64
"""Passes are not cut further than this when memory runs out."""

VALUE = "value"
"""Name of the value head and of the adapter that it reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """The adapters on one backbone that a step asks."""

    policy: str
    value: str | None
    """None where no advantage asks for a value head."""
    reference: str | None
    """None is the base."""


class LanguageActor:
    """B answers of T tokens at most, as a policy, its value head and its reference see them.

    `tokens` bounds a forward pass; an answer that is longer goes alone. Nothing drops out: π_old and the
    first pass of the update are to be the same number.
    """

    def __init__(
        self,
        backbone: Backbone,
        models: Models,
        *,
        answers: Sequence[EncodedAnswer],
        group: Sequence[int],
        parameters: SamplingParameters,
        tokens: int,
        entropy: bool = False,
        full_kl: bool = False,
        share: Share | None = None,
    ) -> None:
        """answers: prompt + drawn ids of each. group: the prompt that each belongs to; equal numbers lie
        together. parameters: temperature and filters that they were drawn under.
        share: of the answers that this process computes; None is all."""
        self._backbone = backbone
        self._share = share or Share()
        self._models = models
        self._answers = answers
        self._group = group
        self._parameters = parameters
        self._entropy, self._full_kl = entropy, full_kl
        self._width = max(sum(end - start for start, end in answer.learned_runs) for answer in answers)
        self.tokens = tokens

    @property
    def is_plain(self) -> bool:
        """Return whether `evaluate` gives only log π without filters, like the reference's passes."""
        filtered = self._parameters.top_k or self._parameters.top_p < 1
        return not (filtered or self._entropy or self._full_kl)

    def passes(self, rows: Sequence[int]) -> Iterator[list[int]]:
        """The rows in order, cut into passes of at most `tokens`; a prompt's answers part only where they do
        not fit into one."""
        together: list[int] = []
        filled = 0
        for _, members in groupby(rows, key=lambda row: self._group[row]):
            for part in self._fitting(list(members)):
                size = packed_tokens(self._example(part))
                if together and filled + size > self.tokens:
                    yield together
                    together, filled = [], 0
                together = together + part
                filled += size
        if together:
            yield together

    def evaluate(self, rows: list[int]) -> Evaluated:
        """log π, and what else the update asks for, of these answers' tokens: (b, T) each, with gradient."""
        batch = self._pack(rows)
        figures = self._figures(batch, entropy=self._entropy, full_kl=self._full_kl)
        values = None if self._models.value is None else self._values(batch, self._models.value)
        more = (
            None if column is None else self._spread(batch, column)
            for column in (figures.entropy, values, figures.full_kl)
        )
        return Evaluated(self._spread(batch, figures.logp), *more)

    def halve(self) -> bool:
        """Half as large passes from now on, as memory ran out; False where they are small already."""
        if self.tokens <= _LEAST_TOKENS:
            return False
        self.tokens //= 2
        log.warning(
            "Out of memory: forward passes have at most %d tokens from here on; set micro_batch_tokens to "
            "that, so that the next run need not find out",
            self.tokens,
        )
        if self._backbone.device.type == "cuda":
            torch.cuda.empty_cache()
        return True

    def within_memory(self, compute: Callable[[], _Result]) -> _Result:
        """Return the result of `compute`, retried in smaller passes where memory runs out."""
        while True:
            try:
                return compute()
            except torch.OutOfMemoryError:
                if not self.halve():
                    raise

    @torch.no_grad()
    def log_probabilities(self) -> Tensor:
        """(B, T) log π of all drawn tokens under the sampler's temperature and filters."""
        return self._all(lambda batch: self._figures(batch).logp)

    def reference_log_probabilities(self, rows: Sequence[int] | None = None) -> Tensor:
        """(B, T) log π_ref of all drawn tokens, under the temperature and no filter.

        rows: the answers to ask about; the others are 0. None is all.
        """
        return self._unfiltered(self._models.reference, rows)

    def base_log_probabilities(self, rows: Sequence[int] | None = None) -> Tensor:
        """(B, T) the same of the base."""
        return self._unfiltered(None, rows)

    def unfiltered_log_probabilities(self, rows: Sequence[int] | None = None) -> Tensor:
        """(B, T) the same of the policy."""
        return self._unfiltered(self._models.policy, rows)

    @torch.no_grad()
    def _unfiltered(self, adapter: str | None, rows: Sequence[int] | None) -> Tensor:
        parameters = SamplingParameters(temperature=self._parameters.temperature)
        return self._all(lambda batch: self._token_figures(batch, adapter, parameters).logp, rows)

    @torch.no_grad()
    def full_divergence(self) -> Tensor:
        """(B, T) KL(π ‖ π_ref) over the whole vocabulary before each token."""
        return self._all(lambda batch: _required(self._figures(batch, full_kl=True).full_kl))

    @torch.no_grad()
    def values(self) -> Tensor:
        """(B, T) what the value head expects before each token."""
        name = self._models.value or VALUE
        return self._all(lambda batch: self._values(batch, name))

    def _fitting(self, members: list[int]) -> Iterator[list[int]]:
        """A prompt's answers, halved until each part fits or is one answer."""
        if len(members) == 1 or packed_tokens(self._example(members)) <= self.tokens:
            yield members
            return
        middle = (len(members) + 1) // 2
        yield from self._fitting(members[:middle])
        yield from self._fitting(members[middle:])

    def _example(self, rows: Sequence[int]) -> Example:
        answers = tuple(self._answers[row] for row in rows)
        return Example("", answers, (0,) * len(answers))

    def _pack(self, rows: Sequence[int]) -> PackedRow:
        groups = (
            [self._answers[row] for row in members]
            for _, members in groupby(rows, key=lambda row: self._group[row])
        )
        return pack_predictions(groups, device=self._backbone.device)

    def _figures(self, batch: PackedRow, *, entropy: bool = False, full_kl: bool = False) -> TokenFigures:
        return self._token_figures(
            batch, self._models.policy, self._parameters, entropy=entropy, full_kl=full_kl
        )

    def _token_figures(
        self,
        batch: PackedRow,
        adapter: str | None,
        parameters: SamplingParameters,
        *,
        entropy: bool = False,
        full_kl: bool = False,
    ) -> TokenFigures:
        """(A,) of an adapter. What several answers share is predicted once."""
        targets, predictors, where = batch.predicted()
        states = self._states(batch, adapter)[predictors]
        head = self._backbone.policy_head(adapter)
        plain = parameters.temperature == 1 and not parameters.top_k and parameters.top_p == 1
        if plain and not entropy and not full_kl:
            return TokenFigures(token_log_probabilities(states, targets, head)[where], None, None)
        reference = None
        if full_kl:
            with torch.no_grad():
                ref_states = self._states(batch, self._models.reference)[predictors]
            reference = (ref_states, self._backbone.policy_head(self._models.reference))
        figures = token_figures(states, targets, head, parameters, entropy=entropy, reference=reference)
        more = (None if column is None else column[where] for column in figures[1:])
        return TokenFigures(figures.logp[where], *more)

    def _states(self, batch: PackedRow, adapter: str | None) -> Tensor:
        with self._backbone.using(adapter):
            return self._backbone.packed_states(batch.input_ids, batch.position_ids, batch.layout)

    def _values(self, batch: PackedRow, name: str) -> Tensor:
        """(A,) read from the token before, which is all that was known when the token was drawn."""
        return self._backbone.score(name, self._states(batch, name)[batch.predictors], head=VALUE)

    def _all(self, compute: Callable[[PackedRow], Tensor], asked: Sequence[int] | None = None) -> Tensor:
        rows = self._share.rows(self._group, asked)

        def all_passes() -> Tensor:
            values = torch.zeros(len(self._answers), self._width, device=self._backbone.device)
            for part in self.passes(rows):
                batch = self._pack(part)
                values[part] = self._spread(batch, compute(batch)).to(values.dtype)
            return values

        return self._share.filled(self.within_memory(all_passes))

    def _spread(self, batch: PackedRow, values: Tensor) -> Tensor:
        """(A,) to (b, T), 0 after an answer's end."""
        lengths = batch.answer_tokens
        first = lengths.cumsum(0) - lengths
        column = torch.arange(len(values), device=values.device) - first[batch.target_answer]
        return values.new_zeros(batch.answers, self._width).index_put((batch.target_answer, column), values)


def _required(figures: Tensor | None) -> Tensor:
    if figures is None:
        raise TypeError("a figure that was asked for is missing")
    return figures
