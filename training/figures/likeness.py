"""Vectors of texts: packed into bytes, compared by cosine, linked where they are nearly alike.

States of a language model share one large direction, so that any two texts have a cosine near 0.8. The mean
of a project's vectors is therefore taken off first (Mu & Viswanath 2018), shrunken where they are few.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

FEW = 10
"""So many vectors count as much as the mean that is taken off: of n it is n / (n + FEW) of theirs."""
_ROWS, _COLUMNS = 2048, 8192
_LEADING = 128
"""Directions that rule out most pairs before all are compared."""
_MOST_EDGES = 2_000_000


def packed(vector: Sequence[float]) -> tuple[bytes, float]:
    """Return a vector as one signed byte per number, and what to multiply them by."""
    values = np.asarray(vector, dtype=np.float32)
    scale = float(np.abs(values).max()) / 127 or 1.0
    return np.rint(values / scale).astype(np.int8).tobytes(), scale


class Vectors:
    """The packed vectors of a project, all of one length."""

    def __init__(self, rows: Iterable[tuple[bytes, float]]) -> None:
        pieces, scales, width = [], [], 0
        for piece, scale in rows:
            width = width or len(piece)
            pieces.append(piece)
            scales.append(scale)
        self._bytes = np.frombuffer(b"".join(pieces), dtype=np.int8).reshape(len(pieces), width)
        self._scales = np.asarray(scales, dtype=np.float32)

    def __len__(self) -> int:
        return len(self._scales)

    def cosines(self, row: int) -> Floats:
        """Return the cosine of one vector with each, itself among them."""
        mean = self._mean()
        one = self._floats(slice(row, row + 1))[0] - mean
        one /= _length(one)
        found = np.empty(len(self), dtype=np.float32)
        for part in self._parts():
            centred = self._floats(part) - mean
            found[part] = centred @ one / np.maximum(np.sqrt((centred**2).sum(1)), 1e-9)
        return found

    def links(self, least: float) -> list[Link]:
        """Return links between all vectors whose cosine is at least `least`, the strongest that suffice.

        They are a maximum spanning forest: for every threshold t ≥ `least` the pairs of a cosine ≥ t join the
        same groups as the links of a cosine ≥ t. No pair is missed: rotated onto their principal directions,
        vectors of a cosine ≥ t are at most √(2 − 2t) apart in the leading directions, too, which few others
        are; those are compared in full.
        """
        mean = self._mean()
        centred = np.concatenate([self._floats(part) - mean for part in self._parts()])
        centred /= np.maximum(np.sqrt((centred**2).sum(1, keepdims=True)), 1e-9)
        # Equal texts are one row: any number of them would be pairs with each other.
        content = self._bytes.view(np.dtype((np.void, self._bytes.shape[1]))).ravel()
        _values, first, same = np.unique(content, return_index=True, return_inverse=True)
        links = [(row, int(first[group]), 1.0) for row, group in enumerate(same) if first[group] != row]
        rows = centred[first]
        del centred
        _energy, directions = np.linalg.eigh(rows.T @ rows)
        leading = np.ascontiguousarray(rows @ directions[:, ::-1][:, :_LEADING])
        forest = np.empty((0, 3))
        for edges in _pairs(rows, leading, least):
            forest = np.concatenate([forest, edges])
            if len(forest) > _MOST_EDGES:
                forest = _spanning(forest, len(rows))
        for left, right, cosine in _spanning(forest, len(rows)):
            links.append((int(first[int(left)]), int(first[int(right)]), float(min(cosine, 1.0))))
        return links

    def _mean(self) -> Floats:
        if not len(self):
            return np.zeros(self._bytes.shape[1], dtype=np.float32)
        total = sum(self._floats(part).sum(0, dtype=np.float64) for part in self._parts())
        mean: Floats = np.asarray(total / (len(self) + FEW), dtype=np.float32)
        return mean

    def _parts(self) -> Iterator[slice]:
        return (slice(start, start + _COLUMNS) for start in range(0, len(self), _COLUMNS))

    def _floats(self, part: slice) -> Floats:
        values: Floats = self._bytes[part] * self._scales[part, None]
        return values


Link = tuple[int, int, float]
"""Two rows and their cosine."""


def rooted(links: Iterable[Link]) -> dict[int, tuple[int, float]]:
    """Return a forest's links as each row's link to the row above it; roots have none."""
    near: dict[int, list[tuple[int, float]]] = {}
    for left, right, cosine in links:
        near.setdefault(left, []).append((right, cosine))
        near.setdefault(right, []).append((left, cosine))
    above: dict[int, tuple[int, float]] = {}
    seen: set[int] = set()
    for root in sorted(near):
        if root in seen:
            continue
        seen.add(root)
        waiting = [root]
        while waiting:
            row = waiting.pop()
            for other, cosine in near[row]:
                if other not in seen:
                    seen.add(other)
                    above[other] = (row, cosine)
                    waiting.append(other)
    return above


def _length(vector: Floats) -> float:
    return max(float(np.sqrt((vector**2).sum())), 1e-9)


def _pairs(rows: Floats, leading: Floats, least: float) -> Iterator[NDArray[np.float64]]:
    """Yield the pairs of rows (left < right, cosine) of a cosine ≥ `least`, part by part."""
    # |a − b|² ≤ 2 − 2t, as ab ≥ (a² + b²) / 2 − (1 − t); a little more passes, for rounding.
    half = (leading**2).sum(1) / 2
    slack = 1 - least + 1e-4
    for top in range(0, len(rows), _ROWS):
        left = slice(top, top + _ROWS)
        for start in range(top, len(rows), _COLUMNS):
            right = slice(start, start + _COLUMNS)
            near = leading[left] @ leading[right].T
            near -= half[left, None]
            near -= half[right]
            places = np.flatnonzero(near.ravel() >= -slack)
            one, other = np.divmod(places, near.shape[1])
            one, other = one + top, other + start
            kept = one < other
            one, other = one[kept], other[kept]
            for some in range(0, len(one), 50_000):
                a, b = one[some : some + 50_000], other[some : some + 50_000]
                cosines = np.einsum("ij,ij->i", rows[a], rows[b])
                high = cosines >= least
                if high.any():
                    yield np.column_stack([a[high], b[high], cosines[high]])


def _spanning(edges: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Return the maximum spanning forest of edges."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import minimum_spanning_tree

    # SciPy seeks the least sum, and takes a weight of 0 for no edge.
    weights = 2.0 - edges[:, 2]
    graph = coo_matrix((weights, (edges[:, 0].astype(int), edges[:, 1].astype(int))), shape=(size, size))
    tree = minimum_spanning_tree(graph.tocsr()).tocoo()
    return np.column_stack([tree.row, tree.col, 2.0 - tree.data])
