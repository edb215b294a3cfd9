"""*qa-feedback* (Wu et al. 2023): pure parsing, no database.

The format, from the data's README and from `create_comp_rm_files.py` in
github.com/allenai/FineGrainedRLHF:

- `passages` are lists of texts: the title, then the sentences. `passage_id` counts passages
  from 1. `sentence_id` counts the texts of a passage from 0, so 0 is the title and 1 the
  first sentence. Here both count from 0 and the title is `None`.
- `preference` holds six pairs in the order 1v2 1v3 1v4 2v3 2v4 3v4: 1 the first, 2 the
  second, 0 neither.
- `feedback` is about `prediction 1` alone. `start` and `end` are code points, half open.

**Ranks.** Pairs are a graph of "better than". The rank of an answer is 1 + the length of the
longest chain of better answers above it. Where the pairs are a weak order, that is the weak
order. Where only the ties are not transitive (1 over 2, 3 tied with both), every decided pair
still stands and a tie between answers of different rank is broken; `broken_ties` lists
those. A circle of preferences has no ranks and is refused.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from annotation.choices import CategoryScope, Granularity
from annotation.errors import ImportErrors

PREDICTIONS = (1, 2, 3, 4)
PAIRS = tuple(combinations(range(4), 2))
LISTED_ERRORS = 50

SPAN_TYPES = {
    "Irrelevant": ("irrelevant", "Irrelevant", Granularity.SUB_SENTENCE, "#b45309"),
    "Redundant": ("redundant", "Redundant", Granularity.SUB_SENTENCE, "#a16207"),
    "Incoherent": ("incoherent", "Incoherent", Granularity.SUB_SENTENCE, "#4d7c0f"),
    "Wrong-Grounding": ("wrong-grounding", "Wrong grounding", Granularity.SENTENCE, "#be123c"),
    "Unverifiable": ("unverifiable", "Unverifiable", Granularity.SENTENCE, "#9d174d"),
}
"""Error type of a span → category key, label, granularity of its reward, colour."""

MISSING_TYPES = {
    "Missing-Answer": ("missing-answer", "Missing answer", Granularity.WHOLE, "#1d4ed8"),
    "Missing-Major-Auxiliary": (
        "missing-major-auxiliary",
        "Missing major auxiliary information",
        Granularity.WHOLE,
        "#0369a1",
    ),
    "Missing-Minor-Auxiliary": (
        "missing-minor-auxiliary",
        "Missing minor auxiliary information",
        Granularity.WHOLE,
        "#0e7490",
    ),
}
"""Type of a missing info → category key, label, granularity of its reward, colour."""

_FIELDS = {
    "question",
    "passages",
    "gold",
    "feedback",
    "preference",
    *(f"prediction {n}" for n in PREDICTIONS),
}
_FEEDBACK_FIELDS = {"errors", "missing-info", "corrected-prediction"}
_ERROR_FIELDS = {"error type", "explanation", "start", "end"}
_MISSING_FIELDS = {"error type", "passage_id", "sentence_id"}


@dataclass(frozen=True, kw_only=True, slots=True)
class QaSpan:
    """One marked stretch of the first answer."""

    category: str
    start: int
    end: int
    quote: str
    explanation: str


@dataclass(frozen=True, kw_only=True, slots=True)
class QaMissing:
    """One thing that the first answer leaves out, with the sentences that say it."""

    category: str
    passage: int
    sentences: tuple[int | None, ...]
    """From 0; None is the passage's title."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QaItem:
    """One question with its four answers and everything that was said about them."""

    number: int
    """Place in the file, from 1."""
    question: str
    passages: tuple[tuple[str, tuple[str, ...]], ...]
    gold: str
    predictions: tuple[str, ...]
    preference: tuple[int, ...]
    ranks: tuple[int, ...]
    broken_ties: tuple[tuple[int, int], ...]
    """Pairs of predictions, from 1, that were called equal and have different ranks."""
    spans: tuple[QaSpan, ...]
    missing: tuple[QaMissing, ...]
    correction: str


