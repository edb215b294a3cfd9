"""The sampling loop: each prompt is read once, its K samples share what was read, and end on their own.

What has ended makes room at once: the next pass computes only the samples that go on, and with `max_rows`
those that wait take the places that have become free (continuous batching, Yu et al. 2022, Orca).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from training.rlhf.backbone import Backbone
from training.rlhf.rollout.cache import KeyCache
from training.rlhf.rollout.distribution import draw, sampling_log_probs
from training.rlhf.rollout.samples import Cancelled, Delta, OnDelta, Sample, TokenLogProb
from training.rlhf.rollout.text import TextStream
from training.rlhf.sampling import MAX_SEED, FinishReason, SamplingParameters

_READ_AT_ONCE = 4096
"""Tokens of prompts in one pass: enough to use the machine, few enough for its memory."""


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
    max_rows: int | None = None,
) -> list[list[Sample]]:
    """Draw `n` samples of every prompt with `adapter` active (None: the base).

    prompts: token ids, rendered chat included; none empty, each shorter than the context.
    seeds: first seed of each prompt; left out, every prompt begins with `parameters.seed`.
    on_delta: told of text as it becomes certain; the last delta of a sample holds the sample.
    cancelled: asked before every token; once it says yes all samples end as "cancelled".
    max_rows: so many samples are written at a time, the others when these end; None writes all at once.

    Returns samples by prompt. A sample depends on its prompt and its seed, not on the rows
    beside it (in float32 up to rounding, see `draw`). Raises `ValueError` for a bad prompt.
    """
    _check(backbone, prompts, n, seeds, max_rows)
    rows = _rows(backbone, prompts, parameters, n, seeds)
    if rows:
        with torch.inference_mode(), backbone.using(adapter):
            _Loop(backbone, prompts, parameters, rows, max_rows, on_delta, cancelled).run()
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


def _check(
    backbone: Backbone,
    prompts: Sequence[Sequence[int]],
    n: int,
    seeds: Sequence[int] | None,
    max_rows: int | None,
) -> None:
    context = context_length(backbone)
    if n < 1:
        raise ValueError("n must be at least 1")
    if max_rows is not None and max_rows < 1:
        raise ValueError("max_rows must be at least 1; None sets no bound")
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
    """One rollout: samples that wait, those being written, and the passes that give each a token."""

    def __init__(
        self,
        backbone: Backbone,
        prompts: Sequence[Sequence[int]],
        parameters: SamplingParameters,
        rows: Sequence[_Row],
        max_rows: int | None,
        on_delta: OnDelta | None,
        cancelled: Cancelled | None,
    ) -> None:
        self.backbone = backbone
        self.parameters = parameters
        self.prompts = prompts
        self.waiting = deque(rows)
        self.rows: list[_Row] = []
        self.max_rows = max_rows or len(rows)
        self.on_delta = on_delta
        self.cancelled = cancelled or (lambda: False)
        self.ends = end_tokens(backbone)
        self.needs_text = on_delta is not None or bool(parameters.stop)
        self.cache = KeyCache(backbone.device)
        self.read: dict[int, Tensor] = {}
        """For each prompt in the cache, in the cache's order, the logits of its samples' first token."""

    def run(self) -> None:
        """Write all samples to their end."""
        while self.rows or self.waiting:
            if self.cancelled():
                self._cancel()
                return
            if self.rows:
                self._append(self.rows, self._step())
                self._drop_finished()
            while self.waiting and len(self.rows) < self.max_rows and not self.cancelled():
                self._admit()

    def _admit(self) -> None:
        """Take in as many as there is room for, and give each its first token."""
        first = len(self.rows)
        room = self.max_rows - first
        new = [self.waiting.popleft() for _ in range(min(room, len(self.waiting)))]
        unread = [prompt for prompt in dict.fromkeys(row.prompt for row in new) if prompt not in self.read]
        for some in self._passes(unread):
            self.read.update(zip(some, self._read(some), strict=True))
        places = {prompt: place for place, prompt in enumerate(self.read)}
        self.rows += new
        self.cache.add_rows([places[row.prompt] for row in new])
        self._append(new, torch.stack([self.read[row.prompt] for row in new]))
        self._drop_finished()

    def _passes(self, prompts: Sequence[int]) -> list[list[int]]:
        """Prompts cut into passes of at most `_READ_AT_ONCE` tokens, or of one prompt."""
        passes: list[list[int]] = []
        tokens = 0
        for prompt in prompts:
            tokens += len(self.prompts[prompt])
            if not passes or tokens > _READ_AT_ONCE:
                passes.append([])
                tokens = len(self.prompts[prompt])
            passes[-1].append(prompt)
        return passes

    def _read(self, prompts: Sequence[int]) -> Tensor:
        """Run these prompts in one packed row; the logits after each, (prompts, vocabulary)."""
        texts = [self.prompts[prompt] for prompt in prompts]
        ids = torch.tensor([id for text in texts for id in text], device=self.backbone.device)
        places = torch.cat([torch.arange(len(text)) for text in texts]).to(self.backbone.device)
        layout = self.cache.read(list(map(len, texts)))
        states = self.backbone.packed_states(ids[None], places[None], layout)
        return self.backbone.logits(states[[segment.end - 1 for segment in layout.segments]])

    def _step(self) -> Tensor:
        """Run the token that each row drew last; logits (rows, vocabulary)."""
        device = self.backbone.device
        ids = torch.tensor([[row.tokens[-1].id for row in self.rows]], device=device)
        places = [[len(self.prompts[row.prompt]) + len(row.tokens) - 1 for row in self.rows]]
        layout = self.cache.write()
        states = self.backbone.packed_states(ids, torch.tensor(places, device=device), layout)
        return self.backbone.logits(states)

    def _drop_finished(self) -> None:
        alive = [number for number, row in enumerate(self.rows) if row.finished is None]
        if len(alive) == len(self.rows):
            return
        order = self.cache.keep_rows(alive)
        self.rows = [self.rows[number] for number in order]
        needed = {row.prompt for row in self.rows} | {row.prompt for row in self.waiting}
        read = list(self.read)
        kept = [number for number, prompt in enumerate(read) if prompt in needed]
        if len(kept) < len(read):
            order = self.cache.keep_prompts(kept)
            self.read = {read[number]: self.read[read[number]] for number in order}

    def _draw(self, rows: Sequence[_Row], logits: Tensor) -> list[TokenLogProb]:
        log_probs = sampling_log_probs(logits, self.parameters)
        drawn = draw(log_probs, [row.generator for row in rows])
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

    def _append(self, rows: Sequence[_Row], logits: Tensor) -> None:
        """Give each row the token that is drawn by its logits."""
        for row, token in zip(rows, self._draw(rows, logits), strict=True):
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
        for row in (*self.rows, *self.waiting):
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
