"""Continuous batching: samples of many requests and adapters, which join and leave between two tokens.

Each prompt is read once by each adapter that answers it, and its samples share what was read. What has ended
makes room at once (Yu et al. 2022, Orca), and those that wait take it in the order in which they came.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from training.rlhf.model.backbone import Backbone
from training.rlhf.rollout.drawing import draw_tokens
from training.rlhf.rollout.lane import Lane
from training.rlhf.rollout.limits import context_length
from training.rlhf.rollout.prefixes import Prefixes
from training.rlhf.rollout.rows import Handle, Row, SampleRequest, Slot, tokens_held
from training.rlhf.rollout.samples import OnDelta

READ_AT_ONCE = 4096
"""Tokens of prompts in one pass: enough to use the machine, few enough for its memory."""


class Engine:
    """Samples that wait, those being written, and the passes that give each a token. For one thread.

    A sample depends on its prompt, its adapter, its parameters and its seed, not on what is beside it (in
    float32 up to rounding, see `distribution.draw`). What goes wrong with one request ends that one alone.
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        ends: frozenset[int],
        max_rows: int | None = None,
        max_tokens: int | None = None,
        read_at_once: int = READ_AT_ONCE,
        steady: bool = False,
        keep_tokens: int = 0,
        make_lane: Callable[[], Lane] | None = None,
    ) -> None:
        """ends: tokens that end a sample. max_rows: samples that are written at a time; None is all.
        max_tokens: places for keys and values, of prompts and samples, each as long as the longest beside it
        may become; None is as many as are needed. read_at_once: tokens of prompts read in one pass, where one
        prompt is not longer. steady: give those being written a token after every such pass, not only when
        no place is free, and read a longer prompt in pieces: what a stream wants, while a batch is done
        sooner when it is full. keep_tokens: tokens of ended samples whose keys and values are kept, beside
        `max_tokens`, for prompts that begin with them, as the next turn of a conversation does.
        make_lane: who makes the passes; None is a `Lane`."""
        if max_tokens is not None and max_tokens < context_length(backbone):
            raise ValueError(f"max_tokens must be at least {context_length(backbone)}, the model's context")
        self._backbone = backbone
        self._ends = ends
        self._max_rows = max_rows
        self._max_tokens = max_tokens
        self._read_at_once = read_at_once
        self._steady = steady
        self._prefixes = Prefixes(most_tokens=keep_tokens)
        self._make_lane = make_lane or (lambda: Lane(backbone, self._prefixes))
        self._waiting: deque[Row] = deque()
        self._slots: dict[tuple[str | None, tuple[int, ...]], Slot] = {}
        self._lanes: dict[str | None, Lane] = {}
        self._ended = False
        """Return whether any has ended since the last ones were dropped."""
        self._suspects: set[Handle] = set()
        self.tokens_read = 0
        """Tokens of prompts that were read, those that were known before aside."""
        self.tokens_written = 0
        """Tokens of samples that were drawn."""
        self.seconds = 0.0
        """Spent in steps."""
        """Requests of which one may be what a pass failed on: each is tried by itself."""

    @property
    def busy(self) -> bool:
        """Return whether a step would do something."""
        return bool(self._waiting) or self.running > 0

    @property
    def tokens_reused(self) -> int:
        """Return how many tokens of prompts were known from earlier samples."""
        return self._prefixes.tokens_reused

    @property
    def running(self) -> int:
        """Samples that are being written."""
        # Another thread may ask: a list is made at once, a dictionary that changes cannot be gone through.
        return sum(len(lane.rows) for lane in list(self._lanes.values()))

    @property
    def waiting(self) -> int:
        """Samples that were submitted and have no place yet."""
        return len(self._waiting)

    @property
    def has_room(self) -> bool:
        """Return whether one more sample would be written at once, if its keys find place."""
        return not self._waiting and (self._max_rows is None or self.running < self._max_rows)

    def submit(self, samples: Iterable[SampleRequest], on_delta: OnDelta | None = None) -> Handle:
        """Ask for samples; they begin with the next steps.

        on_delta: told of text as it becomes certain; the last delta of a sample holds the sample. What it
        raises ends the request. Raises `ValueError` for a prompt that is empty or as long as the context.
        """
        handle = Handle(on_delta)
        requested = list(samples)
        self._check(requested)
        handle.rows = [
            Row.begin(self._backbone, sample, handle, self._slot(sample.adapter, sample.prompt))
            for sample in requested
        ]
        self._waiting += handle.rows
        return handle

    def _check(self, samples: Sequence[SampleRequest]) -> None:
        context = context_length(self._backbone)
        for sample in samples:
            if not sample.prompt:
                raise ValueError(f"prompt {sample.place[0]} is empty")
            if len(sample.prompt) >= context:
                raise ValueError(
                    f"prompt {sample.place[0]} has {len(sample.prompt)} tokens; the model's context "
                    f"holds {context}"
                )
        for adapter in {sample.adapter for sample in samples} - {None, *self._backbone.adapters}:
            raise ValueError(f"adapter {adapter!r} is not loaded")

    def cancel(self, handle: Handle) -> None:
        """End the samples of a request that go on as "cancelled"; nothing where it has ended."""
        for row in handle.rows:
            if row.alive:
                row.finish("cancelled", self._backbone.tokenizer)
                self._leave(row)
        with self._without_gradients():
            self._drop_finished()

    def step(self) -> None:
        """Take in samples that wait, as many as one pass may read, or give each that is written a token."""
        begun = time.monotonic()
        with self._without_gradients():
            admitted = self._admit()
            if self._steady or not admitted:
                for lane in list(self._lanes.values()):
                    self._write(lane)
        self.seconds += time.monotonic() - begun

    def _without_gradients(self) -> AbstractContextManager[None]:
        # A cut base gathers its blocks into memory that a learning pass uses later: no tensors of inference.
        cut = self._backbone.turnstile is not None
        return torch.no_grad() if cut else torch.inference_mode()

    # ── Taking in ─────────────────────────────────────────────────────────────────────

    def _slot(self, adapter: str | None, prompt: tuple[int, ...]) -> Slot:
        slot = self._slots.setdefault((adapter, prompt), Slot(adapter, prompt))
        slot.users += 1
        return slot

    def _lane(self, adapter: str | None) -> Lane:
        whole = adapter if adapter is not None and self._backbone.is_whole(adapter) else None
        if whole not in self._lanes:
            self._lanes[whole] = self._make_lane()
        return self._lanes[whole]

    def _admit(self) -> bool:
        """Return whether any were taken in, or a piece was read of the prompt of one that is to be."""
        if self._waiting and self._in_pieces(self._waiting[0]):
            return self._read_piece(self._waiting[0])
        new = self._next()
        lanes: dict[Lane, list[Row]] = {}
        for row in new:
            lanes.setdefault(self._lane(row.wanted.adapter), []).append(row)
        for lane, rows in lanes.items():
            try:
                logits = lane.admit(rows)
            except Exception as error:
                self._begin_again(lane, rows, error)
            else:
                self._append(rows, logits)
        self._drop_finished()
        return bool(new)

    def _in_pieces(self, row: Row) -> bool:
        """Return whether the prompt of one that waits is, or goes on being, read a piece at a time."""
        lane = self._lane(row.wanted.adapter)
        if not self._steady or row.slot in lane:
            return False
        return lane.has_begun(row.slot) or lane.unread(row.slot) > self._read_at_once

    def _read_piece(self, row: Row) -> bool:
        """Read one pass's share of the prompt of the first that waits; whether there was place for it."""
        full = self._max_rows is not None and self.running >= self._max_rows
        if full or not self._fits(row, ()) or not self._may_join(row, ()):
            return False
        lane = self._lane(row.wanted.adapter)
        try:
            self.tokens_read += lane.read_piece(row.slot, self._read_at_once)
        except Exception as error:
            self._waiting.popleft()
            self._begin_again(lane, [row], error)
            self._drop_finished()
        return True

    def _next(self) -> list[Row]:
        """Return the first of those that wait that find a place, and are read in one pass."""
        new: list[Row] = []
        reading: set[Slot] = set()
        tokens = 0
        running = self.running
        while self._waiting and (self._max_rows is None or running + len(new) < self._max_rows):
            row = self._waiting[0]
            length = 0 if row.slot in reading else self._lane(row.wanted.adapter).unread(row.slot)
            if reading and length and tokens + length > self._read_at_once:
                break
            if self._in_pieces(row):
                break
            if not self._fits(row, new) or not self._may_join(row, new):
                break
            if length:
                reading.add(row.slot)
                tokens += length
            new.append(self._waiting.popleft())
        self.tokens_read += tokens
        return new

    def _fits(self, row: Row, new: Sequence[Row]) -> bool:
        """Return whether the keys of this row find place beside those that run."""
        if self._max_tokens is None:
            return True
        joining = [*new, row]
        held = 0
        for lane in self._lanes.values():
            of_lane = [other for other in joining if self._lane(other.wanted.adapter) is lane]
            held += tokens_held([*lane.rows, *of_lane])
        return held <= self._max_tokens or (self.running == 0 and not new)

    def _may_join(self, row: Row, new: Sequence[Row]) -> bool:
        """While there are suspects, only those of one of them are written at a time."""
        if not self._suspects:
            return True
        running = [other for lane in self._lanes.values() for other in lane.rows]
        return all(other.handle is row.handle for other in (*running, *new))

    # ── A token each ──────────────────────────────────────────────────────────────────

    def _write(self, lane: Lane) -> None:
        if not lane.rows:
            return
        try:
            rows, logits = lane.write()
        except Exception as error:
            self._begin_again(lane, (), error)
        else:
            self._append(rows, logits)
            self._clear(rows)
        self._drop_finished()

    def _append(self, rows: Sequence[Row], logits: Tensor) -> None:
        """Give each row the token that is drawn by its logits."""
        logits = self._constrained(rows, self._backbone.unknown_tokens.exclude(logits))
        for row, token in zip(rows, draw_tokens(rows, logits), strict=True):
            if not row.alive:
                continue
            self.tokens_written += 1
            try:
                row.append(token, self._ends, self._backbone.tokenizer)
            except Exception as error:
                self._fail(row.handle, error)
            else:
                if row.finished is not None:
                    self._leave(row)

    def _constrained(self, rows: Sequence[Row], logits: Tensor) -> Tensor:
        """Return the logits without the tokens that a row's grammar forbids; other rows as they are."""
        numbers, masks = [], []
        for number, row in enumerate(rows):
            if row.constraint is None or not row.alive:
                continue
            try:
                masks.append(row.constraint.allowed())
            except Exception as error:
                self._fail(row.handle, error)
            else:
                numbers.append(number)
        if not numbers:
            return logits
        chosen = torch.tensor(numbers, device=logits.device)
        allowed = torch.stack(masks).to(logits.device)
        return logits.index_copy(0, chosen, logits[chosen].masked_fill(~allowed, -torch.inf))

    def _fail(self, handle: Handle, error: Exception) -> None:
        """End a request without samples."""
        for row in handle.rows:
            if row.alive:
                self._leave(row)
        handle.error = error

    def _leave(self, row: Row) -> None:
        row.slot.users -= 1
        key = row.slot.adapter, row.slot.prompt
        # Where the prompt had to be read anew another slot has taken its place.
        if (not row.slot.users or row.slot.broken) and self._slots.get(key) is row.slot:
            del self._slots[key]
        self._ended = True

    def _drop_finished(self) -> None:
        if not self._ended:
            return
        self._ended = False
        if any(not row.alive for row in self._waiting):
            self._waiting = deque(row for row in self._waiting if row.alive)
        for whole, lane in list(self._lanes.items()):
            lane.drop_finished()
            if lane.empty and not self._waiting:
                # The memory of its keys goes back.
                del self._lanes[whole]
        self._suspects = {handle for handle in self._suspects if not handle.finished}

    # ── A pass that failed ────────────────────────────────────────────────────────────

    def _begin_again(self, lane: Lane, new: Sequence[Row], error: Exception) -> None:
        """A whole pass failed, for want of memory perhaps: its rows are read again, with what they have
        written, the requests one by one. One that fails by itself is what is to blame."""
        rows = [row for row in dict.fromkeys((*lane.rows, *new)) if row.alive]
        handles = list(dict.fromkeys(row.handle for row in rows))
        self._lanes = {whole: other for whole, other in self._lanes.items() if other is not lane}
        if len(handles) == 1:
            self._fail(handles[0], error)
            return
        for row in rows:
            self._leave(row)
            row.read = len(row.tokens)
            row.slot = self._slot(
                row.wanted.adapter, (*row.wanted.prompt, *(token.id for token in row.tokens))
            )
        rows.sort(key=lambda row: handles.index(row.handle))
        self._waiting.extendleft(reversed(rows))
        self._suspects.update(handles)

    def _clear(self, rows: Sequence[Row]) -> None:
        """Requests that were written a token by themselves are none to blame."""
        self._suspects -= {row.handle for row in rows}
