"""Items: the output of every reader, one prompt with its completions and judgments.

Readers are pure: rows of a file in, `ImportedItem`s out, no database. Judgments are records
(`annotation.record`): a completion is named by its place in `completions`, as a text from "0"; a
category and a criterion by its key.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any, Literal

from django.utils.translation import gettext as _

from annotation.choices import NOT_ORDERED, CategoryScope, Granularity, Verdict
from annotation.exchange.formats.fields import FieldError, excerpt
from annotation.offsets import utf16_to_codepoint
from annotation.record.base import record
from annotation.record.judgment import JudgmentRecord, SpanPart
from annotation.text.traces import PlacedStep

LONGEST_KEY = 60
LONGEST_SOURCE = 120

_KEY = re.compile(rf"[-a-zA-Z0-9_]{{1,{LONGEST_KEY}}}")

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedCompletion:
    """One answer with its provenance, as far as the file says."""

    text: str
    source: str = ""
    """Author of the text; empty where the file does not say."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    finish_reason: str = ""
    steps: tuple[PlacedStep, ...] = ()
    """Of an agent trace or a session; a plain response has none."""


@record
class ImportedJudgment(JudgmentRecord):
    """A judgment of one person or program on the completions of an item, each named by its place, from "0".

    Its ranks may have gaps until they are stored.
    """

    annotator: str = ""
    """Name; empty where the file does not say, and then nobody is taken for the same person twice."""
    is_machine: bool = False
    created_at: str = ""
    """ISO 8601 with a time zone; empty for the time of the import."""
    display_order: tuple[int, ...] = ()
    """The places of the answers in the order shown, first to last; empty where it was not recorded."""
    more: dict[str, Any] = field(default_factory=dict)
    """Values of the file beyond these fields; stored with the judgment unchanged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedConversation:
    """A live conversation, without its turns."""

    id: str
    """Its id where it was held."""
    annotator: str = ""
    task: str = ""
    """Name of its opening task; empty where it had none."""
    system: str = ""
    seed: int
    rating: int | None = None
    attack_success: int | None = None
    comment: str = ""
    created_at: str = ""
    ended_at: str = ""
    """ISO 8601 with a time zone; empty while it is open."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedTurn:
    """The item as a turn of a conversation: its prompt is the conversation so far."""

    conversation: ImportedConversation
    index: int
    """From 1."""
    continued_with: int | None = None
    """The answer with which the conversation went on; None where it ended here."""
    continued_text: str = ""
    """The annotator's edit of it; empty where it stayed as it was."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedItem:
    """One prompt with its answers. With no judgments it is work; with no answers, a prompt alone."""

    messages: list[dict[str, str]]
    context: list[dict[str, Any]] = field(default_factory=list)
    references: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    completions: tuple[ImportedCompletion, ...] = ()
    judgments: tuple[ImportedJudgment, ...] = ()
    split: str = ""
    """The side of the split that the file states; empty where it states none."""
    turns: tuple[ImportedTurn, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Values of columns that no reader reads; kept with the comparison, or with the prompt without one."""


Kind = Literal["read", "metadata", "left_out", "not_read", "question"]
"""What becomes of a column; of a question a person must say it."""


@dataclass(frozen=True, slots=True)
class Part:
    """Something inside a row of a nested format, such as a result of an annotation: like a column."""

    name: str
    value: Any
    kind: Kind
    reading: str
    """What it is read as, or why it is not read."""
    answers: tuple[str, ...] = ()
    """Of a value that may say which answer is best, their names: such values are read by the whole file."""
    is_rating: bool = False
    """True for a value of a rating, whose scale is read by the whole file."""


READINGS = "\x00readings"
"""Under this name, which no file has, a row carries what the plan has read in its parts: see `decisions`."""


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


