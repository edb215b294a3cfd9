"""Judgments as a table for statisticians: one row for each answer of each judgment, out and in again.

Columns: `judgment`, `answers` (the number of its rows), `comparison`, `round`, `annotator`, `machine`,
`split`, `prompt`, `verdict`, `strength`, `seconds`, `created_at`, then of the answer `completion`, `source`,
`position` (as shown, from 1), `letter` (as the annotator saw it, which comments use), `rank`, a column
`rating_CRITERION_SCALE` for each criterion, a column `question_KEY` for each additional question (several
choices with `|` between; of a question about the comparison the same in all rows), `question` (the last of
the user's turns), `text`, `comment`, `metadata` (of the comparison, as JSON). Of a project in which reviewers
decided something also `review_verdict`, `review_strength`, `review_rank`, `reviewer` (a pseudonym) and
`review_reason`: the decision that holds. They are not read back.

The rows of a judgment stand together. One whose rows a spreadsheet sorted apart, or of which a row is
missing, is refused with its id.

A spreadsheet takes a cell that begins with = + - @, a tab or a return for a formula, so such a cell gets a
`'` before it, and one that begins with `'` another; read back, it goes again. It carries no marks, no missing
info, no corrections, no earlier turns, no context: Rondo's JSON Lines do.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from django.utils.translation import gettext as _

from annotation.choices import NOT_ORDERED, DecisionKind, RatingScale, Verdict
from annotation.exchange.formats import fields
from annotation.exchange.formats.fields import FieldError, excerpt
from annotation.exchange.formats.items import (
    ImportedCompletion,
    ImportedItem,
    ImportedJudgment,
    Reader,
    Row,
    neighbours,
    ranks_by_place,
)
from annotation.exchange.formats.rondo_jsonl import split_of
from annotation.exchange.formats.writers import (
    Dropped,
    Record,
    Scene,
    Writer,
    Written,
    about_parts,
    about_wholes,
)
from annotation.record.judgment import AnswerPart, RatingPart
from annotation.record.questions import as_text

BEFORE = (
    *(
        "judgment",
        "answers",
        "comparison",
        "round",
        "annotator",
        "machine",
        "split",
        "prompt",
        "verdict",
        "strength",
    ),
    *("seconds", "created_at", "completion", "source", "position", "letter", "rank"),
)
AFTER = ("question", "text", "comment", "metadata")
OF_COMPLETION = "response_metadata"
REVIEW = ("review_verdict", "review_strength", "review_rank", "reviewer", "review_reason")
_DANGEROUS = ("=", "+", "-", "@", "\t", "\r", "'")
_RATING = "rating_"
_QUESTION = "question_"


def header(scene: Scene) -> list[str]:
    """The names of the columns: a project's criteria each have one, as `KEY_SCALE`."""
    return [
        *BEFORE,
        *(f"{_RATING}{name}" for name in scene.criteria),
        *(f"{_QUESTION}{key}" for key in _in_cells(scene)),
        *AFTER,
        *((OF_COMPLETION,) if scene.has_completion_metadata else ()),
        *(REVIEW if scene.has_decisions else ()),
    ]


def _in_cells(scene: Scene) -> list[str]:
    """Return the questions that have a column: those about the comparison and about responses."""
    return [key for key in scene.questions if key not in scene.questions_of_parts]


def safe(cell: Any) -> str:
    """A cell that no spreadsheet takes for a formula."""
    text = "" if cell is None else str(cell)
    return f"'{text}" if text.startswith(_DANGEROUS) else text


def plain(cell: str) -> str:
    """The cell as it was before `safe`."""
    return cell.removeprefix("'")


def _rows(record: Record, scene: Scene) -> Written:
    positions = {pk: place for place, pk in enumerate(record["display_order"], start=1)}
    letters = dict(zip(record["display_order"], ascii_uppercase, strict=False))
    ratings = {(r["completion"], f"{r['criterion']}_{r['scale']}"): r["value"] for r in record["ratings"]}
    question = next((m["content"] for m in reversed(record["messages"]) if m["role"] == "user"), "")
    metadata = record.get("metadata")
    answers = {(a["completion"], a["question"]): as_text(_value(a["value"])) for a in about_wholes(record)}
    decision = _decision_that_holds(record)
    for completion in record["completions"]:
        pk = completion["id"]
        yield {
            **{name: record[name] for name in ("judgment", "comparison", "round", "annotator", "machine")},
            **{name: record[name] for name in ("split", "prompt", "verdict", "strength", "created_at")},
            "answers": len(record["completions"]),
            "seconds": record["active_seconds"],
            "completion": pk,
            "source": completion["source"],
            "position": positions.get(pk),
            "letter": letters.get(pk),
            "rank": record["ranks"].get(pk),
            **{f"{_RATING}{name}": ratings.get((pk, name)) for name in scene.criteria},
            **{
                f"{_QUESTION}{key}": answers.get((pk, key), answers.get((None, key)))
                for key in _in_cells(scene)
            },
            "question": question,
            "text": completion["text"],
            "comment": record["comment"],
            "metadata": _as_cell(metadata),
            OF_COMPLETION: _as_cell(completion.get("metadata")),
            "review_verdict": decision.get("verdict"),
            "review_strength": decision.get("strength"),
            "review_rank": decision.get("ranks", {}).get(pk),
            "reviewer": decision.get("reviewer"),
            "review_reason": decision.get("reason"),
        }
    for name, what in (("spans", "marks"), ("missing", "missing info"), ("corrections", "corrections")):
        if record[name]:
            yield Dropped(f"{what}: a table has no place for them")
    if about_parts(record, "span", "step"):
        yield Dropped("answers about spans and steps: a table has no place for them")
    if len(record["messages"]) > 1:
        yield Dropped("earlier turns: a table holds the last question alone")


