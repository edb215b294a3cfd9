"""Preferences as files spell them: words, numbers and scales, read for a column as a whole.

A column of winners is read once, from all values that the file has in it (`read_column`). What each value
means is shown before anything is imported. Three rules keep a winner from being turned round:

1. The file's own names and numbers come first: beside `response_0` and `response_1`, both `response_1` and 1
   name the second.
2. A 0 makes the whole column count from 0. A column that may count from 0 or from 1 is asked about.
3. Numbers below 0, or up to an odd 5, 7 or 9, are a scale from the first answer to the second.

`values` of an import (value → meaning, as `neither=both_bad`) answers what the rules leave open.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_lowercase
from typing import Any

from django.utils.translation import gettext as _

from annotation.choices import NOT_ORDERED, RatingScale, Verdict
from annotation.exchange.formats.fields import FieldError
from annotation.exchange.formats.items import READINGS, Row, verdict_of
from annotation.record.judgment import RatingPart

STRENGTHS = range(1, 5)
_NO_WINNER = {
    **dict.fromkeys(
        (
            *("tie", "tied", "equal", "equals", "same", "the same", "about the same", "draw"),
            *("no preference", "indifferent", "tie both", "equally"),
        ),
        Verdict.EQUAL,
    ),
    **dict.fromkeys(
        ("both good", "bothgood", "tie bothgood", "tie both good", "all good"), Verdict.BOTH_GOOD
    ),
    **dict.fromkeys(
        ("both bad", "bothbad", "tie bothbad", "tie both bad", "all bad", "neither good", "neither is good"),
        Verdict.BOTH_BAD,
    ),
    **dict.fromkeys(
        ("cannot judge", "can t judge", "can not judge", "can t decide", "unsure", "skip", "skipped"),
        Verdict.CANNOT_JUDGE,
    ),
}
NOUNS = (
    "answer|response|output|completion|generation|candidate|prediction|text|reply|summary|summarization|"
    "hypothesis|model|system|option|choice|assistant|ref|reference|continuation|translation"
)
_NOUN = re.compile(rf"(?:(?:{NOUNS})s? ?)?([a-z]|\d{{1,2}})")
_ORDINALS = ("first", "second", "third", "fourth")
_STRONGER = {
    **dict.fromkeys(("slightly", "a bit", "a little", "somewhat", "marginally"), 1),
    **dict.fromkeys(("much", "significantly", "strongly", "clearly", "far", "substantially"), 3),
}
_INTENSE = "|".join(sorted(_STRONGER, key=len, reverse=True))
_BETTER = re.compile(
    rf"(?P<who>.+?) (?:is |was )?(?:(?P<how>{_INTENSE}) )?(?:better|preferred|wins|won)(?: than .+)?"
)
_PREFER = re.compile(rf"(?:(?P<how>{_INTENSE}) )?prefers? (?P<who>.+)")
_SIGNS = re.compile(r"\W*(?P<left>[\w .-]+?)\s*(?P<sign>>>|<<|>|<|=|≫|≪)\s*(?P<right>[\w .-]+?)\W*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """The meaning of one value: the place of the winner, or a verdict without one."""

    place: int | None = None
    verdict: Verdict = Verdict.RANKED
    strength: int | None = None

    def ranks(self, answers: int) -> tuple[int, ...]:
        """Return the ranks of so many answers, 1 best.

        The best of more than two leaves the others unordered: the file does not say that they are tied.
        """
        if self.verdict == Verdict.CANNOT_JUDGE:
            return ()
        others = 2 if answers == 2 else NOT_ORDERED
        return tuple(1 if self.place in (None, place) else others for place in range(answers))

    def words(self, names: Sequence[str]) -> str:
        """The meaning as `values` spells it: the name of an answer, with its strength, or a verdict."""
        if self.place is None:
            return str(self.verdict)
        name = names[self.place] if self.place < len(names) else f"answer_{self.place + 1}"
        return name if self.strength is None else f"{name}:{self.strength}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnReading:
    """The meaning of every value of a column of winners."""

    values: Mapping[str, Reading]
    """Value, as `spelled`, → its meaning. A value that is not here is read row by row, or refused there."""
    unclear: tuple[str, ...] = ()
    """Values that the rules leave open."""
    note: str = ""
    """The rule by which numbers were read."""
    question: str = ""
    """What must be answered before the file can be imported; empty where all is clear."""


def spelled(value: Any) -> str:
    """Return a value as columns are compared: in lower case, 2.0 as 2, with single spaces."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    text = " ".join(str(value).split()).lower()
    return text.removesuffix(".0") if re.fullmatch(r"[+-]?\d{1,9}\.0", text) else text


