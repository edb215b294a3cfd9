"""Argilla's records: out, and its exports in (a chosen label, rankings, marks, ratings), nested and flat.

From argilla/src/argilla/records/_io/_generic.py of https://github.com/argilla-io/argilla: nested records have
`fields` and `responses` (question → list of `value`, `user_id`); flat ones have the fields as columns and
`QUESTION.responses`, `QUESTION.responses.users`, `QUESTION.responses.status`. The settings of the dataset are
not in the export, so a question is known by its values: names of answers in order are a ranking, one such
name (or `A`, `left`) is the winner, objects with `start` and `end` are marks, a number, `thumb up` or
`thumb down` is a rating, any other text a comment. Marks and ratings belong to the answer whose name begins
or ends the question's, or to the only answer. A question named `question_KEY`, or `question_KEY_answer_1` for
one response, answers an additional question of the project. Only submitted responses are judgments. What is
about no answer must be left out by name; it stays with the annotation.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from annotation.choices import NOT_ORDERED, RatingScale, Verdict
from annotation.exchange.formats import fields
from annotation.exchange.formats.columns import PROSE, VERDICT_LIKE, by_name, words_of
from annotation.exchange.formats.fields import FieldError
from annotation.exchange.formats.items import (
    ImportedCompletion,
    ImportedItem,
    ImportedJudgment,
    Reader,
    Row,
    RowPart,
    dense,
    key_of,
    ranks_by_place,
    span_at,
)
from annotation.exchange.formats.tables import (
    ANSWER_READS,
    PROMPT_READS,
    answers_of,
    completions_of,
    prompt_parts,
)
from annotation.exchange.formats.verdicts import VerdictRanks, is_left_out, read_value, winner_of
from annotation.exchange.formats.writers import (
    Dropped,
    Record,
    Scene,
    Writer,
    Written,
    about_parts,
    about_wholes,
)
from annotation.record.judgment import AnswerPart, RatingPart, SpanPart

_SUFFIX = ".responses"
_NO_ANNOTATION = {
    "draft": "a draft is no annotation",
    "discarded": "a discarded response is no annotation",
    "pending": "a pending response is no annotation",
}
_NO_VALUE = (None, "")
"""An empty list is one: no span in the text."""
_THUMBS = ("thumb down", "thumb up")
_NOTHING_SUBMITTED = "a submission without any value is no annotation"


@dataclass(frozen=True, slots=True)
class _Response:
    """One person's response to one question."""

    question: str
    value: Any
    person: str
    """The annotator, or `#0`, `#1`, … where nobody is named."""
    status: str = ""
    time: Any = None


def _records(row: Row) -> Iterator[ImportedItem]:
    columns, responses = _opened(row)
    names, completions = completions_of(columns, answers_of(columns), "fields")
    by_person: dict[str, list[_Response]] = {}
    answered = _people_with_values(responses)
    for response in responses:
        if response.status not in _NO_ANNOTATION and response.person in answered:
            by_person.setdefault(response.person, []).append(response)
    judgments = []
    for person, of_person in by_person.items():
        reading = _PersonReading(row, names, completions)
        for response in of_person:
            reading.read(response)
        judgments.append(reading.judgment(person, of_person))
    shown, _roles = by_name(columns)
    metadata = row.get("metadata")
    yield ImportedItem(
        messages=fields.prompt_of(shown),
        **prompt_parts(shown),
        completions=completions,
        judgments=tuple(judgments),
        metadata=dict(metadata) if isinstance(metadata, dict) else {},
    )


def _opened(row: Row) -> tuple[Mapping[str, Any], list[_Response]]:
    """The fields of a record and its responses, whether it is nested or flat."""
    if not isinstance(row.get("fields"), dict):
        return _flat(row)
    listed = row.get("responses") or {}
    if isinstance(listed, dict):
        return row["fields"], list(_by_question(listed))
    return row["fields"], list(_by_person(fields.items_of(listed, "responses")))


def _by_question(listed: Mapping[str, Any]) -> Iterator[_Response]:
    for question, responses in listed.items():
        where = f"responses.{question}"
        for number, value in enumerate(fields.items_of(responses, where)):
            entry = fields.object_of(value, f"{where}[{number}]")
            yield _Response(question, entry.get("value"), *_whose(entry, number))


