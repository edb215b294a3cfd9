"""Simulated annotators of known taste, who compare completions that are rows of random features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.rlhf.tokens.encoding import EncodedAnswer
from training.rlhf.tokens.example import Example

Floats = NDArray[np.float64]
ANSWERS = (EncodedAnswer((1, 2), 1), EncodedAnswer((1, 2), 1))


@dataclass(frozen=True, kw_only=True)
class Person:
    """One simulated annotator."""

    taste: Sequence[float]
    """Weight of each feature in their reward."""
    group: str = ""
    first: float = 0.0
    """Their lean to the completion shown first, in log odds."""


def judged(
    people: Mapping[str, Person], count: int, *, seed: int, round_number: int = 1, shown: bool = True
) -> tuple[Floats, list[Example]]:
    """Return the features, (2 · count, F), and the pairs that people judged by turns, each on a prompt."""
    generator = np.random.default_rng(seed)
    tables, examples = [], []
    names = sorted(people)
    for number in range(count):
        name = names[number % len(names)]
        person = people[name]
        table = generator.normal(size=(2, len(person.taste)))
        places = (0, 1) if generator.random() < 0.5 else (1, 0)
        lean = person.first if places == (0, 1) else -person.first
        chance = 1 / (1 + np.exp(-((table[0] - table[1]) @ np.array(person.taste) + lean)))
        tables.append(table)
        examples.append(
            Example(
                f"j{seed}-{number}",
                ANSWERS,
                (1, 2) if generator.random() < chance else (2, 1),
                prompt=f"p{seed}-{number}",
                annotator=name,
                places=places if shown else (),
                group=person.group,
                round=round_number,
            )
        )
    return np.concatenate(tables), examples
