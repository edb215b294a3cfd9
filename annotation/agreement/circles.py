"""Intransitive preferences of one annotator. Plain Python."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

Wins = Mapping[tuple[Any, Any], int]
"""(a, b) → 1 where a is better, −1 where b is, 0 where neither."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Circles:
    """The triples of completions that one person has decided, and those that go round in a circle."""

    cyclic: tuple[tuple[Hashable, Hashable, Hashable], ...]
    triples: int
    """All that could have been cyclic: their pairs were not asked in one ranking."""
    of_one_ranking: int
    """Triples of one ranking, which is never cyclic."""


def circles_among(wins: Wins, asked_together: Mapping[tuple[Any, Any], Hashable] | None = None) -> Circles:
    """Circles in one person's preferences among the completions of one prompt.

    Counted are triples whose three pairs are all decided. One is cyclic where a beats b, b beats c and c
    beats a (Kendall & Babington Smith 1940). Whoever tosses a coin has one in four. `asked_together` gives
    the judgment of each pair: a triple of one judgment cannot be cyclic and is counted apart.
    """
    better: dict[Hashable, dict[Hashable, int]] = {}
    judgment: dict[frozenset[Hashable], Hashable] = {}
    for pair, outcome in wins.items():
        left, right = pair
        if outcome:
            better.setdefault(left, {})[right] = outcome
            better.setdefault(right, {})[left] = -outcome
            judgment[frozenset(pair)] = asked_together[pair] if asked_together else frozenset(pair)
    cyclic, triples, of_one_ranking = [], 0, 0
    for a, b, c in combinations(sorted(better, key=str), 3):
        first, second, third = better[a].get(b), better[b].get(c), better[c].get(a)
        if not (first and second and third):
            continue
        if len({judgment[frozenset(pair)] for pair in ((a, b), (b, c), (c, a))}) == 1:
            of_one_ranking += 1
            continue
        triples += 1
        if first == second == third:
            cyclic.append((a, b, c))
    return Circles(cyclic=tuple(cyclic), triples=triples, of_one_ranking=of_one_ranking)