def _decision_that_holds(record: Record) -> Mapping[str, Any]:
    decisions = record.get("review", {}).get("decisions", ())
    return decisions[-1] if decisions and decisions[-1]["kind"] == DecisionKind.DECIDED else {}


def _as_cell(metadata: Mapping[str, Any] | None) -> str:
    return json.dumps(metadata, ensure_ascii=False, sort_keys=True) if metadata else ""


def _value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _joined(rows: Iterator[tuple[int, Row]]) -> Iterator[tuple[int, Row]]:
    """One row for the rows of one judgment, which stand together."""
    # Of the ids that stood before their hashes do: one that comes again stands apart.
    seen: set[int] = set()
    # In a tuple, since a table without the column is one judgment.
    for first, key, together in neighbours(rows, lambda row: (row.get("judgment"),)):
        mark = hash(key)
        yield first, {"rows": together, "apart": mark in seen}
        seen.add(mark)


def _refuse_torn(rows: Sequence[Mapping[str, str]], *, is_apart: bool) -> None:
    """Refuse a judgment whose rows do not stand together or are not all there."""
    first = rows[0]
    answers = _number(first["answers"], "answers") if first.get("answers") else len(rows)
    positions = sorted(_number(line["position"], "position") for line in rows if line.get("position"))
    ranks = {_number(line["rank"], "rank") for line in rows if line.get("rank")}
    judgment = fields.excerpt(first.get("judgment"))
    if is_apart:
        raise FieldError(
            "judgment_torn",
            _("The rows of the judgment %(judgment)s do not stand together. Sort the file by judgment."),
            field="judgment",
            judgment=judgment,
        )
    if len(rows) != answers:
        raise FieldError(
            "judgment_torn",
            _(
                "The judgment %(judgment)s should have as many rows as answers, %(answers)s, but %(rows)s "
                "stand together. Sort the file by judgment, and export again what was deleted."
            ),
            field="judgment",
            judgment=judgment,
            answers=answers,
            rows=len(rows),
        )
    if positions and positions != list(range(1, len(rows) + 1)):
        raise FieldError(
            "judgment_torn",
            _(
                "The answers of the judgment %(judgment)s have the positions %(positions)s, which are not "
                "all. Sort the file by judgment, and export again what was deleted."
            ),
            field="judgment",
            judgment=judgment,
            positions=", ".join(map(str, positions)),
        )
    if ranks and ranks != set(range(1, len(ranks) + 1)):
        raise FieldError(
            "judgment_torn",
            _(
                "The answers of the judgment %(judgment)s have the ranks %(ranks)s, which are not all. "
                "Sort the file by judgment, and export again what was deleted."
            ),
            field="judgment",
            judgment=judgment,
            ranks=", ".join(map(str, sorted(ranks))),
        )
    if len(rows) == 1 and first.get("verdict", "") not in ("", Verdict.NOT_ASKED, Verdict.CANNOT_JUDGE):
        raise FieldError(
            "judgment_torn",
            _(
                "The judgment %(judgment)s is %(verdict)s, but only one of its answers is there. Sort the "
                "file by judgment, and export again what was deleted."
            ),
            field="judgment",
            judgment=judgment,
            verdict=first["verdict"],
        )


