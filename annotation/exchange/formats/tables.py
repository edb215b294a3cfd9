"""Any table of prompts and answers: in, by the roles of its columns (`columns`).

A row without winner, ranks, scores and ratings is work that waits.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.utils.translation import gettext as _

from annotation.choices import NOT_ORDERED, Verdict
from annotation.exchange.formats import fields, verdicts
from annotation.exchange.formats.columns import MOST_ANSWERS, RATING, REFERENCE, TAG, by_name
from annotation.exchange.formats.fields import FieldError, excerpt
from annotation.exchange.formats.items import (
    ImportedCompletion,
    ImportedItem,
    ImportedJudgment,
    Reader,
    Row,
    dense,
    ranks_by_place,
    verdict_of,
)
from annotation.exchange.formats.verdicts import Reading
from annotation.record.judgment import RatingPart

PROMPT_READS = {
    "prompt": "the prompt",
    "messages": "the prompt, as a chat",
    "system": "the system message",
    "history": "earlier turns of the prompt",
    "input": "the prompt's second part",
    "context": "a context passage",
    "reference": "a reference answer",
    "tag": "a tag of the prompt",
}
JUDGMENT_READS = {
    "annotator": "the annotator",
    "comment": "the annotator's comment",
    "created_at": "the time of the annotation",
    "seconds": "the seconds that it took",
    "strength": "how much better the winner is",
}
ANSWER_READS = {
    **{f"answer_{number}": f"response {number}" for number in range(1, MOST_ANSWERS + 1)},
    **{f"source_{number}": f"the source of response {number}" for number in range(1, MOST_ANSWERS + 1)},
    **{f"rank_{number}": f"the rank of response {number}" for number in range(1, MOST_ANSWERS + 1)},
    **{
        f"score_{number}": f"the score of response {number}, higher is better"
        for number in range(1, MOST_ANSWERS + 1)
    },
    **{f"rating_{number}": f"a rating of response {number}" for number in range(1, MOST_ANSWERS + 1)},
}


def answers_of(row: Row) -> list[tuple[str, Any]]:
    """Return the answers of a part of a nested row, with the names of its columns."""
    shown, roles = by_name(row)
    names = roles.answers
    return [(name, shown[f"answer_{place}"]) for place, name in enumerate(names, start=1)]


def completions_of(
    columns: Row, answers: Sequence[tuple[str, Any]], where: str
) -> tuple[list[str], tuple[ImportedCompletion, ...]]:
    """Return the names of the answers and the answers themselves, with the sources that `columns` names.

    where: the field of a nested row that holds the columns. Raises `FieldError` where there is no answer.
    """
    if not answers:
        raise FieldError(
            "answers_missing",
            _("There are no answers. Map some of these columns to answer_1, answer_2, …: %(columns)s."),
            field=where,
            columns=", ".join(sorted(columns)),
        )
    shown, _roles = by_name(columns)
    return [name for name, _ in answers], tuple(
        ImportedCompletion(
            text=fields.text(text, f"{where}.{name}"),
            source=fields.optional_text(shown.get(f"source_{number}"), f"{where}.source_{number}"),
        )
        for number, (name, text) in enumerate(answers, start=1)
    )


def messages_of(row: Row) -> list[dict[str, str]]:
    """Return the prompt of a part of a nested row."""
    return fields.prompt_of(by_name(row)[0])


def prompt_parts(row: Row) -> dict[str, Any]:
    """Return the fields of an item that belong to its prompt but for its messages."""
    references = [
        fields.text(text, REFERENCE)
        for value in (row.get(REFERENCE) or {}).values()
        for text in (value if isinstance(value, list) else [value])
        if text not in (None, "")
    ]
    tags = []
    for value in (row.get(TAG) or {}).values():
        listed = fields.listed_in_text(value)
        tags += [str(tag) for tag in (listed if isinstance(listed, list) else [listed])]
    return {"context": list(_context(row.get("context"))), "references": references, "tags": tags}


def _context(value: Any) -> Iterator[dict[str, Any]]:
    for text in value if isinstance(value, list) else [value]:
        if text not in (None, ""):
            yield {"title": "", "sentences": [fields.text(text, "context")]}


def judgment_parts(row: Row) -> dict[str, Any]:
    """Return the fields of a judgment besides its verdict: annotator, comment, time, seconds."""
    return {
        "annotator": fields.person(row.get("annotator"), "annotator"),
        "comment": fields.optional_text(row.get("comment"), "comment"),
        "created_at": fields.moment(row.get("created_at"), "created_at"),
        "active_seconds": fields.measured_seconds(fields.number(row.get("seconds"))),
    }


def ratings_of(row: Row, role: str, completion: int) -> Iterator[RatingPart]:
    """Yield the ratings of one answer, as `plans.Plan` has read them: criterion → scale and value."""
    for criterion, (scale, value) in (row.get(role) or {}).items():
        yield RatingPart(completion=str(completion), criterion=criterion, scale=scale, value=value)


def _table(row: Row) -> Iterator[ImportedItem]:
    answers = _answers(row)
    completions = tuple(
        ImportedCompletion(
            text=fields.answer(value, f"answer_{number}"),
            source=_source(row.get(f"source_{number}"), f"source_{number}"),
        )
        for number, value in enumerate(answers, start=1)
    )
    yield ImportedItem(
        messages=fields.prompt_of(row),
        **prompt_parts(row),
        completions=completions,
        judgments=tuple(_judgments(row, completions)),
    )


def _source(value: Any, where: str) -> str:
    return fields.optional_text(str(value) if isinstance(value, (int, float)) else value, where)


def _answers(row: Row) -> list[Any]:
    """The answers of a row. A table may have columns for more answers than a row has.

    One that is empty before the last, or that leaves a pair with one answer, stays and is refused: the
    numbers after it must not move.
    """
    answers = []
    for number in range(1, MOST_ANSWERS + 1):
        if f"answer_{number}" not in row:
            break
        answers.append(row[f"answer_{number}"])
    while len(answers) > 2 and answers[-1] in (None, ""):
        answers.pop()
    return answers


def _judgments(row: Row, completions: tuple[ImportedCompletion, ...]) -> Iterator[ImportedJudgment]:
    count = len(completions)
    ranked, scored = (_numbers(row, name, count) for name in ("rank", "score"))
    if count == 2 and None in ranked:
        raise FieldError(
            "field_missing",
            _("The rank is missing, and the other answer has a rank."),
            field=f"rank_{ranked.index(None) + 1}",
        )
    ratings = tuple(
        rating
        for place in range(count)
        for role in ((f"{RATING}_{place + 1}", RATING) if count == 1 else (f"{RATING}_{place + 1}",))
        for rating in ratings_of(row, role, place)
    )
    winner = row.get("winner")
    strength = None
    if ranked:
        ranks = _ranks(ranked)
        verdict = verdict_of(ranks)
    elif winner not in (None, "") and completions:
        reading = _reading(winner, completions)
        if reading.place is not None and reading.place >= count:
            raise FieldError(
                "answer_not_there",
                _("The winner is answer %(number)s, but the number of answers in the row is %(count)s."),
                field="winner",
                number=reading.place + 1,
                count=count,
            )
        verdict, strength, ranks = reading.verdict, reading.strength, reading.ranks(count)
    elif scored:
        if missing := [n for n, score in enumerate(scored, start=1) if score is None]:
            raise FieldError(
                "field_missing",
                _(
                    "The score is missing, and the other answers have scores. Without it, its rank is "
                    "unknown."
                ),
                field=f"score_{missing[0]}",
            )
        ranks = dense([-float(score) for score in scored if score is not None])
        verdict = verdict_of(ranks)
    elif ratings:
        verdict, ranks = Verdict.NOT_ASKED, ()
    else:
        return
    yield ImportedJudgment(
        verdict=verdict,
        ranks=ranks_by_place(ranks),
        strength=_strength(row.get("strength"), verdict, strength),
        ratings=ratings,
        **judgment_parts(row),
    )


def _numbers(row: Mapping[str, Any], name: str, count: int) -> list[float | None]:
    """The ranks or scores of a row's answers, None for one without; nothing where all are without."""
    numbers: list[float | None] = []
    for place in range(1, count + 1):
        number = fields.number(row.get(f"{name}_{place}"))
        if number in (None, ""):
            numbers.append(None)
        elif isinstance(number, bool) or not isinstance(number, (int, float)):
            raise FieldError(
                "number_expected",
                _("A number is expected, not %(value)s."),
                field=f"{name}_{place}",
                value=excerpt(number),
            )
        else:
            numbers.append(number)
    return numbers if any(number is not None for number in numbers) else []