def _by_person(listed: list[Any]) -> Iterator[_Response]:
    """The responses of Argilla 1: a list of people, each with values of questions."""
    for number, value in enumerate(listed):
        entry = fields.object_of(value, f"responses[{number}]")
        for question, said in fields.object_of(entry.get("values") or {}, f"responses[{number}]").items():
            answer = said.get("value") if isinstance(said, dict) else said
            yield _Response(question, answer, *_whose(entry, number))


def _whose(entry: Mapping[str, Any], number: int) -> tuple[str, str, Any]:
    person = fields.person(entry.get("user_id"), "user_id") or f"#{number}"
    return person, str(entry.get("status") or ""), entry.get("updated_at") or entry.get("inserted_at")


def _flat(row: Row) -> tuple[Mapping[str, Any], list[_Response]]:
    responses = []
    for column in [name for name in row if name.endswith(_SUFFIX)]:
        values = fields.items_of(fields.listed_in_text(row[column]), column)
        users = fields.listed_in_text(row.get(f"{column}.users")) or [""] * len(values)
        states = fields.listed_in_text(row.get(f"{column}.status")) or [""] * len(values)
        for number, (user, state, value) in enumerate(zip(users, states, values, strict=False)):
            person = fields.person(user or None, f"{column}.users") or f"#{number}"
            responses.append(_Response(column.removesuffix(_SUFFIX), value, person, str(state or "")))
    shown = {name: value for name, value in row.items() if "." not in name and isinstance(value, (str, list))}
    return shown, responses


class _PersonReading:
    """The responses of one person, read one after another."""

    def __init__(self, row: Row, names: Sequence[str], answers: Sequence[ImportedCompletion]) -> None:
        self._row = row
        self._names = names
        self._answers = answers
        self._decision = VerdictRanks(len(answers))
        self._spans: list[SpanPart] = []
        self._ratings: list[RatingPart] = []
        self._answers_given: list[AnswerPart] = []
        self._comments: list[str] = []
        self._unread: dict[str, Any] = {}

    def read(self, response: _Response) -> RowPart | None:
        """Read one response; what became of it, None for an empty one. Raises `FieldError`."""
        question, value = response.question, response.value
        where = f"responses.{question}"
        if value in (*_NO_VALUE, []):
            return None
        if is_left_out(self._row, where):
            self._unread[question] = value
            return None
        if question.startswith(_QUESTION):
            self._answers_given.append(_answer(question, value, self._names, where))
            return RowPart(where, _shown(value), "read", "an answer to an additional question")
        place = _place(question, self._names)
        is_plain = isinstance(value, (str, bool)) or (place is None and isinstance(value, (int, float)))
        if _is_spans(value) and place is not None:
            self._spans += _marks(value, place, self._answers[place].text, where)
            reading = "spans"
        elif _is_ranking(value, self._names):
            self._decision.rank(_ranking(value, self._names, where), where)
            reading = "the ranking"
        elif _is_rating(value) and place is not None:
            self._ratings.append(_rating(question, value, place, self._names, where))
            reading = "a rating of the response"
        elif (
            is_plain
            and len(self._names) > 1
            and (_may_be_verdict(question) or read_value(value, self._names) is not None)
        ):
            if (said := winner_of(self._row, where, value, self._names)) is None:
                self._unread[question] = value
            else:
                self._decision.say(said, where)
            return RowPart(where, value, "read", "the preference", answers=tuple(self._names))
        elif isinstance(value, str) and not _may_be_verdict(question):
            self._comments.append(fields.text(value, where))
            reading = "the annotator's comment"
        else:
            self._unread[question] = value
            return RowPart(
                where, _shown(value), "question", f"its values name none of {', '.join(self._names)}"
            )
        return RowPart(where, _shown(value), "read", reading)

    def judgment(self, person: str, responses: Sequence[_Response]) -> ImportedJudgment:
        times = [response.time for response in responses if response.time]
        return ImportedJudgment(
            verdict=self._decision.verdict,
            ranks=ranks_by_place(self._decision.ranks),
            strength=self._decision.strength,
            annotator="" if person.startswith("#") else person,
            spans=tuple(self._spans),
            ratings=tuple(self._ratings),
            answers=tuple(self._answers_given),
            comment="\n\n".join(self._comments),
            created_at=fields.moment(times[0], "responses.updated_at") if times else "",
            more={"responses": self._unread} if self._unread else {},
        )


def _is_spans(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, dict) and "start" in entry for entry in value)


