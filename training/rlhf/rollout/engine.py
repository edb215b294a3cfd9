"""Continuous batching: samples of many requests and adapters, which join and leave between two tokens.

Each prompt is read once by each adapter that answers it, and its samples share what was read. What has ended
makes room at once (Yu et al. 2022, Orca), and those that wait take it in the order in which they came.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from training.rlhf.model.backbone import Backbone
from training.rlhf.model.padded_rows import RowCache
from training.rlhf.rollout.cache import KeyCache, Prefixes
from training.rlhf.rollout.distribution import Noise, draw, sampling_log_probs
from training.rlhf.rollout.samples import (
    Handle,
    OnDelta,
    SampleRequest,
    SampleRow,
    Slot,
    TokenLogProb,
    context_length,
    tokens_held,
)
from training.rlhf.sampling import SamplingParameters

# ── The next token of every row, each drawn by its own parameters ──


def draw_tokens(rows: Sequence[SampleRow], logits: Tensor) -> list[TokenLogProb]:
    """One token per row of the logits (rows, vocabulary). Rows that are drawn alike are drawn at once."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for number, row in enumerate(rows):
        chosen = row.wanted.parameters
        key = (chosen.temperature, chosen.top_p, chosen.top_k, chosen.alternatives)
        alike.setdefault(key, []).append(number)
    if len(alike) == 1:
        return _draw(logits, rows[0].wanted.parameters, [row.generator for row in rows])
    drawn: dict[int, TokenLogProb] = {}
    for numbers in alike.values():
        some = [rows[number] for number in numbers]
        tokens = _draw(logits[numbers], some[0].wanted.parameters, [row.generator for row in some])
        drawn.update(zip(numbers, tokens, strict=True))
    return [drawn[number] for number in range(len(rows))]


def _draw(logits: Tensor, parameters: SamplingParameters, generators: Sequence[Noise]) -> list[TokenLogProb]:
    if parameters.temperature == 0:
        # Nothing is left to chance, and a pass over the vocabulary is a tenth of a step.
        drawn = logits.argmax(-1)
        likeliest = logits.gather(-1, drawn[:, None])[:, 0].float()
        # The logarithm of 1, except where the logits are no numbers.
        chosen = (likeliest - likeliest).tolist()
    else:
        log_probs = sampling_log_probs(logits, parameters)
        drawn = draw(log_probs, generators).to(log_probs.device)
        chosen = log_probs.gather(-1, drawn[:, None])[:, 0].tolist()
    ids = drawn.tolist()
    if parameters.alternatives is None:
        return [TokenLogProb(id=id, log_prob=value) for id, value in zip(ids, chosen, strict=True)]
    model = torch.log_softmax(logits.float(), -1)
    model_log_probs = model.gather(-1, drawn[:, None])[:, 0].tolist()
    values, indices = torch.topk(model, parameters.alternatives, dim=-1)
    best = [
        # A grammar may allow fewer tokens than were asked for.
        tuple((id, value) for id, value in zip(row_ids, row_values, strict=True) if value > -torch.inf)
        for row_ids, row_values in zip(indices.tolist(), values.tolist(), strict=True)
    ]
    return [
        TokenLogProb(id=id, log_prob=value, model_log_prob=own_value, alternatives=others)
        for id, value, own_value, others in zip(ids, chosen, model_log_probs, best, strict=True)
    ]


# ── The rows that one transformer writes: its passes over their prompts and over their next tokens ──
#
# Rows of all low-rank adapters, and of the base, share their passes; an adapter that is all of the weights
# has a lane of its own.


