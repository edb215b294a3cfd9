"""Examples as packed rows: what a judgment's answers begin with once, each one's rest after it, no padding.

    judgment 1                                            judgment 2
    prompt … | A and B … | rest of A | rest of B | C … |  prompt … | A … | …

Texts of one model often begin alike. Positions count on along every answer's own way from the prompt's
first token. What is shared is decided by tokens alone; where the tokeniser merged the prompt's end with an
answer, the rows part one token earlier.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from training.rlhf.model.attention import Layout, Segment
from training.rlhf.tokens.encoding import EncodedAnswer
from training.rlhf.tokens.example import Example

_WORTH_SHARING = 4
"""Answers that go on alike for fewer tokens part at once: a segment costs a call of attention per block."""


@dataclass(frozen=True, slots=True)
class PackedRow:
    """Prompts with answers whose tokens are predicted. T tokens in the row, A tokens of answers."""

    layout: Layout
    """Which token sees which."""
    input_ids: Tensor
    """(1, T) int."""
    position_ids: Tensor
    """(1, T) int: a token's place in its own prompt + answer."""
    predictors: Tensor
    """(A,) place of the token before each token of an answer, answer by answer, end tokens included: its
    state predicts it."""
    target_ids: Tensor
    """(A,) int: the token itself."""
    target_answer: Tensor
    """(A,) the answer that each belongs to."""
    answers: int
    """Number of answers."""

    @property
    def tokens(self) -> int:
        """T: every one of them is real."""
        return int(self.input_ids.shape[1])

    @property
    def answer_tokens(self) -> Tensor:
        """(answers,) tokens of each answer that are learned from, its end token included."""
        return torch.bincount(self.target_answer, minlength=self.answers)

    def predicted(self) -> tuple[Tensor, Tensor, Tensor]:
        """Every prediction once, as the token and the place that predicts it, and which of these each token
        of an answer is: (U,), (U,), (A,). What answers share is predicted once."""
        ids = int(self.target_ids.max()) + 1
        both, where = torch.unique(self.predictors * ids + self.target_ids, return_inverse=True)
        return both % ids, both // ids, where


@dataclass(frozen=True, slots=True)
class Batch(PackedRow):
    """Examples as one packed row.

    T tokens, E examples, R answers, A answer tokens, P pairs, K answers of the example with most.
    """

    last: Tensor
    """(R,) place of each answer's last token, its end token, where a score is read."""
    targets: Tensor
    """(A,) place of every token of an answer, answer by answer, end tokens included. A place stands here
    as often as answers share it."""
    answer_example: Tensor
    """(R,) the example that each answer belongs to."""
    table: Tensor
    """(E, K) the answers of each example; where it has fewer, 0, which `ranks` 0 distinguishes."""
    ranks: Tensor
    """(E, K) int: 1 best, equal tied, −1 not ordered, below all ranked ones, 0 not compared or absent."""
    winners: Tensor
    """(P,) answer that won each decided pair."""
    losers: Tensor
    """(P,) answer that lost it."""
    pair_example: Tensor
    """(P,) example that each pair belongs to."""
    strength: Tensor
    """(E,) float: strength of the preference, 1 to 4; 0 when not asked."""
    weight: Tensor
    """(E,) float: weight of each example in a step's mean."""

    @property
    def examples(self) -> int:
        """E."""
        return len(self.weight)

    @property
    def compared(self) -> Tensor:
        """(E,) int: how many answers have a part in the ranking."""
        return (self.ranks != 0).sum(-1)

    def mean_over_pairs(self, values: Tensor) -> Tensor:
        """(P,) to (E,): the mean over each example's pairs, so that a ranking counts as one judgment.

        0 for an example without a decided pair.
        """
        zeros = torch.zeros(self.examples, dtype=values.dtype, device=values.device)
        counts = zeros.index_add(0, self.pair_example, torch.ones_like(values))
        return zeros.index_add(0, self.pair_example, values) / counts.clamp(min=1)


def packed_tokens(example: Example) -> int:
    """Tokens that an example takes in a packed row."""
    row = _Row()
    row.add(example)
    return len(row.ids)