def _judgment(row: Row) -> Iterator[ImportedItem]:
    rows = [
        {name: plain(str(cell)) for name, cell in line.items() if isinstance(cell, (str, int, float))}
        for line in row["rows"]
    ]
    first = rows[0]
    _refuse_torn(rows, is_apart=row.get("apart") is True)
    ranks = tuple(_rank(line["rank"]) if line.get("rank") else NOT_ORDERED for line in rows)
    if not any(ranks):
        ranks = ()
    positions = sorted(
        (_number(line["position"], "position"), n) for n, line in enumerate(rows) if line.get("position")
    )
    yield ImportedItem(
        messages=fields.prompt(first.get("question"), "question"),
        completions=tuple(
            ImportedCompletion(
                text=fields.text(line.get("text"), "text"),
                source=line.get("source", ""),
                metadata=_metadata(line.get(OF_COMPLETION, "")),
            )
            for line in rows
        ),
        judgments=(
            ImportedJudgment(
                verdict=fields.choice(first.get("verdict", ""), Verdict.values, "verdict"),
                ranks=ranks_by_place(ranks),
                annotator=first.get("annotator", ""),
                is_machine=first.get("machine", "").lower() == "true",
                strength=_number(first["strength"], "strength") if first.get("strength") else None,
                active_seconds=(
                    fields.active_seconds(_number(first["seconds"], "seconds"))
                    if first.get("seconds")
                    else None
                ),
                comment=first.get("comment", ""),
                created_at=fields.moment(first.get("created_at"), "created_at"),
                display_order=tuple(n for _position, n in positions),
                ratings=tuple(rating for n, line in enumerate(rows) for rating in _ratings(n, line)),
                answers=tuple(answer for n, line in enumerate(rows) for answer in _answers(n, line)),
                more={name: first[name] for name in ("judgment", "comparison", "round") if first.get(name)},
            ),
        ),
        split=split_of({"split": first.get("split", "")}),
        metadata=_metadata(first.get("metadata", "")),
    )


def _metadata(cell: str) -> Mapping[str, Any]:
    if not cell:
        return {}
    try:
        return fields.object_of(fields.DECODER.decode(cell), "metadata")
    except (ValueError, RecursionError) as error:
        raise FieldError(
            "object_expected",
            _("This is no object in JSON (%(error)s)."),
            field="metadata",
            error=str(error)[:80],
        ) from None


def _ratings(number: int, row: Mapping[str, str]) -> Iterator[RatingPart]:
    for name, cell in row.items():
        if name.startswith(_RATING) and cell:
            criterion, _separator, scale = name.removeprefix(_RATING).rpartition("_")
            if scale not in RatingScale.values or not criterion:
                raise FieldError(
                    "scale_unknown",
                    _("The name of the column ends with none of the scales five, seven and thumbs."),
                    field=name,
                )
            yield RatingPart(
                completion=str(number), criterion=criterion, scale=scale, value=_number(cell, name)
            )


def _answers(number: int, row: Mapping[str, str]) -> Iterator[AnswerPart]:
    """Yield the answers of one row; whether a question is about the comparison only the project knows."""
    for name, cell in row.items():
        if name.startswith(_QUESTION) and cell:
            yield AnswerPart(
                question=name.removeprefix(_QUESTION), completion=str(number), value=fields.text(cell, name)
            )


def _rank(cell: str) -> int:
    if (rank := _number(cell, "rank")) < 1:
        raise FieldError(
            "rank_invalid",
            _("%(rank)s is no rank. Ranks count from 1, and an empty cell has no order."),
            field="rank",
            rank=rank,
        )
    return rank


def _number(cell: str, where: str) -> int:
    try:
        return int(float(cell))
    except ValueError:
        raise FieldError(
            "number_expected", _("A number is expected, not %(value)s."), field=where, value=excerpt(cell)
        ) from None


READERS = (
    Reader(
        name="csv",
        sentence="Rondo's table for statisticians: one row for each answer of each judgment.",
        read=_judgment,
        matches=lambda row: {"judgment", "verdict", "rank", "position", "text"} <= row.keys(),
        group=_joined,
        reads={
            "judgment": "the rows that belong together",
            "answers": "the number of rows of a judgment",
            "annotator": "the annotator",
            "machine": "whether the annotator is a program",
            "split": "the side of the split",
            "verdict": "the preference",
            "strength": "how much better the winner is",
            "seconds": "the seconds that it took",
            "created_at": "the time of the annotation",
            "source": "the source of the response",
            "position": "the position at which the response was shown",
            "rank": "the rank of the response",
            "rating_*": "a rating of the response",
            "question_*": "an answer to an additional question",
            "question": "the prompt",
            "text": "the response",
            "comment": "the annotator's comment",
            "metadata": "metadata of the comparison",
            OF_COMPLETION: "metadata of the response",
            "comparison": "an id, kept with the annotation",
            "round": "the number of the round, kept with the annotation",
        },
        ignores={
            "prompt": "an id of the database that it came from",
            "completion": "an id of the database that it came from",
            "letter": "the position says it, too",
            **dict.fromkeys(REVIEW, "a decision of reviewers of the other project"),
        },
        completion_fields=("text", "text"),
        loses="spans, missing information, corrections, earlier turns, context passages",
    ),
)
WRITERS = (
    Writer(
        name="csv",
        sentence="A table for statisticians, safe to open in a spreadsheet: one row for each judged answer.",
        container="csv",
        rows=_rows,
        carries_answers=True,
        carries_reviews=True,
        carries="preferences, ranks, ratings, positions, answers, comments, metadata",
        loses="spans, missing information, corrections, answers about spans or steps, earlier turns, context",
    ),
)