class _FaultError(ValueError):
    def __init__(self, field: str, remedy: str) -> None:
        super().__init__(f"field {field}: {remedy}")


def categories() -> list[dict[str, Any]]:
    """The format's error categories, as fields of `Category`."""
    return [
        {"key": key, "label": label, "granularity": granularity, "colour": colour, "scope": scope}
        for scope, types in ((CategoryScope.SPAN, SPAN_TYPES), (CategoryScope.MISSING, MISSING_TYPES))
        for key, label, granularity, colour in types.values()
    ]


def matches(row: Mapping[str, Any]) -> bool:
    """Whether a row has the fields of this format, and so is no other."""
    return row.keys() >= _FIELDS


def parse(text: str, *, name: str) -> list[QaItem]:
    """Parse a whole file. Raises `ImportErrors` with item and field of every fault, up to a bound."""
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ImportErrors(name, [f"line {error.lineno}: not JSON ({error.msg})"]) from None
    if not isinstance(values, list):
        raise ImportErrors(name, ["a list of questions is expected at the top of the file"])
    items: list[QaItem] = []
    errors: list[str] = []
    for number, value in enumerate(values, start=1):
        if len(errors) == LISTED_ERRORS:
            raise ImportErrors(name, errors, more=True)
        try:
            items.append(_item(number, value))
        except _FaultError as fault:
            errors.append(f"item {number}, {fault}")
    if errors:
        raise ImportErrors(name, errors)
    return items


def ranks_from_pairs(preference: Sequence[int]) -> tuple[int, ...] | None:
    """Ranks of four answers, 1 best, from their six pairs; None where preferences run in a circle."""
    better: dict[int, set[int]] = {index: set() for index in range(4)}
    for (left, right), choice in zip(PAIRS, preference, strict=True):
        if choice == 1:
            better[right].add(left)
        elif choice == 2:
            better[left].add(right)
    ranks: dict[int, int] = {}
    while len(ranks) < 4:
        ready = [index for index in range(4) if index not in ranks and better[index] <= ranks.keys()]
        if not ready:
            return None
        ranks.update(
            {index: 1 + max((ranks[above] for above in better[index]), default=0) for index in ready}
        )
    return tuple(ranks[index] for index in range(4))


def _item(number: int, value: Any) -> QaItem:
    fields = _fields(value, _FIELDS, "")
    predictions = tuple(_text(fields[f"prediction {n}"], f"prediction {n}") for n in PREDICTIONS)
    passages = _passages(fields["passages"])
    preference = _preference(fields["preference"])
    ranks = ranks_from_pairs(preference)
    if ranks is None:
        raise _FaultError(
            "preference", f"{list(preference)} prefers in a circle, so there is no ranking; take it out"
        )
    feedback = _fields(fields["feedback"], _FEEDBACK_FIELDS, "feedback")
    return QaItem(
        number=number,
        question=_text(fields["question"], "question"),
        passages=passages,
        gold=_text(fields["gold"], "gold", empty=True),
        predictions=predictions,
        preference=preference,
        ranks=ranks,
        broken_ties=tuple(
            (left + 1, right + 1)
            for (left, right), choice in zip(PAIRS, preference, strict=True)
            if choice == 0 and ranks[left] != ranks[right]
        ),
        spans=tuple(
            _span(span, f"feedback.errors[{index}]", predictions[0])
            for index, span in enumerate(_list(feedback["errors"], "feedback.errors"))
        ),
        missing=tuple(
            _missing(missing, f"feedback.missing-info[{index}]", passages)
            for index, missing in enumerate(_list(feedback["missing-info"], "feedback.missing-info"))
        ),
        correction=_text(feedback["corrected-prediction"], "feedback.corrected-prediction", empty=True),
    )


