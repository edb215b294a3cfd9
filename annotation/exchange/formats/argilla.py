"""Argilla's exports: in (a chosen label, rankings, marks, ratings), nested and flat.

From argilla/src/argilla/records/_io/_generic.py of https://github.com/argilla-io/argilla: nested records have
`fields` and `responses` (question → list of `value`, `user_id`); flat ones have the fields as columns and
`QUESTION.responses`, `QUESTION.responses.users`, `QUESTION.responses.status`. The settings of the dataset are
not in the export, so a question is known by its values: names of answers in order are a ranking, one such
name is the winner, objects with `start` and `end` are marks, a number is a rating, any other text a comment.
Marks and ratings belong to the answer whose name begins the question's, or to the only answer.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from annotation.choices import NOT_ORDERED, RatingScale, Verdict
from annotation.exchange.formats import fields
from annotation.exchange.formats.columns import answers_of, messages_of, no_winner
from annotation.exchange.formats.fields import FieldError
from annotation.exchange.formats.items import (
    ImportedCompletion,
    ImportedItem,
    ImportedJudgment,
    ImportedRating,
    ImportedSpan,
    Reader,
    Row,
    dense,
    key_of,
    verdict_of,
)

_SUFFIX = ".responses"
Annotations = dict[str, dict[str, Any]]
"""Annotator, or `#0`, `#1`, … where nobody is named → question → value."""


def _records(row: Row) -> Iterator[ImportedItem]:
    shown, annotations = (_nested(row)) if isinstance(row.get("fields"), dict) else _flat(row)
    answers = answers_of(shown)
    if not answers:
        raise FieldError(
            "fields", f"has no answers; map some of {', '.join(sorted(shown))} to answer_1, answer_2, …"
        )
    names = [name for name, _ in answers]
    completions = tuple(
        ImportedCompletion(text=fields.text(text, f"fields.{name}")) for name, text in answers
    )
    yield ImportedItem(
        messages=messages_of(shown),
        completions=completions,
        judgments=tuple(_judgment(who, values, names, completions) for who, values in annotations.items()),
    )


def _nested(row: Row) -> tuple[Mapping[str, Any], Annotations]:
    annotations: Annotations = defaultdict(dict)
    for question, responses in (row.get("responses") or {}).items():
        for number, response in enumerate(fields.items_of(responses, f"responses.{question}")):
            entry = fields.object_of(response, f"responses.{question}[{number}]")
            if entry.get("status") != "discarded":
                annotations[str(entry.get("user_id") or f"#{number}")][question] = entry.get("value")
    return row["fields"], annotations


def _flat(row: Row) -> tuple[Mapping[str, Any], Annotations]:
    annotations: Annotations = defaultdict(dict)
    for column in [name for name in row if name.endswith(_SUFFIX)]:
        values = fields.items_of(row[column], column)
        users = row.get(f"{column}.users") or [""] * len(values)
        states = row.get(f"{column}.status") or [""] * len(values)
        for number, (user, state, value) in enumerate(zip(users, states, values, strict=False)):
            if state != "discarded":
                annotations[str(user or f"#{number}")][column.removesuffix(_SUFFIX)] = value
    shown = {name: value for name, value in row.items() if "." not in name and isinstance(value, (str, list))}
    return shown, annotations


def _judgment(
    who: str, values: Mapping[str, Any], names: Sequence[str], answers: Sequence[ImportedCompletion]
) -> ImportedJudgment:
    verdict, ranks = Verdict.NOT_ASKED, tuple[int, ...]()
    spans: list[ImportedSpan] = []
    ratings: list[ImportedRating] = []
    comments = []
    for question, value in values.items():
        where = f"responses.{question}"
        if (
            isinstance(value, list)
            and value
            and all(isinstance(entry, dict) and "start" in entry for entry in value)
        ):
            spans += _marks(question, value, names, where)
        elif isinstance(value, list) and value:
            ranks = _ranking(value, names, where)
            verdict = verdict_of(ranks)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            ratings.append(_rating(question, value, names, where))
        elif isinstance(value, str) and value in names:
            ranks = tuple(1 if name == value else 2 for name in names)
            verdict = Verdict.RANKED
        elif isinstance(value, str) and (without := no_winner(value)):
            verdict, ranks = without, () if without == Verdict.CANNOT_JUDGE else (1,) * len(names)
        elif isinstance(value, str) and value:
            comments.append(fields.text(value, where))
    return ImportedJudgment(
        verdict=verdict,
        ranks=ranks,
        annotator="" if who.startswith("#") else who,
        spans=tuple(spans),
        ratings=tuple(ratings),
        comment="\n\n".join(comments),
    )


def _ranking(value: list[Any], names: Sequence[str], where: str) -> tuple[int, ...]:
    if all(isinstance(entry, dict) for entry in value):
        places = {str(entry.get("value")): fields.whole_number(entry.get("rank"), where) for entry in value}
    else:
        places = {str(name): rank for rank, name in enumerate(value, start=1)}
    if len(places) < len(value) or not places.keys() <= set(names):
        raise FieldError(where, f"does not name some of {', '.join(names)}, each once")
    ranks = dict(zip(places, dense(list(places.values())), strict=True))
    return tuple(ranks.get(name, NOT_ORDERED) for name in names)


def _marks(question: str, value: list[Any], names: Sequence[str], where: str) -> Iterator[ImportedSpan]:
    number = _place(question, names, where)
    for place, mark in enumerate(value):
        at = f"{where}[{place}]"
        yield ImportedSpan(
            completion=number,
            category=key_of(fields.text(mark.get("label"), f"{at}.label")),
            start=fields.whole_number(mark.get("start"), f"{at}.start"),
            end=fields.whole_number(mark.get("end"), f"{at}.end"),
        )


def _rating(question: str, value: float, names: Sequence[str], where: str) -> ImportedRating:
    number = _place(question, names, where)
    rating = fields.whole_number(value, where)
    criterion = question.removeprefix(names[number]).strip("_-. ") or "rating"
    scale = RatingScale.FIVE if 1 <= rating <= 5 else RatingScale.SEVEN
    return ImportedRating(completion=number, criterion=key_of(criterion), scale=scale, value=rating)


def _place(question: str, names: Sequence[str], where: str) -> int:
    if len(names) == 1:
        return 0
    for number, name in enumerate(names):
        if question.startswith(name):
            return number
    raise FieldError(
        where, f"names none of the answers {', '.join(names)}; begin the question with one of them"
    )


READERS = (
    Reader(
        name="argilla",
        sentence="Argilla's exports, nested or flat: winners, rankings, marks, ratings.",
        read=_records,
        matches=lambda row: (
            (isinstance(row.get("fields"), dict) and "responses" in row)
            or any(name.endswith(_SUFFIX) for name in row)
        ),
    ),
)
