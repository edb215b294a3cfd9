"""The sampling loop: each prompt is read once, its K samples share what was read, and end on their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from training.rlhf.backbone import Backbone
from training.rlhf.rollout.distribution import draw, sampling_log_probs
from training.rlhf.rollout.text import TextStream
from training.rlhf.sampling import MAX_SEED, FinishReason, SamplingParameters


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLogProb:
    """One drawn token."""

    id: int
    log_prob: float
    """Log-probability that it was drawn by: after temperature, top-k and top-p."""
    model_log_prob: float | None = None
    """Log-probability by the model itself; None unless `alternatives` asked for it."""
    alternatives: tuple[tuple[int, float], ...] = ()
    """The model's likeliest tokens here with their log-probabilities, the likeliest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One finished completion of one prompt."""

    tokens: tuple[TokenLogProb, ...]
    """All that was drawn: the end token is among them, and so is what a stop string cut off."""
    text: str
    """Without special tokens; ends before the stop string."""
    visible_tokens: int
    """How many of the tokens, from the first, have a part in the text."""
    finish_reason: FinishReason
    seed: int
    """Drawing one sample of the prompt with this seed gives this sample again."""

    @property
    def token_ids(self) -> list[int]:
        """The drawn ids."""
        return [token.id for token in self.tokens]


@dataclass(frozen=True, kw_only=True, slots=True)
class Delta:
    """What has become certain of one sample since its last delta."""

    prompt: int
    sample: int
    text: str
    tokens: tuple[TokenLogProb, ...]
    """Tokens with a part in the text given so far that no earlier delta held."""
    finished: Sample | None = None
    """The whole sample, with its last delta."""


OnDelta = Callable[[Delta], None]
Cancelled = Callable[[], bool]


@dataclass(slots=True)
class _Row:
    """One sample being written."""

    prompt: int
    sample: int
    seed: int
    generator: torch.Generator
    text: TextStream
    limit: int
    tokens: list[TokenLogProb] = field(default_factory=list)
    told: int = 0
    finished: Sample | None = None


def rollout(
    backbone: Backbone,
    prompts: Sequence[Sequence[int]],
    parameters: SamplingParameters,
    *,
    n: int = 1,
    adapter: str | None = None,
    seeds: Sequence[int] | None = None,
    on_delta: OnDelta | None = None,
    cancelled: Cancelled | None = None,
) -> list[list[Sample]]:
    """Draw `n` samples of every prompt with `adapter` active (None: the base).

    prompts: token ids, rendered chat included; none empty, each shorter than the context.
    seeds: first seed of each prompt; left out, every prompt begins with `parameters.seed`.
    on_delta: told of text as it becomes certain; the last delta of a sample holds the sample.
    cancelled: asked before every token; once it says yes all samples end as "cancelled".

    Returns samples by prompt. A sample depends on its prompt and its seed, not on the rows
    beside it (in float32 up to rounding, see `draw`). Raises `ValueError` for a bad prompt.
    """
    _check(backbone, prompts, n, seeds)
    rows = _rows(backbone, prompts, parameters, n, seeds)
    if rows:
        with torch.inference_mode(), backbone.using(adapter):
            _Loop(backbone, prompts, parameters, rows, n, on_delta, cancelled).run()
    finished = [row.finished for row in rows if row.finished is not None]
    return [finished[start : start + n] for start in range(0, len(rows), n)]


def context_length(backbone: Backbone) -> int:
    """Tokens that fit into the model: prompt and completion together."""
    return int(backbone.config.max_position_embeddings)


def end_tokens(backbone: Backbone) -> frozenset[int]:
    """Ids that end a completion: those of the tokenizer, the model's and the generation configuration."""
    found = [backbone.tokenizer.eos_token_id, getattr(backbone.config, "eos_token_id", None)]
    path = backbone.folder / "generation_config.json"
    if path.is_file():
        # Some chat models name their end of turn only here.
        found.append(json.loads(path.read_text(encoding="utf-8")).get("eos_token_id"))
    ids = [id for entry in found for id in (entry if isinstance(entry, list | tuple) else [entry])]
    return frozenset(id for id in ids if id is not None)


def _check(backbone: Backbone, prompts: Sequence[Sequence[int]], n: int, seeds: Sequence[int] | None) -> None:
    context = context_length(backbone)
    if n < 1:
        raise ValueError("n must be at least 1")
    if seeds is not None and len(seeds) != len(prompts):
        raise ValueError(f"seeds holds {len(seeds)} numbers for {len(prompts)} prompts")
    for index, prompt in enumerate(prompts):
        if not prompt:
            raise ValueError(f"prompt {index} is empty")
        if len(prompt) >= context:
            raise ValueError(f"prompt {index} has {len(prompt)} tokens; the model's context holds {context}")


def _rows(
    backbone: Backbone,
    prompts: Sequence[Sequence[int]],
    parameters: SamplingParameters,
    n: int,
    seeds: Sequence[int] | None,
) -> list[_Row]:
    rows = []
    for prompt in range(len(prompts)):
        first = parameters.seed if seeds is None else seeds[prompt]
        for sample in range(n):
            seed = (first + sample) % (MAX_SEED + 1)
            rows.append(
                _Row(
                    prompt=prompt,
                    sample=sample,
                    seed=seed,
                    # On the CPU wherever the model is: the same numbers on every device.
                    generator=torch.Generator().manual_seed(seed),
                    text=TextStream(backbone.tokenizer, parameters.stop),
                    limit=min(parameters.max_tokens, context_length(backbone) - len(prompts[prompt])),
                )
            )
    return rows


