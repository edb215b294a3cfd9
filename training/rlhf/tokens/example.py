"""One judgment as a method reads it: tokenised completions with their ranks, weights and labels."""

from __future__ import annotations

from dataclasses import dataclass, field

from training.rlhf.losses import NOT_ORDERED
from training.rlhf.tokens.encoding import Answered
from training.rlhf.tokens.labels import Labels


@dataclass(frozen=True, slots=True)
class Example:
    """One judgment, tokenised."""

    judgment: str
    answers: tuple[Answered, ...]
    ranks: tuple[int, ...]
    """Rank of each answer as in `losses.plackett_luce`: 1 best, equal tied, −1 not ordered, below all ranked
    ones. 0 has no part in it; all are 0 where no preference was given."""
    strength: int = 0
    """Strength of the preference for the winner, 1 to 4; 0 when not asked."""
    weight: float = 1.0
    """Weight in the loss: its loss is multiplied by this and the step's losses divided by their sum."""
    prompt: str = ""
    """The prompt's id: judgments of one prompt are not independent of each other."""
    annotator: str = ""
    """Pseudonym of the annotator; empty for a reviewer's decision."""
    labels: Labels = field(default_factory=Labels)
    """Labels besides the ranking."""
    completions: tuple[str, ...] = ()
    """Ids of the completions that `answers` are, in their order; empty for texts that are none, as corrected
    ones."""
    places: tuple[int, ...] = ()
    """Place of each answer on the annotator's screen, from 0; empty where no order is known, and of a
    reviewer's decision."""
    group: str = ""
    """Group of the annotator; empty for none, and for a reviewer's decision."""
    round: int = 0
    """Round of the judgment."""

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """(winner, loser) of every pair that the ranks decide, as indexes into `answers`."""
        present = [(index, rank) for index, rank in enumerate(self.ranks) if rank]
        return tuple(
            (a, b)
            for a, first in present
            for b, second in present
            if first > 0 and (first < second or second == NOT_ORDERED)
        )

    @property
    def compared(self) -> int:
        """Return the number of answers that have a part in the ranking, ordered or not."""
        return sum(rank != 0 for rank in self.ranks)

    @property
    def ties(self) -> bool:
        """Return whether two ranked answers share a rank."""
        ranked = [rank for rank in self.ranks if rank > 0]
        return len(set(ranked)) < len(ranked)

    @property
    def tokens(self) -> int:
        """Length of the longest prompt + answer."""
        return max(len(answer.ids) for answer in self.answers)