def neighbours(
    rows: Iterable[tuple[int, Row]], key: Callable[[Row], Any]
) -> Iterator[tuple[int, Any, list[Row]]]:
    """Yield the rows that stand together with one key: the number of the first, the key, the rows.

    A row whose key is None stands alone.
    """
    for value, run in groupby(rows, lambda numbered: key(numbered[1])):
        if value is None:
            yield from ((number, None, [row]) for number, row in run)
        else:
            first, row = next(run)
            yield first, value, [row, *(row for _number, row in run)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reader:
    """One import format.

    `read` turns one row of a file into items, or raises `FieldError`. `matches` says whether a row
    looks like this format; the first reader of the registry that matches is the one that is guessed.
    """

    name: str
    sentence: str
    read: ReadRow
    matches: Callable[[Row], bool]
    group: Callable[[Iterator[tuple[int, Row]]], Iterator[tuple[int, Row]]] | None = None
    """For a format whose rows belong together: makes one row of many."""
    reads: Mapping[str, str] = field(default_factory=dict)
    """Column that the format has → what it is read as; `*` in a name stands for anything. Any other column is
    kept as metadata."""
    keeps: frozenset[str] = frozenset()
    """Columns of the format that are kept as metadata although their names look like a verdict's."""
    ignores: Mapping[str, str] = field(default_factory=dict)
    """Columns of the format that are not read, each with the reason."""
    is_tabular: bool = False
    """True for a table: `read` and `matches` get rows under the roles of `columns`; `reads` names roles."""
    inner: str = ""
    """The column of a nested format whose own columns are those of a table."""
    survey: Callable[[Row], Iterator[Part]] | None = None
    """What else a nested row holds, for the account."""
    completion_fields: tuple[str, ...] = ()
    """Columns that hold the first, second, … answer, for errors about an answer."""
    categories: tuple[NewCategory, ...] = ()
    """Categories that every project with such a file gets."""
    project: NewProject | None = None
    loses: str = ""
    """What a file of this format holds and Rondo does not read, for the guide."""

    def reading_of(self, column: str) -> str:
        """Return what a column, or a role of a table, is read as; empty where it is not read."""
        return _named(self.reads, column)

    def ignoring(self, column: str) -> str:
        """Why a column of the format is not read; empty for any other."""
        return _named(self.ignores, column)


def _named(words: Mapping[str, str], column: str) -> str:
    if column in words:
        return words[column]
    return next((said for name, said in words.items() if "*" in name and fnmatchcase(column, name)), "")


def key_of(label: str) -> str:
    """A label of another system as the key of a category or a criterion: `Wrong fact!` → `wrong-fact`.

    What can be a key already stays as it is.
    """
    if _KEY.fullmatch(label):
        return label
    key = re.sub(r"[^\w-]+", "-", label.strip().lower(), flags=re.ASCII).strip("-")[:LONGEST_KEY]
    if not key:
        raise FieldError(
            "name_without_key",
            _(
                "%(name)s has no letter and no digit of which a key could be made. Use a name with letters "
                "or digits."
            ),
            name=excerpt(label),
        )
    return key


def placed(text: str, start: int, end: int, quote: str | None, where: str) -> tuple[int, int]:
    """Return the position of a span in code points. Refuses one whose quote is not the text there."""
    if quote is None or text[start:end] == quote:
        return start, end
    try:
        low, high = utf16_to_codepoint(text, start), utf16_to_codepoint(text, end)
    except ValueError:
        low, high = -1, -1
    if low >= 0 and text[low:high] == quote:
        return low, high
    raise FieldError(
        "quote_differs",
        _("“%(quote)s” does not stand at %(start)s–%(end)s, where the text is “%(text)s”."),
        field=where,
        quote=quote[:40],
        start=start,
        end=end,
        text=text[start:end][:40],
    )


def dense(ranks: Sequence[float]) -> tuple[int, ...]:
    """The same weak order with ranks 1, 2, 3 and no gaps; lower is better."""
    place = {rank: number for number, rank in enumerate(sorted(set(ranks)), start=1)}
    return tuple(place[rank] for rank in ranks)


def verdict_of(ranks: Sequence[int]) -> Verdict:
    """`ranked`, or `equal` where all are tied."""
    return Verdict.EQUAL if len(ranks) > 1 and len(set(ranks)) == 1 else Verdict.RANKED


def ranks_by_place(ranks: Sequence[int]) -> dict[str, int]:
    """Return the ranks of the answers as a record has them: without those that have no order."""
    return {str(place): rank for place, rank in enumerate(ranks) if rank != NOT_ORDERED}


def span_at(
    place: int, text: str, category: str, start: int, end: int, *, severity: int | None = None, note: str = ""
) -> SpanPart:
    """Return a span of the answer at a place, whose text is `text`."""
    return SpanPart(
        completion=str(place),
        category=category,
        start=start,
        end=end,
        quote=text[start:end],
        severity=severity,
        note=note,
    )
