"""Sequences of numbers that lie in a file and become Python numbers only while they are looked at.

A token id takes 4 bytes in a file and about 36 in a tuple: a large snapshot would fill the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int32]


class Stored(Sequence[Any]):
    """Token ids, or pairs of places. Reads, compares and adds as the tuple that it stands for."""

    __slots__ = ("_cut", "_pairs", "_read", "_start", "_stop")

    def __init__(
        self,
        read: Callable[[int, int], Numbers],
        start: int,
        stop: int,
        *,
        pairs: bool = False,
        cut: tuple[int, int] = (0, 0),
    ) -> None:
        """The numbers [start, stop) of what `read` reads, without those at the places [cut) among them."""
        self._read, self._start, self._stop, self._pairs, self._cut = read, start, stop, pairs, cut

    def without(self, low: int, high: int) -> Stored:
        """Return the same without the numbers at [low, high)."""
        if self._cut[1] or self._pairs:
            raise ValueError("only a whole row of token ids can be cut, and once")
        return Stored(self._read, self._start, self._stop, cut=(low, high))

    def _values(self) -> tuple[Any, ...]:
        numbers = self._read(self._start, self._stop)
        if self._pairs:
            return tuple((low, high) for low, high in numbers.reshape(-1, 2).tolist())
        low, high = self._cut
        values: list[int] = numbers.tolist()
        return tuple(values[:low] + values[high:])

    def __len__(self) -> int:
        low, high = self._cut
        return (self._stop - self._start) // (2 if self._pairs else 1) - (high - low)

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Any, ...]: ...
    def __getitem__(self, place: int | slice) -> Any:
        return self._values()[place]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values())

    def __add__(self, other: Iterable[Any]) -> tuple[Any, ...]:
        return (*self._values(), *other)

    def __radd__(self, other: Iterable[Any]) -> tuple[Any, ...]:
        return (*other, *self._values())

    def __eq__(self, other: object) -> bool:
        return self._values() == tuple(other) if isinstance(other, Stored | tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        return repr(self._values())