def _passages(value: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    passages = []
    for index, passage in enumerate(_list(value, "passages")):
        texts = [
            _text(text, f"passages[{index}][{place}]", empty=True)
            for place, text in enumerate(_list(passage, f"passages[{index}]"))
        ]
        if not texts:
            raise _FaultError(f"passages[{index}]", "is empty; write the title, then the sentences")
        passages.append((texts[0], tuple(texts[1:])))
    return tuple(passages)


def _preference(value: Any) -> tuple[int, ...]:
    choices = _list(value, "preference")
    if len(choices) != len(PAIRS) or any(
        type(choice) is not int or choice not in (0, 1, 2) for choice in choices
    ):
        raise _FaultError("preference", "six numbers 0, 1 or 2 are expected, for 1v2 1v3 1v4 2v3 2v4 3v4")
    return tuple(choices)


def _span(value: Any, where: str, text: str) -> QaSpan:
    fields = _fields(value, _ERROR_FIELDS, where)
    start, end = _integer(fields["start"], f"{where}.start"), _integer(fields["end"], f"{where}.end")
    if not 0 <= start < end <= len(text):
        raise _FaultError(
            f"{where}.end" if start >= 0 and end > len(text) else f"{where}.start",
            f"{start}–{end} does not lie in prediction 1, which has {len(text)} characters",
        )
    return QaSpan(
        category=_category(fields["error type"], f"{where}.error type", SPAN_TYPES),
        start=start,
        end=end,
        quote=text[start:end],
        explanation=_text(fields["explanation"], f"{where}.explanation", empty=True),
    )


def _missing(value: Any, where: str, passages: Sequence[tuple[str, Sequence[str]]]) -> QaMissing:
    fields = _fields(value, _MISSING_FIELDS, where)
    passage = _integer(fields["passage_id"], f"{where}.passage_id")
    if not 1 <= passage <= len(passages):
        raise _FaultError(
            f"{where}.passage_id", f"{passage} is none of the {len(passages)} passages, counted from 1"
        )
    last = len(passages[passage - 1][1])
    sentences = []
    for index, given in enumerate(_list(fields["sentence_id"], f"{where}.sentence_id")):
        sentence = _integer(given, f"{where}.sentence_id[{index}]")
        if not 0 <= sentence <= last:
            raise _FaultError(
                f"{where}.sentence_id[{index}]",
                f"{sentence} is not in passage {passage}, which has the title 0 and sentences 1 to {last}",
            )
        sentences.append(sentence - 1 if sentence else None)
    if not sentences:
        raise _FaultError(f"{where}.sentence_id", "is empty; name at least one sentence")
    return QaMissing(
        category=_category(fields["error type"], f"{where}.error type", MISSING_TYPES),
        passage=passage - 1,
        sentences=tuple(sentences),
    )


def _fields(value: Any, known: set[str], where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _FaultError(where or "(the item)", "an object is expected")
    prefix = f"{where}." if where else ""
    if missing := sorted(known - value.keys()):
        raise _FaultError(f"{prefix}{missing[0]}", "is missing")
    if unknown := sorted(value.keys() - known):
        raise _FaultError(f"{prefix}{unknown[0]}", f"is not known; known are {', '.join(sorted(known))}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise _FaultError(where, "a list is expected")
    return value


def _integer(value: Any, where: str) -> int:
    if type(value) is not int:
        raise _FaultError(where, f"a whole number is expected, not {value!r}")
    return value


def _text(value: Any, where: str, *, empty: bool = False) -> str:
    if not isinstance(value, str):
        raise _FaultError(where, "a text is expected")
    if not empty and not value.strip():
        raise _FaultError(where, "is empty")
    if "\x00" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise _FaultError(where, "holds NUL or half a surrogate pair, which cannot be stored")
    return value


def _category(value: Any, where: str, types: Mapping[str, tuple[str, str, Granularity, str]]) -> str:
    if value not in types:
        raise _FaultError(where, f"{value!r} is not known; known are {', '.join(types)}")
    return types[value][0]