def no_winner(word: Any) -> Verdict | None:
    """Return the verdict without a winner that a word stands for; None where it is none."""
    return _NO_WINNER.get(_plain(spelled(word)))


def _plain(word: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", word).strip()


def marks_of(names: Sequence[str]) -> list[str]:
    """The letter or number at the end of each answer's name; its place, from 1, where there is none."""
    marks = []
    for place, name in enumerate(names, start=1):
        match = re.search(r"(?:^|[^a-z0-9])([a-z]|\d{1,2})$|(\d{1,2})$", name.lower())
        marks.append((match.group(1) or match.group(2)).lstrip("0") or "0" if match else str(place))
    return marks if len(set(marks)) == len(marks) else [str(place) for place, _ in enumerate(names, start=1)]


def place_of(word: Any, names: Sequence[str]) -> int | None:
    """Return the place of the answer that a word names; None where it names none, or may name two."""
    found = _AnswerWords(names).place(spelled(word))
    return found if isinstance(found, int) else None


class _AnswerWords:
    """The words by which the answers of a file are called."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self.marks = marks_of(names)
        self.numbered = all(mark.isdigit() for mark in self.marks)
        self._words: dict[str, int] = {}
        for place, name in enumerate(names):
            self._words.setdefault(_plain(name.lower()), place)
        for place in range(min(len(names), len(_ORDINALS))):
            self._words.setdefault(_ORDINALS[place], place)
        if len(names) == 2:
            self._words |= {"left": 0, "right": 1}

    def place(self, word: str) -> int | str | None:
        """The place that a word names; the digits of a number that only its column can explain; or None."""
        plain = _plain(word)
        if plain in self._words:
            return self._words[plain]
        for noun in (
            "",
            *(f"{noun} " for noun in ("response", "answer", "model", "output", "option", "the")),
        ):
            if noun and plain.startswith(noun) and plain.removeprefix(noun) in self._words:
                return self._words[plain.removeprefix(noun)]
        if not (match := _NOUN.fullmatch(plain)):
            return None
        mark = match.group(1)
        if not mark.isdigit():
            place = ascii_lowercase.index(mark) if self.numbered else _index(self.marks, mark)
            return place if place is not None and place < len(self._names) else None
        return str(int(mark))


def _index(marks: Sequence[str], mark: str) -> int | None:
    return marks.index(mark) if mark in marks else None


def read_column(
    values: Iterable[Any],
    names: Sequence[str],
    *,
    answered: Mapping[str, str] | None = None,
    may_be_scale: bool = True,
) -> ColumnReading:
    """Read a column of winners from all its values.

    names: the file's names of the answers, first to last. answered: meaning of values that a person gave.
    may_be_scale: whether 1 to 5 may be degrees; in a column called `winner` a 5 is a mistake.
    """
    words = _AnswerWords(names)
    answers = {spelled(value): meaning for value, meaning in (answered or {}).items()}
    readings: dict[str, Reading] = {}
    numbers: dict[str, int] = {}
    unclear: list[str] = []
    has_degrees = False
    for value in dict.fromkeys(spelled(value) for value in values):
        if value in answers:
            readings[value] = _answered(answers[value], words)
        elif re.fullmatch(r"[+-]?\d{1,9}", value):
            numbers[value] = int(value)
        elif (without := no_winner(value)) is not None:
            readings[value] = Reading(verdict=without)
        else:
            place, strength = _compared(value, words)
            has_degrees |= strength is not None
            if isinstance(place, int):
                readings[value] = Reading(place=place, strength=strength)
            elif isinstance(place, str):
                numbers[value] = int(place)
            elif place is not None:
                readings[value] = place
            else:
                unclear.append(value)
    if has_degrees:
        readings = {value: _graded(value, reading) for value, reading in readings.items()}
    spoken = any(reading.place is not None for value, reading in readings.items() if value not in answers)
    note, question, counted = _numbers(numbers, words, spoken=spoken, may_be_scale=may_be_scale)
    return ColumnReading(
        values={**readings, **counted},
        unclear=(*unclear, *(numbers if question else ())),
        note=note,
        question=question,
    )


def _compared(value: str, words: _AnswerWords) -> tuple[int | str | Reading | None, int | None]:
    """Read «A is slightly better», «A>>B», «[[A]]», «strongly prefer B», «A=B», or a plain name."""
    bare = value.strip("[]()*\"' .")
    if (place := words.place(bare)) is not None:
        return place, None
    if match := _SIGNS.fullmatch(value):
        left, right = words.place(match["left"]), words.place(match["right"])
        if not isinstance(left, int) or not isinstance(right, int) or left == right or len(words.marks) != 2:
            return None, None
        sign = match["sign"]
        if sign == "=":
            return Reading(verdict=Verdict.EQUAL), None
        better = left if sign in (">", ">>", "≫") else right
        return better, 3 if sign in (">>", "<<", "≫", "≪") else 1
    plain = _plain(value)
    for pattern in (_BETTER, _PREFER):
        if match := pattern.fullmatch(plain):
            place = words.place(match["who"])
            if isinstance(place, int):
                return place, _STRONGER.get(match["how"] or "")
    return None, None


def _graded(value: str, reading: Reading) -> Reading:
    """In a column that says «slightly» and «much», a plain «better» lies between the two."""
    if reading.place is None or reading.strength is not None or "better" not in value:
        return reading
    return Reading(place=reading.place, strength=2)


def _answered(meaning: str, words: _AnswerWords) -> Reading:
    """A meaning that a person gave: a verdict, or the name of an answer and maybe `:STRENGTH`."""
    name, _, strength = meaning.partition(":")
    verdict = next((each for each in Verdict if str(each) == spelled(name).replace(" ", "_")), None)
    verdict = verdict or no_winner(name)
    if verdict is not None and verdict != Verdict.RANKED:
        return Reading(verdict=verdict)
    place = words.place(spelled(name))
    if isinstance(place, str):
        # A person counts as the file's names do.
        place = _index(words.marks, place)
    ours = re.fullmatch(r"answer_(\d{1,2})", spelled(name))
    if place is None and ours:
        place = int(ours.group(1)) - 1
    if place is None or not 0 <= place < len(words.marks):
        raise ValueError(meaning)
    if strength and strength not in map(str, STRENGTHS):
        raise ValueError(meaning)
    return Reading(place=place, strength=int(strength) if strength else None)


def _numbers(
    numbers: Mapping[str, int], words: _AnswerWords, *, spoken: bool, may_be_scale: bool
) -> tuple[str, str, dict[str, Reading]]:
    """Read numbers as places or as a scale: the rule, or the question, and the meaning of each."""
    if not numbers:
        return "", "", {}
    size, seen = len(words.marks), set(numbers.values())
    if spoken and not all(str(number) in words.marks for number in seen):
        return "", "it has names and numbers side by side", {}
    if words.numbered and {str(number) for number in seen} <= set(words.marks):
        return "", "", {value: Reading(place=words.marks.index(str(n))) for value, n in numbers.items()}
    if size == 2 and (min(seen) < 0 or (max(seen) > 2 and may_be_scale)):
        return _scale(numbers)
    if min(seen) < 0 or max(seen) > size or (0 in seen and max(seen) >= size):
        return "", f"its numbers go from {min(seen)} to {max(seen)}, for {size} answers", {}
    if words.numbered and "0" in words.marks:
        # 0, 1, 2 for the answers 0 and 1: the 2 may be a tie, or the column may count from 1.
        return "", f"it has {_listed(seen)} for the answers {', '.join(words.marks)}", {}
    if 0 in seen:
        if words.numbered:
            return "", "it may count from 0, or 0 may stand for no winner", {}
        return "counted from 0", "", {value: Reading(place=n) for value, n in numbers.items()}
    if max(seen) == size:
        return "counted from 1", "", {value: Reading(place=n - 1) for value, n in numbers.items()}
    return "", "it may count from 0 or from 1", {}


def _scale(numbers: Mapping[str, int]) -> tuple[str, str, dict[str, Reading]]:
    """Read numbers as degrees from the first of two answers to the second."""
    low, high = min(numbers.values()), max(numbers.values())
    if low < 0:
        middle, reach = 0, max(-low, high)
    elif low > 0 and high in (5, 7, 9):
        middle = (high + 1) // 2
        reach = high - middle
    else:
        return "", f"it may be a scale, of which only {_listed(set(numbers.values()))} occur", {}
    if reach not in STRENGTHS:
        return "", f"a scale from {low} to {high} has more degrees than the four of Rondo", {}

    def reading(number: int) -> Reading:
        if number == middle:
            return Reading(verdict=Verdict.EQUAL)
        strength = abs(number - middle) if reach > 1 else None
        return Reading(place=int(number > middle), strength=strength)

    first, last = middle - reach, middle + reach
    note = f"a scale from {first}, the first answer, over {middle}, equal, to {last}, the second"
    return note, "", {value: reading(number) for value, number in numbers.items()}


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


@dataclass(frozen=True, kw_only=True, slots=True)
class RatingReading:
    """The scale of a column of ratings, and the value on it of every value of the column."""

    scale: RatingScale
    values: Mapping[str, int] = field(default_factory=dict)
    note: str = ""


_THUMBS = {
    **dict.fromkeys(
        (
            *(
                "true",
                "yes",
                "up",
                "thumbs up",
                "thumb up",
                "thumbs_up",
                "👍",
                "good",
                "positive",
                "like",
                "liked",
            ),
            *(
                "correct",
                "accept",
                "accepted",
                "desirable",
                "helpful",
                "safe",
                "pass",
                "passed",
                "upvote",
                "won",
            ),
        ),
        1,
    ),
    **dict.fromkeys(
        (
            *(
                "false",
                "no",
                "down",
                "thumbs down",
                "thumb down",
                "thumbs_down",
                "👎",
                "bad",
                "negative",
                "dislike",
            ),
            *("disliked", "incorrect", "wrong", "reject", "rejected", "undesirable", "unhelpful", "unsafe"),
            *("fail", "failed", "downvote", "lost"),
        ),
        0,
    ),
}
_FROM_ZERO = "0 to 4, stored as 1 to 5"
_HIGHEST_FROM_ZERO = 4
_HELPSTEER = frozenset({"helpfulness", "correctness", "coherence", "complexity", "verbosity"})
_HELPSTEER_AT_LEAST = 4
_STARS = re.compile(r"rating|star|likert|grade|points?\b")
_MARK = re.compile(r"thumb|label|like|correct|accept|desirable|^is_|kto|upvote|passed|good")


def read_ratings(name: str, values: Iterable[Any]) -> RatingReading | str:
    """Read a column of ratings from all its values: its scale, or why it has none."""
    seen = dict.fromkeys(spelled(value) for value in values)
    if all(value in _THUMBS for value in seen):
        return RatingReading(scale=RatingScale.THUMBS, values={value: _THUMBS[value] for value in seen})
    if not all(re.fullmatch(r"[+-]?\d{1,9}", value) for value in seen):
        return "its values are no whole numbers"
    numbers = {value: int(value) for value in seen}
    low, high = min(numbers.values()), max(numbers.values())
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower())
    if (low, high) == (1, 1) and not _STARS.search(plain) and not _MARK.search(plain):
        return "1 may be the best of 0 and 1, or the worst of 1 to 5"
    if low >= 0 and high <= 1 and not (low == 1 and _STARS.search(plain)):
        if low == high == -1 or set(numbers.values()) == {-1, 1}:
            return "its values are no scale of Rondo"
        return RatingReading(scale=RatingScale.THUMBS, values=numbers, note="0 thumb down, 1 thumb up")
    if set(numbers.values()) == {-1, 1}:
        # Feedback of chat pages: -1 and 1.
        return RatingReading(
            scale=RatingScale.THUMBS,
            values={value: int(number > 0) for value, number in numbers.items()},
            note="-1 thumb down, 1 thumb up",
        )
    if low >= 1 and high <= 5:
        return RatingReading(scale=RatingScale.FIVE, values=numbers, note="1 to 5")
    if low >= 1 and high <= 7:
        return RatingReading(scale=RatingScale.SEVEN, values=numbers, note="1 to 7")
    if low == 0 and high <= 4:
        return RatingReading(
            scale=RatingScale.FIVE,
            values={value: number + 1 for value, number in numbers.items()},
            note=_FROM_ZERO,
        )
    return f"its values go from {low} to {high}; Rondo rates 0 and 1, 1 to 5, or 1 to 7"


def helpsteer_of(names: Iterable[str]) -> frozenset[str]:
    """Return the attributes of HelpSteer among the columns of a file; none where most are missing."""
    found = _HELPSTEER.intersection(names)
    return found if len(found) >= _HELPSTEER_AT_LEAST else frozenset()


def read_alike(readings: Mapping[str, RatingReading]) -> dict[str, RatingReading]:
    """Read the columns of ratings of one file by one scale, each read by itself up to now.

    Who rates from 0 to 4 in one column does so in the others: one without a 0 that ends at 4 would count a
    step too low. All columns of HelpSteer go from 0 to 4, also where a sample of it has a 0 in none, or
    nothing but 0 and 1 in one.
    """
    helpsteer = helpsteer_of(readings)
    shows_zero = any(reading.note == _FROM_ZERO for reading in readings.values())
    alike = dict(readings)
    for name, reading in readings.items():
        numbers = {value: int(value) for value in reading.values if re.fullmatch(r"\d+", value)}
        if len(numbers) < len(reading.values) or max(numbers.values(), default=5) > _HIGHEST_FROM_ZERO:
            continue
        if name in helpsteer or (shows_zero and reading.scale == RatingScale.FIVE):
            values = {value: number + 1 for value, number in numbers.items()}
            alike[name] = RatingReading(scale=RatingScale.FIVE, values=values, note=_FROM_ZERO)
    return alike


def read_value(word: Any, names: Sequence[str]) -> Reading | None:
    """Return what a value says of the answers by itself; None where it says nothing, or may say two things.

    A number alone counts only where the answers' names have numbers: who counts from 0 nobody can tell.
    """
    if isinstance(word, (dict, list)) or word in (None, ""):
        return None
    column = read_column([word], names)
    return None if column.question or column.note else column.values.get(spelled(word))


def named_place(word: Any, names: Sequence[str]) -> int | None:
    """Return the place of the answer that a name of the file means; None where it means none for sure."""
    reading = read_value(word, names)
    return reading.place if reading is not None and reading.strength is None else None


# The decision of one judgment, from several results of an annotation tool that may each say a part of it.
#
# A value is read by the whole file, as the plan has read its part; alone where no plan has, as in a survey.


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
class VerdictRanks:
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