class Lane:
    """Rows being written, and the keys and values of what they have read and written."""

    def __init__(self, backbone: Backbone, prefixes: Prefixes | None = None) -> None:
        """prefixes: of earlier samples, which prompts that begin with them need not read again. Samples that
        end here are added to them."""
        self._backbone = backbone
        self._prefixes = prefixes or Prefixes(most_tokens=0)
        self.rows: list[SampleRow] = []
        self._cache = KeyCache(backbone.device)
        self._read: dict[Slot, Tensor | None] = {}
        """For each prompt in the cache, in the cache's order, the logits of its samples' first token; None as
        long as only a part of it was read."""

    def __contains__(self, slot: Slot) -> bool:
        """Return whether this prompt was read."""
        return self._read.get(slot) is not None

    def has_begun(self, slot: Slot) -> bool:
        """Return whether a part of this prompt was read, and not all of it."""
        return slot in self._read and self._read[slot] is None

    def unread(self, slot: Slot) -> int:
        """Return how many tokens of this prompt are still to be read."""
        if slot in self:
            return 0
        if slot in self._read:
            return len(slot.prompt) - self._cache.prompt_lengths[list(self._read).index(slot)]
        if slot.known is None:
            # Looked up once, when the prompt's first sample is next; from then on it holds what it found.
            slot.known = self._prefixes.longest(slot.adapter, slot.prompt)
        return len(slot.prompt) - slot.known.length

    @property
    def empty(self) -> bool:
        """Return whether it keeps nothing that is still needed."""
        return not self.rows and not self._read

    def admit(self, new: Sequence[SampleRow]) -> Tensor:
        """Take rows in; the logits that each draws its next token by, (rows, vocabulary)."""
        unread = [slot for slot in dict.fromkeys(row.slot for row in new) if slot not in self]
        if unread:
            together = [unread[number] for number in _by_adapter([slot.adapter for slot in unread])]
            after = self._run([(slot, self.unread(slot)) for slot in together])
            self._read.update(zip(together, after, strict=True))
        places = {slot: place for place, slot in enumerate(self._read)}
        self.rows += new
        self._cache.add_rows([places[row.slot] for row in new])
        return torch.stack([logits for row in new if (logits := self._read[row.slot]) is not None])

    def read_piece(self, slot: Slot, most: int) -> int:
        """Read up to so many more tokens of a prompt that no row stands behind yet; how many were read."""
        unread = self.unread(slot)
        piece = min(unread, most)
        [logits] = self._run([(slot, piece)])
        self._read[slot] = logits if piece == unread else None
        return piece

    def _run(self, pieces: Sequence[tuple[Slot, int]]) -> Tensor:
        """Read so many more tokens of each of these prompts in one packed row; the logits after each,
        (prompts, vocabulary)."""
        numbers = {slot: number for number, slot in enumerate(self._read)}
        read: list[tuple[int, int]] = []
        ids: list[int] = []
        places: list[Tensor] = []
        for slot, length in pieces:
            if slot not in numbers:
                numbers[slot] = self._begin(slot)
            before = self._cache.prompt_lengths[numbers[slot]]
            read.append((numbers[slot], length))
            ids += slot.prompt[before : before + length]
            places.append(torch.arange(before, before + length))
        device = self._backbone.device
        layout = self._cache.read(read)
        with self._under([(slot.adapter, length) for slot, length in pieces]):
            states = self._backbone.packed_states(
                torch.tensor([ids], device=device), torch.cat(places)[None].to(device), layout
            )
            return self._backbone.logits(states[[segment.end - 1 for segment in layout.segments]])

    def _begin(self, slot: Slot) -> int:
        """Give a prompt its place in the cache, with what an earlier sample has read of it."""
        known, slot.known = slot.known, None
        self._read[slot] = None
        return self._cache.add_prompt(known.layers, known.length) if known else self._cache.add_prompt()

    def write(self) -> tuple[list[SampleRow], Tensor]:
        """Run the token that each row drew last; the rows, and in their order logits (rows, vocabulary)."""
        order = _by_adapter([row.wanted.adapter for row in self.rows])
        rows = [self.rows[number] for number in order]
        device = self._backbone.device
        ids = torch.tensor([[row.tokens[-1].id for row in rows]], device=device)
        places = torch.tensor([[row.place for row in rows]], device=device)
        layout = self._cache.write() if order == sorted(order) else self._cache.write(order)
        with self._under([(row.wanted.adapter, 1) for row in rows]):
            return rows, self._backbone.logits(self._backbone.packed_states(ids, places, layout))

    def _under(self, stretches: Sequence[tuple[str | None, int]]) -> AbstractContextManager[None]:
        """Stretches of a packed row, those of one adapter beside each other, under their adapters."""
        joined = list(_joined(stretches))
        if len(joined) > 1:
            return self._backbone.mixing(joined)
        [(adapter, _)] = joined
        # Switching goes through all layers: a rollout, whose adapter is active throughout, is spared that.
        return nullcontext() if self._backbone.active == adapter else self._backbone.using(adapter)

    def drop_finished(self) -> None:
        """Forget rows that have ended, and prompts of which no sample is left."""
        alive = [number for number, row in enumerate(self.rows) if row.alive]
        slots = list(self._read)
        used = [number for number, slot in enumerate(slots) if slot.users]
        self._remember(number for number, row in enumerate(self.rows) if not row.alive)
        self._wipe_broken(alive, used)
        if len(alive) < len(self.rows):
            order = self._cache.keep_rows(alive)
            self.rows = [self.rows[number] for number in order]
        if len(used) < len(slots):
            order = self._cache.keep_prompts(used)
            self._read = {slots[number]: self._read[slots[number]] for number in order}

    def _remember(self, ended: Iterable[int]) -> None:
        """Keep what ended samples have read and written for prompts that begin with it."""
        for number in ended if self._prefixes.most_tokens else ():
            row = self.rows[number]
            if row.finished is None or row.slot.broken:
                continue
            tokens = row.tokens[row.read : row.read + self._cache.row_lengths[number]]
            ids = (*row.slot.prompt, *(token.id for token in tokens))
            self._prefixes.add(row.wanted.adapter, ids, functools.partial(self._cache.copied, number))

    def _wipe_broken(self, alive: Collection[int], used: Collection[int]) -> None:
        rows = [number for number, row in enumerate(self.rows) if row.slot.broken and number not in alive]
        prompts = [number for number, slot in enumerate(self._read) if slot.broken and number not in used]
        if rows or prompts:
            self._cache.wipe(rows=rows, prompts=prompts)


