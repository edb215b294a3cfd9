"""Items: the output of every reader, one prompt with its completions and judgments.

Readers are pure: rows of a file in, `ImportedItem`s out, no database. Judgments are records
(`annotation.record`): a completion is named by its place in `completions`, as a text from "0"; a
category and a criterion by its key.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any, Literal

from django.utils.translation import gettext as _

from annotation.choices import NOT_ORDERED, SCALE_VALUES, CategoryScope, Granularity, RatingScale, Verdict
from annotation.exchange.formats.fields import FieldError, excerpt, out_of_range, text
from annotation.offsets import utf16_to_codepoint
from annotation.record.base import record
from annotation.record.judgment import JudgmentRecord, MissingPart, SpanLink, SpanPart, StepLabelPart
from annotation.text.edits import applied, is_faithful
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
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Values about this response that no reader reads; kept with it."""


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
class RowPart:
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
    survey: Callable[[Row], Iterator[RowPart]] | None = None
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
    place: int,
    text: str,
    category: str,
    start: int,
    end: int,
    *,
    severity: int | None = None,
    note: str = "",
    relations: tuple[SpanLink, ...] = (),
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
        relations=relations,
    )


# Checks of items before they are stored: ranks, spans, edits, steps, ratings, times.

_NO_ORDER = (Verdict.CANNOT_JUDGE, Verdict.NOT_ASKED)
_NO_WINNER = (Verdict.EQUAL, Verdict.BOTH_GOOD, Verdict.BOTH_BAD)


def checked(item: ImportedItem) -> ImportedItem:
    """Return the item, if it can be stored as it is. Raises `FieldError` for the first thing that cannot."""
    seen = set()
    for number, completion in enumerate(item.completions):
        where = f"completions[{number}]"
        text(completion.text, where)
        if len(completion.source) > LONGEST_SOURCE:
            raise FieldError(
                "text_too_long",
                _("The text is longer than %(most)s characters."),
                field=f"{where}.source",
                most=LONGEST_SOURCE,
            )
        key = (completion.text, completion.source, completion.seed)
        if key in seen:
            raise FieldError(
                "same_twice",
                _("The same text by the same source stands before it. A text is not compared with itself."),
                field=where,
            )
        seen.add(key)
        _check_seed(completion.seed, f"{where}.seed")
        _check_object(completion.sampling, f"{where}.sampling")
        _check_object(completion.metadata, f"{where}.metadata")
        _check_steps(completion, where)
    if item.judgments and not item.completions:
        raise FieldError(
            "field_missing",
            _("There is a judgment, but there are no completions. Write what was judged."),
            field="completions",
        )
    for judgment in item.judgments:
        _check_judgment(item, judgment)
    return item


def _check_judgment(item: ImportedItem, judgment: ImportedJudgment) -> None:
    _check_ranks(judgment, [str(place) for place in range(len(item.completions))])
    _check_spans(item, judgment.spans)
    _check_step_labels(item, judgment.step_labels)
    for missing in judgment.missing:
        _check_missing(item, missing)
    for rating in judgment.ratings:
        _completion(item, rating.completion, "ratings")
        scale = RatingScale(rating.scale)
        if rating.value not in SCALE_VALUES[scale]:
            raise FieldError(
                "rating_unknown",
                _("%(value)s is no rating of %(criterion)s. Write one of these: %(known)s."),
                field="ratings",
                value=excerpt(rating.value),
                criterion=rating.criterion,
                known=", ".join(map(str, SCALE_VALUES[scale])),
            )
    for correction in judgment.corrections:
        _completion(item, correction.completion, "corrections")
    for critique in judgment.critiques:
        _completion(item, critique.completion, "critiques")
    _refuse_doubles("ratings", [(entry.completion, entry.criterion) for entry in judgment.ratings])
    _check_answers(item, judgment)
    _refuse_doubles("corrections", [correction.completion for correction in judgment.corrections])
    _check_edits(item, judgment)
    _refuse_doubles("critiques", [critique.completion for critique in judgment.critiques])
    if judgment.display_order and sorted(judgment.display_order) != list(range(len(item.completions))):
        raise FieldError(
            "order_incomplete", _("The order does not name every answer once."), field="display_order"
        )
    for name in ("annotator", "comment", "demonstration"):
        text(getattr(judgment, name), name, empty=True)
    _check_object(judgment.more, "more")
    _check_time(judgment.created_at)