def pack(examples: Sequence[Example], *, device: torch.device) -> Batch:
    """Return one packed row of the examples in the order given, on `device`."""
    row = _Row()
    for example in examples:
        row.add(example)
    most = max(len(example.answers) for example in examples)
    table = torch.zeros(len(examples), most, dtype=torch.long)
    ranks = torch.zeros(len(examples), most, dtype=torch.long)
    first = 0
    pairs: list[tuple[int, int, int]] = []
    for index, example in enumerate(examples):
        count = len(example.answers)
        table[index, :count] = torch.arange(first, first + count)
        ranks[index, :count] = torch.tensor(example.ranks)
        pairs += [(first + winner, first + loser, index) for winner, loser in example.pairs]
        first += count
    winners, losers, pair_example = torch.tensor(pairs, dtype=torch.long).reshape(-1, 3).unbind(1)

    def tensor(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long).to(device)

    return Batch(
        **_predictions(row, device),
        last=tensor(row.last),
        targets=tensor(row.targets),
        answer_example=tensor([index for index, example in enumerate(examples) for _ in example.answers]),
        table=table.to(device),
        ranks=ranks.to(device),
        winners=winners.to(device),
        losers=losers.to(device),
        pair_example=pair_example.to(device),
        strength=torch.tensor([float(example.strength) for example in examples], device=device),
        weight=torch.tensor([example.weight for example in examples], device=device),
    )


def pack_predictions(groups: Iterable[Sequence[EncodedAnswer]], *, device: torch.device) -> PackedRow:
    """Groups of answers, each to one prompt, as one packed row without what predicts nothing: the last token
    of every answer. Where answers are short that is a good part of the row."""
    row = _Row()
    for answers in groups:
        row.add_answers(answers, ends=False)
    return PackedRow(**_predictions(row, device))


def _predictions(row: _Row, device: torch.device) -> dict[str, Any]:
    def tensor(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long).to(device)

    return {
        "layout": Layout(row.segments, device),
        "input_ids": tensor(row.ids).unsqueeze(0),
        "position_ids": tensor(row.positions).unsqueeze(0),
        "predictors": tensor(row.predictors),
        "target_ids": tensor(row.target_ids),
        "target_answer": tensor(row.target_answer),
        "answers": len(row.last),
    }


class _Row:
    """A packed row as it grows."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.last: list[int] = []
        self.targets: list[int] = []
        self.predictors: list[int] = []
        self.target_ids: list[int] = []
        self.target_answer: list[int] = []

    def add(self, example: Example) -> None:
        self.add_answers(example.answers)

    def add_answers(self, answers: Sequence[EncodedAnswer], *, ends: bool = True) -> None:
        """Answers to one prompt; without `ends` their last tokens are predicted and not run."""
        rows = [tuple(answer.ids if ends else answer.ids[:-1]) for answer in answers]
        places: list[list[int]] = [[] for _ in rows]
        self._grow(rows, list(range(len(rows))), places, after=None)
        for answer, way in zip(answers, places, strict=True):
            ids = answer.ids[:]
            for start, end in answer.learned_runs:
                self.targets += way[start:end]
                self.predictors += way[start - 1 : end - 1]
                self.target_ids += ids[start:end]
                self.target_answer += [len(self.last)] * (end - start)
            self.last.append(way[-1])

    def _grow(
        self, rows: list[tuple[int, ...]], chosen: list[int], places: list[list[int]], *, after: int | None
    ) -> None:
        """Lay down what the chosen rows have in common from where they are, then each branch of the rest.

        `places` are those of every row's tokens so far; the chosen rows agree on them.
        """
        done = len(places[chosen[0]])
        common = _common([rows[index] for index in chosen], done)
        if common:
            begin = len(self.ids)
            self.ids += rows[chosen[0]][done : done + common]
            self.positions += range(done, done + common)
            for index in chosen:
                places[index] += range(begin, begin + common)
            self.segments.append(Segment(begin, common, after))
            after, done = len(self.segments) - 1, done + common
        branches: dict[tuple[int, ...], list[int]] = {}
        for index in chosen:
            if len(rows[index]) > done:
                branches.setdefault(rows[index][done : done + _WORTH_SHARING], []).append(index)
        for branch in branches.values():
            self._grow(rows, branch, places, after=after)


def _common(rows: Sequence[tuple[int, ...]], start: int) -> int:
    """Return the number of tokens that the rows share from `start` on."""
    first, *others = rows
    most = len(first) - start
    for other in others:
        pairs = zip(first[start : start + most], other[start:], strict=False)
        differing = next((place for place, (a, b) in enumerate(pairs) if a != b), None)
        most = min(most, len(other) - start) if differing is None else differing
    return most


def passes(
    examples: Sequence[Example], *, tokens: int, rank: int = 0, world: int = 1
) -> Iterator[list[Example]]:
    """One process's share of a step, in groups that fill a packed row of at most `tokens`.

    An example longer than that goes alone. The order is kept.
    """
    group: list[Example] = []
    filled = 0
    for example in examples[rank::world]:
        size = packed_tokens(example)
        if group and filled + size > tokens:
            yield group
            group, filled = [], 0
        group.append(example)
        filled += size
    if group:
        yield group
