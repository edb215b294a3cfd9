"""Known preferences, and simulated annotators who judge by them.

A preference gives every response a true reward. An annotator chooses by it with logistic noise: of two
responses the better one with probability σ(sharpness · difference) (Bradley & Terry 1952), of more by
Plackett and Luce, which Gumbel noise on each utility gives exactly. Habits are added on top: ties within a
threshold, a liking for the first position, tastes of one's own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

Reward = Callable[[str, str], float]
"""The true reward of a response to a prompt, both as text."""

_WORD = re.compile(r"[a-z]+")
_TOPICS = re.compile(r"about ([a-z]+) and ([a-z]+)")


def words_in(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return _WORD.findall(text.lower())


def length_band(prompt: str, text: str, *, low: int = 14, high: int = 20) -> float:
    """Reward a response of 14 to 20 words: 0 within, falling by one for every four words outside."""
    count = len(words_in(text))
    return -max(low - count, count - high, 0) / 4


def list_format(prompt: str, text: str) -> float:
    """Reward list items: 2 where every line is one, 0 where none is."""
    lines = [line for line in text.splitlines() if line.strip()]
    return 2 * sum(line.lstrip().startswith("- ") for line in lines) / len(lines) if lines else 0.0


def keywords(prompt: str, text: str) -> float:
    """Reward what was asked for: 1.5 for each topic that is named, 0.25 off for every word beyond 24."""
    named = set(words_in(text))
    topics = _TOPICS.search(prompt)
    requested = topics.groups() if topics else ()
    return 1.5 * sum(topic in named for topic in requested) - max(0, len(words_in(text)) - 24) / 4


_LIKED = frozenset(("warm", "useful", "bright", "simple", "calm", "light", "soft", "strong"))


def liked_qualities(prompt: str, text: str) -> float:
    """Reward the qualities that annotators like: 2 where every sentence has one of them, 0 where none has."""
    sentences = text.count(" .")
    return 2 * sum(word in _LIKED for word in words_in(text)) / sentences if sentences else 0.0


def letters(prompt: str, text: str) -> float:
    """Reward the share of Latin letters and spaces: even a model with random weights can learn it."""
    return (
        4
        * sum(character.isascii() and (character.isalpha() or character == " ") for character in text)
        / max(1, len(text))
    )


def weighted(parts: Sequence[tuple[float, Reward]]) -> Reward:
    """Return the sum of rewards by their weights."""
    return lambda prompt, text: sum(weight * reward(prompt, text) for weight, reward in parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Annotator:
    """One simulated annotator."""

    name: str
    reward: Reward
    sharpness: float = 2.0
    """Log-odds for one unit of reward; the higher, the fewer mistakes."""
    tie_below: float = 0.0
    """Differences of perceived utility below this are called equal."""
    first_bonus: float = 0.0
    """Log-odds in favour of the response in the first position."""

    def ranks(self, prompt: str, texts: Sequence[str], random: Random) -> list[int]:
        """Return a rank for each response in the order shown, 1 best, equal for ties."""
        utilities = [
            self.sharpness * self.reward(prompt, text)
            + _gumbel(random)
            + (self.first_bonus if position == 0 else 0.0)
            for position, text in enumerate(texts)
        ]
        order = sorted(range(len(texts)), key=lambda index: -utilities[index])
        ranks = [0] * len(texts)
        rank = 1
        for place, index in enumerate(order):
            if place and utilities[order[place - 1]] - utilities[index] >= self.tie_below:
                rank = place + 1
            ranks[index] = rank
        return ranks


def _gumbel(random: Random) -> float:
    return -math.log(-math.log(max(random.random(), 1e-300)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """A preference with its annotators, by round."""

    title: str
    truth: Callable[[int], Reward]
    """The true reward in a round, from 1: what all annotators together mean."""
    annotators: Callable[[int], list[Annotator]]
    """Those who judge in a round."""


def _constant(title: str, reward: Reward, **habits: float) -> Scene:
    people = [Annotator(name=f"annotator-{number}", reward=reward, **habits) for number in (1, 2, 3, 4)]
    return Scene(title=title, truth=lambda number: reward, annotators=lambda number: people)


_BOTH = weighted([(1.0, keywords), (1.0, list_format)])
_STYLE = weighted([(1.0, list_format), (1.0, liked_qualities), (0.5, length_band)])


def _mixture() -> Scene:
    """Two like coverage, one lists, one short answers, and one of them guesses half of the time."""
    tastes: Mapping[str, tuple[Reward, float]] = {
        "annotator-1": (weighted([(1.6, keywords), (0.4, list_format)]), 2.0),
        "annotator-2": (weighted([(1.6, keywords), (0.4, list_format)]), 0.5),
        "annotator-3": (weighted([(0.4, keywords), (1.6, list_format)]), 2.0),
        "annotator-4": (weighted([(0.4, keywords), (1.6, list_format)]), 2.0),
    }
    people = [
        Annotator(name=name, reward=reward, sharpness=sharpness)
        for name, (reward, sharpness) in tastes.items()
    ]
    return Scene(
        title="a mixture of tastes, one of them noisy",
        truth=lambda number: _BOTH,
        annotators=lambda n: people,
    )


def _drift() -> Scene:
    """Lists count for less with every round, coverage for more: what was learned first becomes stale."""

    def truth(number: int) -> Reward:
        late = min(1.0, (number - 1) / 3)
        return weighted([(0.4 + 1.2 * late, keywords), (1.6 - 1.2 * late, list_format)])

    def people(number: int) -> list[Annotator]:
        return [Annotator(name=f"annotator-{index}", reward=truth(number)) for index in (1, 2, 3, 4)]

    return Scene(title="a taste that drifts from lists to coverage", truth=truth, annotators=people)


SCENES: Mapping[str, Scene] = {
    "letters": _constant("letters instead of other characters", letters, sharpness=4.0),
    "length": _constant("14 to 20 words", length_band),
    "format": _constant("a list", list_format),
    "keywords": _constant("names the topics that were asked for", keywords),
    "style": _constant("lists of 14 to 20 words with qualities that are liked", _STYLE),
    "both": _constant("a list that names the topics", _BOTH),
    "mixture": _mixture(),
    "ties": _constant("coverage and list; near ones are called equal", _BOTH, tie_below=1.0),
    "position": _constant("coverage and list; the first position is liked", _BOTH, first_bonus=1.0),
    "drift": _drift(),
}
"""In the order of their difficulty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CostModel:
    """Seconds that a judgment takes: reading, deciding, marking. Stated, not measured."""

    prompt: float = 5.0
    """To read the prompt."""
    response: float = 8.0
    """To read one response."""
    bit: float = 4.0
    """For each bit of the decision: a ranking of k responses is one of k! orders."""
    span: float = 6.0
    """To mark one span."""

    def seconds(self, responses: int, spans: int = 0) -> float:
        """Return the seconds of one judgment."""
        bits = math.log2(math.factorial(responses))
        return self.prompt + self.response * responses + self.bit * bits + self.span * spans


@dataclass(slots=True)
class Spent:
    """Labels so far, and the time that they would have taken people."""

    labels: int = 0
    seconds: float = 0.0
    by_shape: dict[int, int] = field(default_factory=dict)
    """Number of responses → judgments."""

    def add(self, responses: int, seconds: float) -> None:
        """Count one judgment."""
        self.labels += 1
        self.seconds += seconds
        self.by_shape[responses] = self.by_shape.get(responses, 0) + 1