def _check_steps(completion: ImportedCompletion, where: str) -> None:
    done = 0
    for number, step in enumerate(completion.steps):
        if not (
            done <= step.start <= step.body <= step.end <= len(completion.text) and step.start < step.end
        ):
            raise FieldError(
                "step_misplaced",
                _("The step %(start)s–%(end)s does not lie in the text after the step before it."),
                field=f"{where}.steps[{number}]",
                start=step.start,
                end=step.end,
            )
        done = step.end


def _check_answers(item: ImportedItem, judgment: ImportedJudgment) -> None:
    spans = {(span.completion, span.place) for span in judgment.spans}
    for answer in judgment.answers:
        if answer.completion is not None:
            _completion(item, answer.completion, "answers")
            if answer.step is not None:
                _check_step(item, answer.completion, answer.step, "answers")
        if answer.span is not None and (answer.completion, answer.span) not in spans:
            raise FieldError(
                "span_not_there", _("The judgment does not have this span."), field="answers.span"
            )
    _refuse_doubles("answers", [(answer.question, answer.target) for answer in judgment.answers])


def _check_step(item: ImportedItem, completion: str, step: int, where: str) -> None:
    steps = _completion(item, completion, where).steps
    if not 0 <= step < len(steps) or not steps[step].is_agents:
        raise FieldError(
            "step_not_there",
            _("Step %(step)s is not one of the agent's. The number of steps is %(count)s."),
            field=where,
            step=step,
            count=len(steps),
        )


def _check_step_labels(item: ImportedItem, labels: Sequence[StepLabelPart]) -> None:
    for label in labels:
        _check_step(item, label.completion, label.step, "step_labels")
    _refuse_doubles("step_labels", [(step_label.completion, step_label.step) for step_label in labels])


def _check_spans(item: ImportedItem, spans: Sequence[SpanPart]) -> None:
    for span in spans:
        length = len(_completion(item, span.completion, "spans").text)
        if not 0 <= span.start < span.end <= length:
            raise FieldError(
                "span_misplaced",
                _(
                    "The span %(start)s–%(end)s does not lie in its answer, whose length is %(length)s "
                    "characters."
                ),
                field="spans",
                start=span.start,
                end=span.end,
                length=length,
            )
        if span.severity is not None and not 1 <= span.severity <= 9:
            raise out_of_range(span.severity, 1, 9, "spans")
    for place, span in enumerate(spans):
        for link in span.relations:
            if link.to == place or link.to >= len(spans):
                raise FieldError(
                    "relation_without_other",
                    _("A relation leads to the span %(to)s, which is no other span of the judgment."),
                    field="spans.relations",
                    to=link.to,
                )
        _refuse_doubles("spans.relations", [(link.kind, link.to) for link in span.relations])
    _refuse_doubles("spans", [(s.completion, s.category, s.start, s.end) for s in spans])


def _check_edits(item: ImportedItem, judgment: ImportedJudgment) -> None:
    spans = {(s.completion, s.category, s.start, s.end) for s in judgment.spans}
    for correction in judgment.corrections:
        original, edits = _completion(item, correction.completion, "corrections.edits").text, correction.edits
        if edits and (not is_faithful(original, edits) or applied(original, edits) != correction.text):
            raise FieldError(
                "edits_differ",
                _("The edits do not turn the answer into the corrected text."),
                field="corrections.edits",
            )
        for origin in (edit.origin for edit in edits):
            if origin.span is not None and (correction.completion, *origin.span) not in spans:
                raise FieldError(
                    "span_not_there",
                    _("The judgment does not have this span."),
                    field="corrections.edits.span",
                )
            _check_seed(origin.seed, "corrections.edits.seed")
            _check_object(origin.sampling, "corrections.edits.sampling")


def _check_seed(seed: int | None, where: str) -> None:
    if seed is not None and not -(2**63) <= seed < 2**63:
        raise FieldError(
            "number_too_large", _("The seed is too large. A seed has at most 64 bits."), field=where
        )


