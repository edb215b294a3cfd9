"""Figures of a step, gathered from passes of different size."""

from __future__ import annotations

from torch import Tensor


class Tally:
    """Weighted means, least and greatest values by name; nothing is fetched from a device until asked for."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor | float] = {}
        self._weights: dict[str, float] = {}
        self._extremes: dict[str, list[Tensor | float]] = {}

    def add(self, name: str, value: Tensor | float, weight: float = 1.0) -> None:
        """A mean over `weight` things."""
        self._sums[name] = self._sums.get(name, 0.0) + value * weight
        self._weights[name] = self._weights.get(name, 0.0) + weight

    def extend(self, name: str, value: Tensor | float) -> None:
        """An extreme; the name says which: it ends in _min or _max."""
        self._extremes.setdefault(name, []).append(value)

    def join(self, other: Tally) -> None:
        """Take in what another has gathered."""
        for name, value in other._sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
            self._weights[name] = self._weights.get(name, 0.0) + other._weights[name]
        for name, values in other._extremes.items():
            self._extremes.setdefault(name, []).extend(values)

    def plain(self) -> Tally:
        """Return the same with plain numbers, which another process can read."""
        plain = Tally()
        plain._sums = {name: float(value) for name, value in self._sums.items()}
        plain._weights = dict(self._weights)
        plain._extremes = {
            name: [float(value) for value in values] for name, values in self._extremes.items()
        }
        return plain

    def forget(self, name: str) -> None:
        """Reset one mean."""
        self._sums.pop(name, None)
        self._weights.pop(name, None)

    def figures(self) -> dict[str, float]:
        """Return all of them as plain numbers; what has no weight is left out."""
        means = {name: float(self._sums[name]) / weight for name, weight in self._weights.items() if weight}
        ends = {
            name: (min if name.endswith("_min") else max)(float(value) for value in values)
            for name, values in self._extremes.items()
        }
        return {**means, **ends}
