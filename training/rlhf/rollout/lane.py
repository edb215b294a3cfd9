"""The rows that one transformer writes: its passes over their prompts and over their next tokens.

Rows of all low-rank adapters, and of the base, share their passes; an adapter that is all of the weights has
a lane of its own.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from training.rlhf.model.backbone import Backbone
from training.rlhf.rollout.cache import KeyCache
from training.rlhf.rollout.prefixes import Prefixes
from training.rlhf.rollout.rows import Row, Slot


class Lane:
    """Rows being written, and the keys and values of what they have read and written."""

    def __init__(self, backbone: Backbone, prefixes: Prefixes | None = None) -> None:
        """prefixes: of earlier samples, which prompts that begin with them need not read again. Samples that
        end here are added to them."""
        self._backbone = backbone
        self._prefixes = prefixes or Prefixes(most_tokens=0)
        self.rows: list[Row] = []
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

    def admit(self, new: Sequence[Row]) -> Tensor:
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

    def write(self) -> tuple[list[Row], Tensor]:
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