def _ranks(numbers: Sequence[float | None]) -> tuple[int, ...]:
    """Dense ranks, the lowest number best; an answer without a number is not ordered."""
    places = iter(dense([number for number in numbers if number is not None]))
    return tuple(NOT_ORDERED if number is None else next(places) for number in numbers)


def _strength(value: Any, verdict: str, read: int | None) -> int | None:
    if value in (None, ""):
        return read
    strength = fields.whole_number(fields.number(value), "strength")
    # A tie is as strong as nothing; a scale from -3 to 3 may stand beside the winner.
    return None if verdict != Verdict.RANKED and strength == 0 else abs(strength)


def _reading(winner: Any, completions: tuple[ImportedCompletion, ...]) -> Reading:
    """The meaning of a winner: as the plan of the file has read it, else by the row alone."""
    if isinstance(winner, Reading):
        return winner
    names = [f"answer_{number}" for number in range(1, len(completions) + 1)]
    reading = verdicts.read_column([winner], names).values.get(verdicts.spelled(winner))
    if reading is None:
        raise FieldError(
            "answer_not_there",
            _("%(value)s is none of the answers %(names)s."),
            field="winner",
            value=excerpt(winner),
            names=", ".join(names),
        )
    return reading


def winner_by_row(winner: Any, row: Row) -> Reading | None:
    """Return the winner by the name of its model, or by its text, where one answer alone has it."""
    word = str(winner).strip()
    places = [
        place
        for place, value in enumerate(_answers(row))
        if word in (str(row.get(f"source_{place + 1}") or "").strip(), str(value).strip())
    ]
    return Reading(place=places[0]) if len(places) == 1 else None


READERS = (
    Reader(
        name="table",
        sentence="Any table with a prompt and answers; its columns are guessed and can be corrected.",
        read=_table,
        matches=lambda row: True,
        is_tabular=True,
        reads={
            **PROMPT_READS,
            **ANSWER_READS,
            **JUDGMENT_READS,
            "winner": "the preference",
            RATING: "a rating of the response",
        },
        # HelpSteer: the votes of which the column of winners is the mean.
        keeps=frozenset({"individual_preference", "all_preferences_unprocessed"}),
    ),
)