def _is_ranking(value: Any, names: Sequence[str]) -> bool:
    """True for a list of answers with their ranks, or of their names, the best first."""
    if not isinstance(value, list) or len(names) < 2:
        return False
    if all(isinstance(entry, dict) for entry in value):
        return all("rank" in entry for entry in value)
    return any(entry in names for entry in value if isinstance(entry, str))


def _may_be_verdict(question: str) -> bool:
    words = words_of(question)
    return bool(VERDICT_LIKE.search(words)) and not PROSE.fullmatch(words)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _people_with_values(responses: Sequence[_Response]) -> set[str]:
    """The people who submitted a value: who answered none of the questions has judged nothing."""
    return {
        response.person
        for response in responses
        if response.status not in _NO_ANNOTATION and response.value not in _NO_VALUE
    }


def _survey(row: Row) -> Iterator[RowPart]:
    """Account for every response."""
    try:
        columns, responses = _opened(row)
        names, completions = completions_of(columns, answers_of(columns), "fields")
    except FieldError:
        # Its reading raises the same error, which then names the row.
        return
    answered = _people_with_values(responses)
    readings: dict[str, _PersonReading] = {}
    for response in responses:
        if response.status in _NO_ANNOTATION:
            name = f"responses.{response.question}"
            yield RowPart(name, _shown(response.value), "not_read", _NO_ANNOTATION[response.status])
            continue
        if response.person not in answered:
            name = f"responses.{response.question}"
            yield RowPart(name, "", "not_read", _NOTHING_SUBMITTED)
            continue
        reading = readings.setdefault(response.person, _PersonReading(row, names, completions))
        with suppress(FieldError):
            if part := reading.read(response):
                yield part


def _ranking(value: list[Any], names: Sequence[str], where: str) -> tuple[int, ...]:
    if all(isinstance(entry, dict) for entry in value):
        places = {str(entry.get("value")): fields.whole_number(entry.get("rank"), where) for entry in value}
    else:
        places = {str(name): rank for rank, name in enumerate(value, start=1)}
    if len(places) < len(value) or not places.keys() <= set(names):
        raise FieldError(
            "ranking_expected",
            _("Rank some of these, each once: %(names)s."),
            field=where,
            names=", ".join(names),
        )
    ranks = dict(zip(places, dense(list(places.values())), strict=True))
    return tuple(ranks.get(name, NOT_ORDERED) for name in names)


def _marks(value: list[Any], place: int, text: str, where: str) -> Iterator[SpanPart]:
    for number, mark in enumerate(value):
        at = f"{where}[{number}]"
        yield span_at(
            place,
            text,
            key_of(fields.text(mark.get("label"), f"{at}.label")),
            fields.whole_number(mark.get("start"), f"{at}.start"),
            fields.whole_number(mark.get("end"), f"{at}.end"),
        )


def _is_rating(value: Any) -> bool:
    return value in _THUMBS or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _rating(question: str, value: Any, place: int, names: Sequence[str], where: str) -> RatingPart:
    criterion = question.removeprefix(names[place]).removesuffix(names[place]).strip("_-. ") or "rating"
    if value in _THUMBS:
        rating, scale = _THUMBS.index(value), RatingScale.THUMBS
    else:
        rating = fields.whole_number(value, where)
        scale = RatingScale.FIVE if 1 <= rating <= 5 else RatingScale.SEVEN
    return RatingPart(completion=str(place), criterion=key_of(criterion), scale=scale, value=rating)


_QUESTION = "question_"


def _answer(question: str, value: Any, names: Sequence[str], where: str) -> AnswerPart:
    key = question.removeprefix(_QUESTION)
    for name in sorted(names, key=len, reverse=True):
        if key.endswith(f"_{name}"):
            return AnswerPart(
                question=key_of(key.removesuffix(f"_{name}")),
                completion=str(names.index(name)),
                value=fields.answer_value(value, where),
            )
    return AnswerPart(question=key_of(key), value=fields.answer_value(value, where))


def _place(question: str, names: Sequence[str]) -> int | None:
    """The answer whose name begins or ends a question's; the only one; None where a question is about all."""
    if len(names) == 1:
        return 0
    for name in sorted(names, key=len, reverse=True):
        pattern = rf"{re.escape(name)}(?![A-Za-z0-9]).*|.*(?<![A-Za-z0-9]){re.escape(name)}"
        if re.fullmatch(pattern, question):
            return names.index(name)
    return None