class _Loop:
    """One rollout: the cache, the rows still being written, and the step that gives each a token."""

    def __init__(
        self,
        backbone: Backbone,
        prompts: Sequence[Sequence[int]],
        parameters: SamplingParameters,
        rows: list[_Row],
        n: int,
        on_delta: OnDelta | None,
        cancelled: Cancelled | None,
    ) -> None:
        self.backbone = backbone
        self.parameters = parameters
        self.prompts = prompts
        self.rows = rows
        self.n = n
        self.on_delta = on_delta
        self.cancelled = cancelled or (lambda: False)
        self.ends = end_tokens(backbone)
        self.needs_text = on_delta is not None or bool(parameters.stop)
        self.mask: Tensor
        self.cache: Any

    def run(self) -> None:
        """Write all rows to their end."""
        if self.cancelled():
            self._cancel()
            return
        logits = self._read_prompts()
        while True:
            if self.cancelled():
                self._cancel()
                return
            self._append(self._draw(logits))
            alive = [index for index, row in enumerate(self.rows) if row.finished is None]
            if not alive:
                return
            if len(alive) < len(self.rows):
                self._keep(alive)
            logits = self._step()

    def _read_prompts(self) -> Tensor:
        """Run every prompt once, then give each of its samples a copy; logits (rows, vocabulary)."""
        width = max(map(len, self.prompts))
        device = self.backbone.device
        # Left-pad: generation goes on from the last column, and a pad there would become part
        # of the prompt.
        ids = torch.zeros(len(self.prompts), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for index, prompt in enumerate(self.prompts):
            ids[index, width - len(prompt) :] = torch.tensor(prompt)
            mask[index, width - len(prompt) :] = 1
        mask = mask.to(device)
        encoded = self.backbone.hidden_states(ids.to(device), mask, use_cache=True)
        logits = self.backbone.logits(encoded.states[:, -1])
        self.cache = encoded.cache
        if self.n > 1:
            self.cache.batch_repeat_interleave(self.n)
        self.mask = mask.repeat_interleave(self.n, dim=0)
        return logits.repeat_interleave(self.n, dim=0)

    def _step(self) -> Tensor:
        """Run the token that each row drew last; logits (rows, vocabulary)."""
        device = self.backbone.device
        ids = torch.tensor([[row.tokens[-1].id] for row in self.rows], device=device)
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.rows), 1)], dim=1)
        encoded = self.backbone.hidden_states(ids, self.mask, past_key_values=self.cache, use_cache=True)
        self.cache = encoded.cache
        return self.backbone.logits(encoded.states[:, -1])

    def _keep(self, alive: list[int]) -> None:
        indices = torch.tensor(alive, device=self.mask.device)
        self.cache.batch_select_indices(indices)
        self.mask = self.mask[indices]
        self.rows = [self.rows[index] for index in alive]

    def _draw(self, logits: Tensor) -> list[TokenLogProb]:
        log_probs = sampling_log_probs(logits, self.parameters)
        drawn = draw(log_probs, [row.generator for row in self.rows])
        ids = drawn.tolist()
        drawn = drawn.to(log_probs.device)
        chosen = log_probs.gather(-1, drawn[:, None])[:, 0].tolist()
        if self.parameters.alternatives is None:
            return [TokenLogProb(id=id, log_prob=value) for id, value in zip(ids, chosen, strict=True)]
        model = torch.log_softmax(logits.float(), -1)
        own = model.gather(-1, drawn[:, None])[:, 0].tolist()
        values, indices = torch.topk(model, self.parameters.alternatives, dim=-1)
        best = [
            tuple(zip(row_ids, row_values, strict=True))
            for row_ids, row_values in zip(indices.tolist(), values.tolist(), strict=True)
        ]
        return [
            TokenLogProb(id=id, log_prob=value, model_log_prob=own_value, alternatives=likeliest)
            for id, value, own_value, likeliest in zip(ids, chosen, own, best, strict=True)
        ]

    def _append(self, tokens: list[TokenLogProb]) -> None:
        for row, token in zip(self.rows, tokens, strict=True):
            row.tokens.append(token)
            ended = token.id in self.ends
            delta = row.text.push(token.id) if self.needs_text and not ended else ""
            if ended or row.text.stopped:
                self._finish(row, "stop", delta, ended=ended)
            elif len(row.tokens) >= row.limit:
                self._finish(row, "length", delta)
            elif delta:
                self._tell(row, delta)

    def _finish(self, row: _Row, reason: FinishReason, delta: str = "", *, ended: bool = False) -> None:
        if not self.needs_text:
            row.text = TextStream(self.backbone.tokenizer)
            row.text.extend(token.id for token in row.tokens[: len(row.tokens) - ended])
        delta += row.text.finish(complete=ended)
        if row.text.stopped:
            # A stop string can also show only now, in bytes that were held back.
            reason = "stop"
        row.finished = Sample(
            tokens=tuple(row.tokens),
            text=row.text.text,
            visible_tokens=row.text.visible_tokens,
            finish_reason=reason,
            seed=row.seed,
        )
        self._tell(row, delta)

    def _cancel(self) -> None:
        for row in self.rows:
            self._finish(row, "cancelled")

    def _tell(self, row: _Row, text: str) -> None:
        if self.on_delta is None:
            return
        shown = row.text.visible_tokens
        tokens = tuple(row.tokens[row.told : shown])
        row.told = max(row.told, shown)
        self.on_delta(
            Delta(prompt=row.prompt, sample=row.sample, text=text, tokens=tokens, finished=row.finished)
        )