def _refuse_doubles(where: str, keys: Sequence[Any]) -> None:
    if len(set(keys)) < len(keys):
        raise FieldError("same_twice", _("The same stands there twice. Take one away."), field=where)


def _check_ranks(judgment: ImportedJudgment, places: Sequence[str]) -> None:
    ranks = judgment.ranks
    if judgment.verdict in _NO_ORDER:
        if ranks:
            raise FieldError(
                "ranks_not_expected",
                _("There are ranks, but the verdict %(verdict)s gives no order."),
                field="ranks",
                verdict=judgment.verdict,
            )
    elif not _are_ranks(ranks, places, is_ranking=judgment.verdict == Verdict.RANKED):
        raise FieldError(
            "ranks_expected",
            _("A rank from 1 on is expected for each of the answers (%(count)s)."),
            field="ranks",
            count=len(places),
        )
    elif judgment.verdict in _NO_WINNER and (len(ranks) < 2 or len(set(ranks.values())) > 1):
        raise FieldError(
            "ranks_not_expected",
            _("The ranks name a winner, but the verdict %(verdict)s names none."),
            field="ranks",
            verdict=judgment.verdict,
        )
    elif judgment.verdict == Verdict.RANKED and len(places) == 2 and ranks["0"] == ranks["1"]:
        raise FieldError(
            "winner_missing", _("Neither answer wins. Write equal, both_good or both_bad."), field="verdict"
        )
    if judgment.strength is not None and not (
        judgment.verdict == Verdict.RANKED and len(places) == 2 and 1 <= judgment.strength <= 4
    ):
        raise FieldError(
            "strength_invalid",
            _("The strength is from 1 to 4, and only a pair with a winner has one."),
            field="strength",
        )


def _are_ranks(ranks: Mapping[str, int], places: Sequence[str], *, is_ranking: bool) -> bool:
    """Return True for ranks from 1 on of all answers; a ranking of three or more may leave some out."""
    may_be_partial = is_ranking and len(places) > 2 and ranks
    are_places = ranks.keys() <= set(places) if may_be_partial else ranks.keys() == set(places)
    return are_places and all(rank >= 1 for rank in ranks.values())


def _check_object(values: Mapping[str, Any], where: str) -> None:
    """Refuse what no database can store as JSON."""
    if not values:
        return
    try:
        spelled = json.dumps(values, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise FieldError(
            "not_json", _("The value cannot be written as JSON (%(error)s)."), field=where, error=error
        ) from None
    if "\\u0000" in spelled:
        raise FieldError(
            "text_has_nul", _("A text in it has NUL, which cannot be stored. Take it out."), field=where
        )
    text(spelled, where)


def _check_time(timestamp: str) -> None:
    if not timestamp:
        return
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise FieldError(
            "time_invalid",
            _("%(value)s is no time with a time zone. Write it as ISO 8601: 2026-01-31T09:30:00Z."),
            field="created_at",
            value=excerpt(timestamp),
        )


def _check_missing(item: ImportedItem, missing: MissingPart) -> None:
    length = len(_completion(item, missing.completion, "missing").text)
    if missing.insert_at is not None and not 0 <= missing.insert_at <= length:
        raise FieldError(
            "missing_misplaced",
            _("Position %(place)s does not lie in the answer, whose length is %(length)s characters."),
            field="missing",
            place=missing.insert_at,
            length=length,
        )
    if not missing.text.strip() and not missing.evidence:
        raise FieldError("missing_empty", _("Write what is missing, or where it stands."), field="missing")
    for pointer in missing.evidence:
        passage, sentence = pointer.passage, pointer.sentence
        if not 0 <= passage < len(item.context) or not (
            sentence is None or 0 <= sentence < len(item.context[passage]["sentences"])
        ):
            raise FieldError(
                "passage_not_there",
                _("The context has no passage %(passage)s with a sentence %(sentence)s."),
                field="missing",
                passage=passage,
                sentence=excerpt(sentence),
            )


def _completion(item: ImportedItem, name: str, where: str) -> ImportedCompletion:
    number = int(name)
    if not 0 <= number < len(item.completions):
        raise FieldError(
            "answer_not_there",
            _("There is no answer %(number)s. Answers count from 0, and their number is %(count)s."),
            field=where,
            number=number,
            count=len(item.completions),
        )
    return item.completions[number]
