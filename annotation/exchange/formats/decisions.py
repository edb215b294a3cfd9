"""The decision of one judgment, from several results of an annotation tool that may each say a part of it.

A value is read by the whole file, as the plan has read its part; alone where no plan has, as in a survey.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from annotation.choices import Verdict
from annotation.exchange.formats.fields import FieldError
from annotation.exchange.formats.items import READINGS, Row, verdict_of
from annotation.exchange.formats.verdicts import (
    ColumnReading,
    RatingReading,
    Reading,
    read_ratings,
    read_value,
    spelled,
)
from annotation.record.judgment import RatingPart


def is_left_out(row: Row, part: str) -> bool:
    """True for a part that a person leaves out: it stays with the annotation, unread."""
    return row.get(READINGS, {}).get((part, ()), part) is None


def winner_of(row: Row, part: str, value: Any, names: Sequence[str]) -> Reading | None:
    """Return what a value of a part says of the answers; None where it says nothing, or is left out."""
    key, readings = (part, tuple(names)), row.get(READINGS, {})
    if key not in readings or isinstance(value, (list, dict)):
        return read_value(value, names)
    column = readings[key]
    return column.values.get(spelled(value)) if isinstance(column, ColumnReading) else None


def rating_of(row: Row, part: str, value: Any, completion: int, criterion: str) -> RatingPart | None:
    """Return the rating that a value of a part is; None where it is none, or is left out."""
    if isinstance(value, (list, dict)) or value in (None, ""):
        return None
    readings = row.get(READINGS, {})
    column = readings[part, ()] if (part, ()) in readings else read_ratings(part, [value])
    number = column.values.get(spelled(value)) if isinstance(column, RatingReading) else None
    if number is None or not isinstance(column, RatingReading):
        return None
    return RatingPart(completion=str(completion), criterion=criterion, scale=str(column.scale), value=number)


@dataclass(slots=True)
class Decision:
    """A verdict and its ranks. Two results that contradict each other are refused."""

    answers: int
    """How many answers there are."""
    _verdict: Verdict = Verdict.NOT_ASKED
    _ranks: tuple[int, ...] = ()
    _strength: int | None = None
    _tie: Verdict | None = None

    def rank(self, ranks: tuple[int, ...], where: str, strength: int | None = None) -> None:
        """Take ranks, 1 best. Raises `FieldError` where other ranks were given before."""
        if self._ranks and self._ranks != ranks:
            raise FieldError(
                "preferences_differ",
                _("A result before it says another preference. Keep one of them."),
                field=where,
            )
        self._ranks, self._strength = ranks, self._strength if strength is None else strength
        # More than two that are all tied are a ranking still; two are called equal.
        self._verdict = verdict_of(ranks) if self.answers == 2 else Verdict.RANKED

    def say(self, reading: Reading, where: str) -> None:
        """Take what a value says: the best answer, or a tie, which goes before another result's winner."""
        if reading.place is not None:
            self.rank(reading.ranks(self.answers), where, reading.strength if self.answers == 2 else None)
        elif self._tie in (None, reading.verdict):
            self._tie = reading.verdict
        else:
            raise FieldError(
                "preferences_differ",
                _("This result says %(verdict)s, and a result before it says %(other)s. Keep one of them."),
                field=where,
                verdict=reading.verdict,
                other=self._tie,
            )

    @property
    def verdict(self) -> Verdict:
        """The verdict; `not_asked` where no result gives one."""
        return self._tie or self._verdict

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks; none where the verdict gives no order."""
        if self._tie is None:
            return self._ranks
        return () if self._tie == Verdict.CANNOT_JUDGE else (1,) * self.answers

    @property
    def strength(self) -> int | None:
        """How much better the winner is."""
        return self._strength if self.verdict == Verdict.RANKED else None