READERS = (
    Reader(
        name="argilla",
        sentence="Argilla's exports, nested or flat: winners, rankings, marks, ratings.",
        read=_records,
        matches=lambda row: (
            (isinstance(row.get("fields"), dict) and "responses" in row)
            or any(name.endswith(_SUFFIX) for name in row)
        ),
        reads={
            "responses": "the annotations",
            "metadata": "metadata of the comparison",
            "*.responses": "the annotations",
            "*.responses.users": "the annotators",
            "*.responses.status": "whether a response was submitted",
            **PROMPT_READS,
            **{
                role: words for role, words in ANSWER_READS.items() if role.startswith(("answer_", "source_"))
            },
        },
        ignores={
            "suggestions": "a suggestion is no annotation",
            "*.suggestion": "a suggestion is no annotation",
            "*.suggestion.*": "a suggestion is no annotation",
            "vectors": "vectors are for the search in Argilla",
            "status": "whether Argilla has enough responses",
            "_server_id": "an id of the Argilla server",
        },
        inner="fields",
        survey=_survey,
        loses="suggestions, drafts, discarded and pending responses, vectors",
    ),
)


# Judgments as records of Argilla, each with the responses of one person: out.
#
# A record has `fields` and `responses` as `Dataset.records.to_list()` writes them. Numbers and dates are
# texts, since Argilla has no questions for them.


def _record(record: Record, _scene: Scene) -> Written:
    names = {
        completion["id"]: f"answer_{number}"
        for number, completion in enumerate(record["completions"], start=1)
    }
    messages = record["messages"]
    is_plain = len(messages) == 1 and messages[0]["role"] == "user"
    responses = {
        **_preference(record, names),
        **{
            f"{rating['criterion']}_{names[rating['completion']]}": _rated(rating)
            for rating in record["ratings"]
        },
        **_span_responses(record, names),
        **({"comment": record["comment"]} if record["comment"] else {}),
        **{
            _question_name(answer, names): _response_value(answer["value"]) for answer in about_wholes(record)
        },
    }
    yield {
        "id": record["judgment"],
        "status": "completed",
        "fields": {
            "prompt": messages[0]["content"] if is_plain else messages,
            **{names[completion["id"]]: completion["text"] for completion in record["completions"]},
        },
        "metadata": record.get("metadata", {}),
        "responses": {
            question: [{"value": value, "user_id": record["annotator"], "status": "submitted"}]
            for question, value in responses.items()
        },
        "suggestions": {},
        "vectors": {},
    }
    for name in ("missing", "corrections", "critiques", "demonstration", "strength"):
        if record[name]:
            yield Dropped(f"{name}: Argilla has no question for it")
    if about_parts(record, "span", "step"):
        yield Dropped("answers about spans and steps: Argilla has no question for them")


def _preference(record: Record, names: Mapping[str, str]) -> dict[str, Any]:
    verdict, ranks = record["verdict"], record["ranks"]
    if verdict == Verdict.NOT_ASKED:
        return {}
    if verdict != Verdict.RANKED:
        return {"preference": verdict.replace("_", " ")}
    if len(names) == 2:
        return {"preference": names[min(names, key=lambda pk: ranks[pk])]}
    return {"ranking": [{"value": names[pk], "rank": ranks[pk]} for pk in names if pk in ranks]}


def _span_responses(record: Record, names: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    spans: dict[str, list[dict[str, Any]]] = {}
    for span in record["spans"]:
        question = f"spans_{names[span['completion']]}"
        mark = {"label": span["category"], "start": span["start"], "end": span["end"]}
        spans.setdefault(question, []).append(mark)
    return spans


def _rated(rating: Mapping[str, Any]) -> Any:
    """A thumb is a label: as a number, 1 would be the worst of five."""
    return _THUMBS[rating["value"]] if rating["scale"] == RatingScale.THUMBS else rating["value"]


def _question_name(answer: Mapping[str, Any], names: Mapping[str, str]) -> str:
    of = "" if answer["completion"] is None else f"_{names[answer['completion']]}"
    return f"{_QUESTION}{answer['question']}{of}"


def _response_value(value: Any) -> Any:
    return str(value) if isinstance(value, float) else list(value) if isinstance(value, tuple) else value


WRITERS = (
    Writer(
        name="argilla",
        sentence="Argilla's records, each with the responses of one annotator.",
        container="json",
        rows=_record,
        carries_answers=True,
        carries="preferences, rankings with ties, spans, ratings, answers, comments, metadata",
        loses=(
            "missing information, corrections, critiques, demonstrations, strength, severities, sources, "
            "answers about spans and steps"
        ),
    ),
)
