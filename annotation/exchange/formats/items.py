"""Items: the output of every reader, one prompt with its completions and judgments.

Readers are pure: rows of a file in, `ImportedItem`s out, no database. An answer is named by its
place in `completions`, from 0; a category and a criterion by its key.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from annotation.choices import SCALE_VALUES, CategoryScope, Granularity, RatingScale, Verdict
from annotation.exchange.formats.fields import FieldError, text
from annotation.offsets import utf16_to_codepoint

LONGEST_KEY = 60
LONGEST_SOURCE = 120
_NO_ORDER = (Verdict.CANNOT_JUDGE, Verdict.NOT_ASKED)
_NO_WINNER = (Verdict.EQUAL, Verdict.BOTH_GOOD, Verdict.BOTH_BAD)

_KEY = re.compile(rf"[-a-zA-Z0-9_]{{1,{LONGEST_KEY}}}")

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedCompletion:
    """One answer with how it came to be, as far as the file says."""

    text: str
    source: str = ""
    """Who wrote it; empty where the file does not say."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    finish_reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedSpan:
    """A marked stretch of one answer, in code points, half open."""

    completion: int
    category: str
    start: int
    end: int
    severity: int | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedMissing:
    """Something that one answer leaves out: in words, by evidence in a passage, or both."""

    completion: int
    category: str
    text: str = ""
    insert_at: int | None = None
    evidence: tuple[tuple[int, int | None], ...] = ()
    """Passage and sentence, both from 0; None is the passage's title."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedRating:
    """One answer's rating on one criterion, in the numbers of `choices.SCALE_VALUES`."""

    completion: int
    criterion: str
    value: int
    scale: str = RatingScale.FIVE


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedJudgment:
    """A judgment of one person or program on the completions of an item."""

    verdict: str
    ranks: tuple[int, ...] = ()
    """One for each answer, 1 best, equal numbers tied; empty where the verdict gives no order."""
    annotator: str = ""
    """Who; empty where the file does not say, and then nobody is taken for the same person twice."""
    is_machine: bool = False
    strength: int | None = None
    comment: str = ""
    spans: tuple[ImportedSpan, ...] = ()
    missing: tuple[ImportedMissing, ...] = ()
    corrections: tuple[tuple[int, str], ...] = ()
    ratings: tuple[ImportedRating, ...] = ()
    critiques: tuple[tuple[int, str], ...] = ()
    demonstration: str = ""
    active_seconds: int | None = None
    created_at: str = ""
    """ISO 8601 with a time zone; empty for the time of the import."""
    display_order: tuple[int, ...] = ()
    """The answers as they were shown, first to last; empty where nobody wrote it down."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """What the file says beyond these fields; it stays with the judgment as it came."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedItem:
    """One prompt with its answers. With no judgments it is work; with no answers, a prompt alone."""

    messages: list[dict[str, str]]
    context: list[dict[str, Any]] = field(default_factory=list)
    references: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    completions: tuple[ImportedCompletion, ...] = ()
    judgments: tuple[ImportedJudgment, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class NewCategory:
    """A category that a format defines, as fields of the row that a project gets."""

    key: str
    label: str
    scope: CategoryScope
    granularity: Granularity
    colour: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NewProject:
    """The project of a published set, which the command makes where none is named."""

    slug: str
    name: str
    description: str


ReadRow = Callable[[Row], Iterable[ImportedItem]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reader:
    """One format that comes in.

    `read` turns one row of a file into items, or raises `FieldError`. `matches` says whether a row
    looks like this format; the first reader of the registry that matches is the one that is guessed.
    """

    name: str
    sentence: str
    read: ReadRow
    matches: Callable[[Row], bool]
    group: Callable[[Iterator[tuple[int, Row]]], Iterator[tuple[int, Row]]] | None = None
    """For a format whose rows belong together: makes one row of many."""
    categories: tuple[NewCategory, ...] = ()
    """Categories that every project with such a file gets."""
    project: NewProject | None = None


def key_of(label: str) -> str:
    """A label of another system as the key of a category or a criterion: `Wrong fact!` → `wrong-fact`.

    What can be a key already stays as it is.
    """
    if _KEY.fullmatch(label):
        return label
    key = re.sub(r"[^\w-]+", "-", label.strip().lower(), flags=re.ASCII).strip("-")[:LONGEST_KEY]
    if not key:
        raise FieldError(None, f"{label!r} gives no key; name it with letters or digits")
    return key


def placed(said: str, start: int, end: int, quote: str | None, where: str) -> tuple[int, int]:
    """Return the position of a span in code points. Refuses one whose quote is not the text there."""
    if quote is None or said[start:end] == quote:
        return start, end
    try:
        low, high = utf16_to_codepoint(said, start), utf16_to_codepoint(said, end)
    except ValueError:
        low, high = -1, -1
    if low >= 0 and said[low:high] == quote:
        return low, high
    raise FieldError(
        where, f"“{quote[:40]}” does not stand at {start}–{end}, where “{said[start:end][:40]}” is"
    )


def dense(ranks: Sequence[float]) -> tuple[int, ...]:
    """The same weak order with ranks 1, 2, 3 and no gaps; lower is better."""
    place = {rank: number for number, rank in enumerate(sorted(set(ranks)), start=1)}
    return tuple(place[rank] for rank in ranks)


def verdict_of(ranks: Sequence[int]) -> Verdict:
    """`ranked`, or `equal` where all are tied."""
    return Verdict.EQUAL if len(ranks) > 1 and len(set(ranks)) == 1 else Verdict.RANKED


def checked(item: ImportedItem) -> ImportedItem:
    """The item, if it can be stored as it is. Raises `FieldError` for the first thing that cannot."""
    seen = set()
    for number, one in enumerate(item.completions):
        where = f"completions[{number}]"
        text(one.text, where)
        if len(one.source) > LONGEST_SOURCE:
            raise FieldError(f"{where}.source", f"is longer than {LONGEST_SOURCE} characters")
        key = (one.text, one.source, one.seed)
        if key in seen:
            raise FieldError(
                where,
                "is the same text by the same source as one before it; a text is not compared with itself",
            )
        seen.add(key)
        if one.seed is not None and not -(2**63) <= one.seed < 2**63:
            raise FieldError(f"{where}.seed", "is too large; a seed has 64 bits at most")
        _check_object(one.sampling, f"{where}.sampling")
    if item.judgments and not item.completions:
        raise FieldError("completions", "is empty, and there is a judgment; write what was judged")
    for judgment in item.judgments:
        _check_judgment(item, judgment)
    return item


def _check_judgment(item: ImportedItem, judgment: ImportedJudgment) -> None:
    _check_ranks(judgment, len(item.completions))
    _check_spans(item, judgment.spans)
    for missing in judgment.missing:
        _check_missing(item, missing)
    for rating in judgment.ratings:
        _completion(item, rating.completion, "ratings")
        if rating.value not in SCALE_VALUES[RatingScale(rating.scale)]:
            scale = RatingScale(rating.scale).label
            raise FieldError("ratings", f"{rating.criterion} is rated {scale}, not {rating.value}")
    for number, _ in (*judgment.corrections, *judgment.critiques):
        _completion(item, number, "corrections or critiques")
    _refuse_doubles("ratings", [(one.completion, one.criterion) for one in judgment.ratings])
    _refuse_doubles("corrections", [number for number, _ in judgment.corrections])
    _refuse_doubles("critiques", [number for number, _ in judgment.critiques])
    if judgment.display_order and sorted(judgment.display_order) != list(range(len(item.completions))):
        raise FieldError("display_order", "does not name every answer once")
    for name in ("annotator", "comment", "demonstration"):
        text(getattr(judgment, name), name, empty=True)
    _check_object(judgment.more, "more")
    _check_time(judgment.created_at)
    seconds = judgment.active_seconds
    if seconds is not None and not (type(seconds) is int and 0 <= seconds < 2**31):
        raise FieldError("active_seconds", f"a number of seconds from 0 is expected, not {seconds!r}")


def _check_spans(item: ImportedItem, spans: Sequence[ImportedSpan]) -> None:
    for span in spans:
        length = len(_completion(item, span.completion, "spans").text)
        if not 0 <= span.start < span.end <= length:
            raise FieldError(
                "spans",
                f"{span.start}–{span.end} does not lie in its answer, which has {length} characters",
            )
        if span.severity is not None and not 1 <= span.severity <= 9:
            raise FieldError("spans", f"the severity {span.severity} is not from 1 to 9")
    _refuse_doubles("spans", [(s.completion, s.category, s.start, s.end) for s in spans])


def _refuse_doubles(where: str, keys: Sequence[Any]) -> None:
    if len(set(keys)) < len(keys):
        raise FieldError(where, "the same stands there twice; take one away")


def _check_ranks(judgment: ImportedJudgment, answers: int) -> None:
    ranks = judgment.ranks
    if judgment.verdict not in Verdict.values:
        raise FieldError(
            "verdict", f"{judgment.verdict!r} is not known; known are {', '.join(Verdict.values)}"
        )
    if judgment.verdict in _NO_ORDER:
        if ranks:
            raise FieldError("ranks", f"there are ranks, and the verdict {judgment.verdict} gives no order")
    elif len(ranks) != answers or any(rank < 1 for rank in ranks):
        raise FieldError("ranks", f"one rank from 1 is expected for each of the {answers} answers")
    elif judgment.verdict in _NO_WINNER and (len(ranks) < 2 or len(set(ranks)) > 1):
        raise FieldError("ranks", f"the verdict {judgment.verdict} names no winner, but the ranks do")
    elif judgment.verdict == Verdict.RANKED and len(ranks) == 2 and ranks[0] == ranks[1]:
        raise FieldError("verdict", "neither wins: write equal, both_good or both_bad")
    if judgment.strength is not None and not (
        judgment.verdict == Verdict.RANKED and answers == 2 and 1 <= judgment.strength <= 4
    ):
        raise FieldError("strength", "is 1 to 4, and only of a pair with a winner")


def _check_object(values: Mapping[str, Any], where: str) -> None:
    """Refuse what no database can store as JSON."""
    if not values:
        return
    try:
        spelled = json.dumps(values, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise FieldError(where, f"is no JSON ({error})") from None
    if "\\u0000" in spelled:
        raise FieldError(where, "holds NUL, which cannot be stored; take it out")
    text(spelled, where)


def _check_time(given: str) -> None:
    if not given:
        return
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise FieldError("created_at", f"{given[:40]!r} is no time with a time zone (ISO 8601)")


def _check_missing(item: ImportedItem, missing: ImportedMissing) -> None:
    length = len(_completion(item, missing.completion, "missing").text)
    if missing.insert_at is not None and not 0 <= missing.insert_at <= length:
        raise FieldError("missing", f"belongs at {missing.insert_at} of an answer of {length} characters")
    if not missing.text.strip() and not missing.evidence:
        raise FieldError("missing", "says neither what is missing nor where it stands")
    for passage, sentence in missing.evidence:
        if not 0 <= passage < len(item.context) or not (
            sentence is None or 0 <= sentence < len(item.context[passage]["sentences"])
        ):
            raise FieldError(
                "missing", f"points at passage {passage}, sentence {sentence}, which is not there"
            )


def _completion(item: ImportedItem, number: int, where: str) -> ImportedCompletion:
    if not 0 <= number < len(item.completions):
        raise FieldError(where, f"speaks of answer {number} of {len(item.completions)}, counted from 0")
    return item.completions[number]