def _by_adapter(adapters: Sequence[str | None]) -> list[int]:
    """Their numbers, those of one adapter beside each other, adapters as they come first."""
    first = {adapter: rank for rank, adapter in enumerate(dict.fromkeys(adapters))}
    return sorted(range(len(adapters)), key=lambda number: first[adapters[number]])


def _joined(stretches: Sequence[tuple[str | None, int]]) -> Iterator[tuple[str | None, int]]:
    for adapter, some in itertools.groupby(stretches, key=lambda stretch: stretch[0]):
        yield adapter, sum(tokens for _, tokens in some)


# ── The same for a model whose rows are padded: transformers' own cache for each prompt's samples ──
#
# Samples of one prompt that joined at the same time are as long as each other, and are written in one pass.
# Those of other prompts are written after them, for no padding between tokens is the same for all families.


@dataclass(slots=True)
class _Read:
    """A prompt, or its beginning, that was read once for all its samples."""

    cache: RowCache
    tokens: int
    logits: Tensor | None
    """Those of the first token of its samples; None as long as only a part of it was read."""


@dataclass(slots=True)
class _Together:
    """Samples of one prompt that are equally long."""

    rows: list[SampleRow]
    cache: RowCache


class PaddedLane(Lane):
    """Rows that are written in passes of one prompt each."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone)
        self._prompts: dict[Slot, _Read] = {}
        self._groups: list[_Together] = []

    def __contains__(self, slot: Slot) -> bool:
        return slot in self._prompts and self._prompts[slot].logits is not None

    def has_begun(self, slot: Slot) -> bool:
        """Return whether a part of this prompt was read, and not all of it."""
        return slot in self._prompts and self._prompts[slot].logits is None

    def unread(self, slot: Slot) -> int:
        """Return how many tokens of this prompt are still to be read."""
        return len(slot.prompt) - (self._prompts[slot].tokens if slot in self._prompts else 0)

    @property
    def empty(self) -> bool:
        """Return whether it keeps nothing that is still needed."""
        return not self.rows and not self._prompts

    def admit(self, new: Sequence[SampleRow]) -> Tensor:
        """Take rows in; the logits that each draws its next token by, (rows, vocabulary)."""
        together: dict[Slot, list[SampleRow]] = {}
        for row in new:
            together.setdefault(row.slot, []).append(row)
        for slot, rows in together.items():
            if slot not in self:
                self.read_piece(slot, len(slot.prompt))
            self._groups.append(_Together(rows, self._prompts[slot].cache.chosen([0] * len(rows))))
        self.rows += new
        return torch.stack([logits for row in new if (logits := self._prompts[row.slot].logits) is not None])

    def read_piece(self, slot: Slot, most: int) -> int:
        """Read up to so many more tokens of a prompt that no row stands behind yet; how many were read."""
        with self._backbone.using(slot.adapter):
            read = self._prompts.get(slot) or _Read(self._backbone.begin_rows(), 0, None)
            ids = torch.tensor([slot.prompt[read.tokens : read.tokens + most]], device=self._backbone.device)
            [state] = self._backbone.read_rows(read.cache, ids)
            read.tokens += ids.shape[1]
            if read.tokens == len(slot.prompt):
                read.logits = self._backbone.logits(state)
        self._prompts[slot] = read
        return ids.shape[1]

    def write(self) -> tuple[list[SampleRow], Tensor]:
        """Run the token that each row drew last; the rows, and in their order logits (rows, vocabulary)."""
        logits = []
        for group in self._groups:
            ids = torch.tensor([[row.tokens[-1].id] for row in group.rows], device=self._backbone.device)
            with self._backbone.using(group.rows[0].wanted.adapter):
                logits.append(self._backbone.logits(self._backbone.read_rows(group.cache, ids)))
        return [row for group in self._groups for row in group.rows], torch.cat(logits)

    def drop_finished(self) -> None:
        """Forget rows that have ended, and prompts of which no sample is left."""
        self.rows = [row for row in self.rows if row.alive]
        for group in self._groups:
            alive = [number for number, row in enumerate(group.rows) if row.alive]
            if alive and len(alive) < len(group.rows):
                group.cache.keep(alive)
            group.rows = [group.rows[number] for number in alive]
        self._groups = [group for group in self._groups if group.rows]
        self._prompts = {slot: read for slot, read in self._prompts.items() if slot.users}


READ_AT_ONCE = 4096
"""Tokens of prompts in one pass: enough to use the machine, few enough for its memory."""


class RolloutEngine:
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
        make_lane: who makes the passes; None is a `Lane`, or a `PaddedLane` where the model packs no rows."""
        if max_tokens is not None and max_tokens < context_length(backbone):
            raise ValueError(f"max_tokens must be at least {context_length(backbone)}, the model's context")
        self._backbone = backbone
        self._ends = ends
        self._max_rows = max_rows
        self._max_tokens = max_tokens
        self._read_at_once = read_at_once
        self._steady = steady
        self._prefixes = Prefixes(most_tokens=keep_tokens)
        self._make_lane = make_lane or self._own_lane
        self._waiting: deque[SampleRow] = deque()
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

    def _own_lane(self) -> Lane:
        packs = self._backbone.packs
        return Lane(self._backbone, self._prefixes) if packs else PaddedLane(self._backbone)

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

        on_delta: called with text as it becomes certain; the last delta of a sample holds the sample. What it
        raises ends the request. Raises `ValueError` for a prompt that is empty or as long as the context.
        """
        handle = Handle(on_delta)
        requested = list(samples)
        self._check(requested)
        handle.rows = [
            SampleRow.begin(self._backbone, sample, handle, self._slot(sample.adapter, sample.prompt))
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
        lanes: dict[Lane, list[SampleRow]] = {}
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

    def _in_pieces(self, row: SampleRow) -> bool:
        """Return whether the prompt of one that waits is, or goes on being, read a piece at a time."""
        lane = self._lane(row.wanted.adapter)
        if not self._steady or row.slot in lane:
            return False
        return lane.has_begun(row.slot) or lane.unread(row.slot) > self._read_at_once

    def _read_piece(self, row: SampleRow) -> bool:
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

    def _next(self) -> list[SampleRow]:
        """Return the first of those that wait that find a place, and are read in one pass."""
        new: list[SampleRow] = []
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

    def _fits(self, row: SampleRow, new: Sequence[SampleRow]) -> bool:
        """Return whether the keys of this row find place beside those that run."""
        if self._max_tokens is None:
            return True
        joining = [*new, row]
        held = 0
        for lane in self._lanes.values():
            of_lane = [other for other in joining if self._lane(other.wanted.adapter) is lane]
            held += tokens_held([*lane.rows, *of_lane])
        return held <= self._max_tokens or (self.running == 0 and not new)

    def _may_join(self, row: SampleRow, new: Sequence[SampleRow]) -> bool:
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

    def _append(self, rows: Sequence[SampleRow], logits: Tensor) -> None:
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

    def _constrained(self, rows: Sequence[SampleRow], logits: Tensor) -> Tensor:
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

    def _leave(self, row: SampleRow) -> None:
        row.slot.users -= 1
        key = row.slot.adapter, row.slot.prompt
        # Where the prompt had to be read again another slot has taken its place.
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

    def _begin_again(self, lane: Lane, new: Sequence[SampleRow], error: Exception) -> None:
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

    def _clear(self, rows: Sequence[SampleRow]) -> None:
        """Requests that were written a token by themselves are none to blame."""
        self._suspects -= {row.handle for row in rows}
