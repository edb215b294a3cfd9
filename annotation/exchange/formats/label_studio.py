"""Label Studio's JSON export: in (pairs, rankings, marks, ratings).

From https://labelstud.io/guide/export, /tags/pairwise, /tags/ranker and /tags/labels: a task has `data` and
`annotations`; an annotation has `completed_by`, `was_cancelled` and `result`; a result has `type`,
`from_name`, `to_name` and `value`:

| type       | value                                                                 |
|------------|-----------------------------------------------------------------------|
| `pairwise` | `selected`: `left` or `right`                                         |
| `ranker`   | `ranker`: ids, the best first, or one list of them in an object        |
| `labels`   | `start`, `end`, `text`, `labels`                                      |
| `rating`   | `rating`                                                              |
| `choices`  | `choices`: the winner (Response A, answer_2, left is better) or a tie   |
| `textarea` | `text`: the comment; of a region the note of its span                   |

A result whose control is named `question_KEY` answers an additional question of the project: `choices`,
`number`, `rating`, `textarea` or `datetime`, about the answer that `to_name` names or else the comparison.

Any other result stays with the annotation and is listed; one that may be a verdict must be left out by name.

The labelling configuration is not in the export, so which field of `data` holds which text is told from the
names: `prompt`, and `answer_1`, `answer_2`, … or what a mapping makes of other names. A browser counts UTF-16
units; where the quoted text says so, offsets are turned into code points.

What goes out is in `label_studio_tasks`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from django.utils.translation import gettext as _

from annotation.choices import NOT_ORDERED, RatingScale, Verdict
from annotation.exchange.formats import fields
from annotation.exchange.formats.columns import VERDICT_LIKE, by_name, words_of
from annotation.exchange.formats.fields import FieldError, excerpt, unknown_value
from annotation.exchange.formats.items import (
    ImportedCompletion,
    ImportedItem,
    ImportedJudgment,
    Kind,
    Reader,
    Row,
    RowPart,
    dense,
    key_of,
    placed,
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
from annotation.exchange.formats.verdicts import VerdictRanks, is_left_out, named_place, no_winner, winner_of
from annotation.exchange.formats.writers import Dropped, Record, Scene, Writer, Written, about_parts
from annotation.record.judgment import AnswerPart, RatingPart, SpanPart

# Judgments as tasks of Label Studio, in the shape of its JSON export: out.
#
# One task with one annotation for each judgment. Label Studio 1.23 takes an annotation that names nobody
# for one of the person who imports it. It refuses `completed_by` without `email`, and an email that none of
# its members has, so pseudonyms go out in the task's `meta`, which it stores and exports again. Its pages
# count code points, as Rondo does.
#
# A ranking with ties is a `ranker` in some order that agrees with it, and `meta.ranks` says which are tied.
# What has no type there goes out as dropped: missing info, corrections, critiques, a demonstration, strength.


def _task(record: Record, scene: Scene) -> Written:
    names = {
        completion["id"]: f"answer_{number}"
        for number, completion in enumerate(record["completions"], start=1)
    }
    messages = record["messages"]
    result = [
        *_verdict(record, names),
        *_labels(record, names),
        *_ratings(record, names),
        *_question_answers(record, names, scene),
        *_comment(record),
    ]
    yield {
        "id": int(record["judgment"]),
        "data": {
            "prompt": messages[0]["content"]
            if len(messages) == 1 and messages[0]["role"] == "user"
            else messages,
            **{names[completion["id"]]: completion["text"] for completion in record["completions"]},
            **{
                f"source_{number}": completion["source"]
                for number, completion in enumerate(record["completions"], start=1)
            },
            **_listed(record, names),
        },
        "meta": {"judgment": record["judgment"], "annotator": record["annotator"]},
        "annotations": [
            {
                "id": int(record["judgment"]),
                "created_at": record["created_at"],
                "was_cancelled": False,
                "lead_time": record["active_seconds"],
                # Label Studio's pages find a region by its id.
                "result": [{"id": f"r{number}", **region} for number, region in enumerate(result, start=1)],
            }
        ],
    }
    for name in ("missing", "corrections", "critiques", "demonstration", "strength"):
        if record[name]:
            yield Dropped(f"{name}: Label Studio has no type for it")
    if about_parts(record, "step"):
        yield Dropped("answers about steps: Label Studio has no steps")


def _listed(record: Record, names: dict[str, str]) -> dict[str, Any]:
    """The completions as the list that a `Ranker` orders; a pair is shown by two `Text`s."""
    if len(names) < 3:
        return {}
    listed = [
        {
            "id": names[completion["id"]],
            "title": names[completion["id"]],
            "body": completion["text"],
            "source": completion["source"],
        }
        for completion in record["completions"]
    ]
    return {"answers": listed}


def _verdict(record: Record, names: dict[str, str]) -> Iterator[dict[str, Any]]:
    verdict, ranks = record["verdict"], record["ranks"]
    if verdict == Verdict.NOT_ASKED:
        return
    if verdict != Verdict.RANKED:
        yield {
            "from_name": "verdict",
            "to_name": "prompt",
            "type": "choices",
            "value": {"choices": [Verdict(verdict).value.replace("_", " ")]},
        }
    elif len(names) == 2:
        left, right = (ranks[pk] for pk in names)
        yield {
            "from_name": "preference",
            "to_name": ",".join(names.values()),
            "type": "pairwise",
            "value": {"selected": "left" if left < right else "right"},
        }
    else:
        order = sorted((pk for pk in names if pk in ranks), key=lambda pk: ranks[pk])
        yield {
            "from_name": "ranking",
            "to_name": "answers",
            "type": "ranker",
            # Its pages show an order only under the name of the control.
            "value": {"ranker": {"ranking": [names[pk] for pk in order]}},
            "meta": {"ranks": [ranks.get(pk) for pk in names]},
        }


def _labels(record: Record, names: dict[str, str]) -> Iterator[dict[str, Any]]:
    asked = {_region_of(answer) for answer in about_parts(record, "span")}
    for span in record["spans"]:
        region = _region(span["completion"], span)
        meta = {"severity": span["severity"]} if span["severity"] is not None else {}
        yield {
            # Answers about the span find it by its id.
            **({"id": region} if region in asked else {}),
            "from_name": "marks",
            "to_name": names[span["completion"]],
            "type": "labels",
            "value": {
                "start": span["start"],
                "end": span["end"],
                "text": span["quote"],
                "labels": [span["category"]],
            },
            "meta": meta
            | ({"text": [span["note"]]} if span["note"] else {})
            | ({"parent": [span["parent"]]} if "parent" in span else {})
            | ({"liked": ["true"]} if "liked" in span else {}),
        }


def _ratings(record: Record, names: dict[str, str]) -> Iterator[dict[str, Any]]:
    for rating in record["ratings"]:
        yield {
            "from_name": rating["criterion"],
            "to_name": names[rating["completion"]],
            "type": "rating",
            "value": {"rating": rating["value"]},
            "meta": {"scale": rating["scale"]},
        }


_QUESTION = "question_"
_TYPES = {
    "choice": ("choices", "choices"),
    "choices": ("choices", "choices"),
    "scale": ("number", "number"),
    "number": ("number", "number"),
    "text": ("textarea", "text"),
    "date": ("datetime", "datetime"),
}
"""Kind of an additional question → type of the result, and the name of its value."""


def _region(completion: str, span: Mapping[str, Any]) -> str:
    return f"span-{completion}-{span['start']}-{span['end']}-{span['category']}"


def _region_of(answer: Mapping[str, Any]) -> str:
    return _region(answer["completion"], answer["span"])


def _question_answers(record: Record, names: dict[str, str], scene: Scene) -> Iterator[dict[str, Any]]:
    for answer in record.get("answers", ()):
        if "step" in answer:
            continue
        about_span = answer.get("span")
        kind = scene.questions.get(answer["question"], "text")
        result_type, name = _TYPES[kind]
        value = answer["value"]
        is_list = name in ("choices", "text")
        yield {
            **({"id": _region_of(answer)} if about_span else {}),
            "from_name": f"{_QUESTION}{answer['question']}",
            "to_name": "prompt" if answer["completion"] is None else names[answer["completion"]],
            "type": result_type,
            "value": {
                **({"start": about_span["start"], "end": about_span["end"]} if about_span else {}),
                name: [value] if is_list and not isinstance(value, list | tuple) else value,
            },
            "meta": {"version": answer["version"]},
        }


def _comment(record: Record) -> Iterator[dict[str, Any]]:
    if record["comment"]:
        yield {
            "from_name": "comment",
            "to_name": "prompt",
            "type": "textarea",
            "value": {"text": [record["comment"]]},
        }


_SPANS = ("labels", "hypertextlabels")
_VERDICT_LIKE = ("choices", "number", "taxonomy", "rating", "pairwise", "ranker")
_READ_OF_ANNOTATION = {
    "completed_by",
    "was_cancelled",
    "result",
    "created_at",
    "lead_time",
    "id",
    "import_id",
}
_BOOKKEEPING = {
    *("updated_at", "updated_by", "draft_created_at", "result_count", "unique_id", "last_action", "task"),
    *("project", "parent_prediction", "parent_annotation", "last_created_by", "bulk_created", "prediction"),
    *("created_username", "created_ago", "model_version", "ground_truth"),
}
"""Keys of an annotation that are not read; a ground truth stays with the annotation."""
_LISTS = ("answers", "responses", "completions", "candidates", "items", "options")


def _tasks(row: Row) -> Iterator[ImportedItem]:
    data = fields.object_of(fields.required(row, "data"), "data")
    names, completions = _answers(data)
    judgments = []
    for where, annotation in _annotations(row):
        if not annotation.get("was_cancelled"):
            reading = _AnnotationReading(row, names, completions)
            reading.read(annotation, where)
            judgments.append(reading.judgment(_annotator(row, annotation), annotation, where))
    shown, _roles = by_name(data)
    meta = row.get("meta")
    rest = {k: v for k, v in meta.items() if k not in _META} if isinstance(meta, dict) else {}
    yield ImportedItem(
        messages=fields.prompt_of(shown),
        **prompt_parts(shown),
        completions=tuple(completions),
        judgments=tuple(judgments),
        metadata={"meta": rest} if rest else {},
    )


def _annotations(row: Row) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, value in enumerate(fields.items_of(row.get("annotations"), "annotations")):
        where = f"annotations[{number}]"
        yield where, fields.object_of(value, where)


def _answers(data: Mapping[str, Any]) -> tuple[list[str], Sequence[ImportedCompletion]]:
    """The names by which results speak of answers, and the answers."""
    for value in data.values():
        if (
            isinstance(value, list)
            and value
            and all(isinstance(entry, dict) and "id" in entry for entry in value)
        ):
            ids = [str(entry["id"]) for entry in value]
            return ids, [
                ImportedCompletion(
                    text=fields.text(entry.get("body") or entry.get("text") or entry.get("html"), "data"),
                    source=fields.optional_text(entry.get("source"), "data"),
                    metadata=fields.object_of(entry.get("metadata") or {}, "data.metadata"),
                )
                for entry in value
            ]
    answers = answers_of(data)
    if not answers and isinstance(data.get("text"), str):
        answers = [("text", data["text"])]
    return completions_of(data, answers, "data")


class _AnnotationReading:
    """The results of one annotation, read one after another."""

    def __init__(self, row: Row, names: Sequence[str], answers: Sequence[ImportedCompletion]) -> None:
        self._row = row
        self._names = names
        self._answers = answers
        self._decision = VerdictRanks(len(answers))
        self._spans: list[SpanPart] = []
        self._ratings: list[RatingPart] = []
        self._question_answers: list[AnswerPart] = []
        self._about_regions: list[tuple[str, AnswerPart]] = []
        self._comments: list[str] = []
        self._notes: list[tuple[str, Mapping[str, Any], int | None, str]] = []
        self._regions: list[tuple[str, SpanPart]] = []
        self._unread: list[Mapping[str, Any]] = []
        self.parts: list[RowPart] = []
        """The account of every result."""

    def read(self, annotation: Mapping[str, Any], where: str) -> None:
        """Read all results of an annotation. Raises `FieldError`."""
        where = f"{where}.result"
        for number, entry in enumerate(fields.items_of(annotation.get("result"), where)):
            result, at = fields.object_of(entry, f"{where}[{number}]"), f"{where}[{number}]"
            if not self._is_answer(result, at):
                self._result(result, at)
        self._place_notes()
        self._place_answers()

    def judgment(self, annotator: str, annotation: Mapping[str, Any], where: str) -> ImportedJudgment:
        more: dict[str, Any] = {
            name: value
            for name, value in annotation.items()
            if name not in _READ_OF_ANNOTATION | _BOOKKEEPING
        }
        if annotation.get("ground_truth"):
            more["ground_truth"] = True
        if self._unread:
            more["results"] = list(self._unread)
        return ImportedJudgment(
            verdict=self._decision.verdict,
            ranks=ranks_by_place(self._decision.ranks),
            strength=self._decision.strength,
            annotator=annotator,
            spans=tuple(self._spans),
            ratings=tuple(self._ratings),
            answers=tuple(self._question_answers),
            comment=fields.text("\n\n".join(self._comments), where, empty=True),
            active_seconds=fields.measured_seconds(annotation.get("lead_time")),
            created_at=fields.moment(annotation.get("created_at"), f"{where}.created_at"),
            more=more,
        )

    def _result(self, result: Mapping[str, Any], at: str) -> None:
        kind, value = result.get("type"), result.get("value")
        value = value if isinstance(value, dict) else {}
        is_region = "start" in value
        if is_left_out(self._row, _part_name(result)):
            self._unread.append(_kept(result))
            return
        if kind == "pairwise":
            self._decision.rank(self._pair(result, value, at), at)
        elif kind == "ranker":
            self._decision.rank(_ranking(result, value, self._names, at), at)
        elif kind in _SPANS and (place := self._place(result, at)) is not None:
            for span in _marks(result, value, place, self._answers[place].text, at):
                self._spans.append(span)
                self._regions.append((str(result.get("id")), span))
            if not value.get(kind):
                self._keep(result, "metadata", "a region without a label")
                return
        elif kind == "rating" and not is_region and (place := self._place(result, at)) is not None:
            self._ratings.append(_rating(result, value, place, at))
        elif kind == "choices" and not is_region and self._is_decision(word := _choice(value)):
            self._choose(result, word, at)
            return
        elif kind == "textarea":
            self._words(result, value, at)
        else:
            is_verdict = kind in _VERDICT_LIKE and not is_region
            self._keep(result, "question" if is_verdict else "metadata", _why(str(kind), value))
            return
        self.parts.append(RowPart(_part_name(result), _shown(value), "read", _READINGS[str(kind)]))

    def _is_answer(self, result: Mapping[str, Any], at: str) -> bool:
        """Read a result that answers an additional question; False for another."""
        name, value = str(result.get("from_name") or ""), result.get("value")
        said = value.get(_VALUES.get(str(result.get("type")), "")) if isinstance(value, dict) else None
        if not name.startswith(_QUESTION) or said is None or is_left_out(self._row, _part_name(result)):
            return False
        place = self._place(result, at)
        version = (result.get("meta") or {}).get("version")
        answer = AnswerPart(
            question=key_of(name.removeprefix(_QUESTION)),
            completion=None if place is None else str(place),
            value=fields.answer_value(said, f"{at}.value"),
            version=None if version is None else fields.whole_number(version, f"{at}.meta.version"),
        )
        if isinstance(value, dict) and "start" in value:
            # Its region may come after it.
            self._about_regions.append((str(result.get("id")), answer))
        else:
            self._question_answers.append(answer)
        reading = "an answer to an additional question"
        self.parts.append(RowPart(_part_name(result), _shown(value), "read", reading))
        return True

    def _place_answers(self) -> None:
        """Give the answers about regions their spans. Of one whose region has no label the answer goes to the
        response, where the project refuses it if it asks that of spans."""
        spans = dict(self._regions)
        for region, answer in self._about_regions:
            span = spans.get(region)
            self._question_answers.append(
                replace(answer, completion=span.completion, span=span.place) if span else answer
            )

    def _words(self, result: Mapping[str, Any], value: Mapping[str, Any], at: str) -> None:
        lines = value.get("text")
        words = "\n".join(map(str, fields.items_of([lines] if isinstance(lines, str) else lines, at)))
        if "start" in value:
            self._notes.append((str(result.get("id")), value, self._place(result, at), words))
        elif words:
            self._comments.append(words)

    def _is_decision(self, word: str) -> bool:
        """True for a choice that may be a preference; of a single answer only that it cannot be judged."""
        return bool(word) and (len(self._names) > 1 or no_winner(word) == Verdict.CANNOT_JUDGE)

    def _choose(self, result: Mapping[str, Any], word: str, at: str) -> None:
        name, names = _part_name(result), tuple(self._names)
        self.parts.append(RowPart(name, word, "read", _READINGS["choices"], answers=names))
        if (reading := winner_of(self._row, name, word, names)) is None:
            self._unread.append(_kept(result))
        else:
            self._decision.say(reading, at)

    def _keep(self, result: Mapping[str, Any], kind: Kind, why: str) -> None:
        """A result that is not read: it stays with the judgment."""
        self._unread.append(_kept(result))
        self.parts.append(RowPart(_part_name(result), _shown(result.get("value")), kind, why))

    def _pair(self, result: Mapping[str, Any], value: Mapping[str, Any], at: str) -> tuple[int, ...]:
        """The ranks of a pair. Left is the first that `to_name` names, whatever their order in the task."""
        if len(self._answers) != 2:
            raise FieldError(
                "pair_expected",
                _("The result is about a pair, but the number of answers in the task is %(count)s."),
                field=at,
                count=len(self._answers),
            )
        if value.get("selected") not in ("left", "right"):
            raise unknown_value(value.get("selected"), ("left", "right"), f"{at}.value.selected")
        listed = [name.strip() for name in str(result.get("to_name", "")).split(",") if name.strip()]
        places = [named_place(name, self._names) for name in listed]
        left = 0
        if any(place is not None for place in places):
            if len(places) != 2 or None in places or places[0] == places[1]:
                raise FieldError(
                    "names_missing",
                    _("Name both of these: %(names)s."),
                    field=f"{at}.to_name",
                    names=", ".join(self._names),
                )
            left = places[0] or 0
        best = left if value["selected"] == "left" else 1 - left
        return (1, 2) if best == 0 else (2, 1)

    def _place(self, result: Mapping[str, Any], where: str) -> int | None:
        """The answer that a result is about; None for one about something else of the task."""
        name = str(result.get("to_name", ""))
        place = self._names.index(name) if name in self._names else None
        if place is None and name in self._row["data"]:
            return None
        if place is None and len(self._names) == 1:
            return None if name in ("prompt", "question", "context") else 0
        if place is None:
            place = named_place(name, self._names)
        if place is None and name in ("prompt", "question", "context", "instruction", ""):
            return None
        if place is None:
            raise FieldError(
                "answer_not_there",
                _("%(value)s is none of the answers %(names)s."),
                field=f"{where}.to_name",
                value=excerpt(name),
                names=", ".join(self._names),
            )
        return place

    def _place_notes(self) -> None:
        """A text about a region is the note of its span; without a span it is a comment, with its quote."""
        for region, value, place, words in self._notes:
            spans = [span for of, span in self._regions if of == region]
            spans = spans or [
                span
                for _, span in self._regions
                if span.completion == str(place)
                and (span.start, span.end) == (value.get("start"), value.get("end"))
            ]
            if spans:
                for span in spans:
                    at = self._spans.index(span)
                    noted = replace(span, note="\n".join(note for note in (span.note, words) if note))
                    self._spans[at] = noted
                    self._regions = [(of, noted if each == span else each) for of, each in self._regions]
            elif words:
                quote = value.get("text_quote") or self._quote(value, place)
                self._comments.append(f"“{quote}”: {words}" if quote else words)

    def _quote(self, value: Mapping[str, Any], place: int | None) -> str:
        start, end = value.get("start"), value.get("end")
        if place is None or not isinstance(start, int) or not isinstance(end, int):
            return ""
        return self._answers[place].text[max(start, 0) : end]


_KEPT_OF_RESULT = ("from_name", "to_name", "type", "value", "meta")
_META = {"judgment", "annotator"}
_READINGS = {
    "pairwise": "the preference",
    "ranker": "the ranking",
    "labels": "spans",
    "hypertextlabels": "spans",
    "rating": "a rating of the response",
    "choices": "the preference",
    "textarea": "the annotator's comment",
}


_VALUES = {**dict(_TYPES.values()), "rating": "rating"}
"""Type of a result that may answer an additional question → the name of its value."""


def _kept(result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: result[name] for name in _KEPT_OF_RESULT if name in result}


def _choice(value: Mapping[str, Any]) -> str:
    """The one choice of a result; empty where there are none or several."""
    chosen = value.get("choices")
    chosen = [chosen] if isinstance(chosen, str) else chosen
    return str(chosen[0]) if isinstance(chosen, list) and len(chosen) == 1 else ""


def _part_name(result: Mapping[str, Any]) -> str:
    return f"result.{result.get('from_name') or result.get('type')}"


def _shown(value: Any) -> str:
    """What a result says, for the account."""
    said = value.get("choices", value) if isinstance(value, dict) else value
    return ", ".join(map(str, said)) if isinstance(said, list) else str(said)


def _why(kind: str, value: Mapping[str, Any]) -> str:
    if "start" in value:
        return f"of the type {kind}, about a region"
    if kind == "choices":
        return "several choices, or choices about a single answer, are no preference"
    if kind == "rating":
        return "it rates none of the answers"
    return f"Rondo does not read results of the type {kind}"


def _ranking(
    result: Mapping[str, Any], value: Mapping[str, Any], names: Sequence[str], where: str
) -> tuple[int, ...]:
    ranks = (result.get("meta") or {}).get("ranks")
    if isinstance(ranks, list) and len(ranks) == len(names):
        # A list cannot say that two are tied; what Rondo wrote says so beside it. None: not ordered.
        known = [None if rank is None else fields.whole_number(rank, f"{where}.meta.ranks") for rank in ranks]
        places = iter(dense([rank for rank in known if rank is not None]))
        return tuple(NOT_ORDERED if rank is None else next(places) for rank in known)
    order = value.get("ranker")
    if isinstance(order, dict):
        filled = [ids for ids in order.values() if ids]
        if len(filled) != 1:
            raise FieldError(
                "ranking_unclear",
                _("There are several buckets, and Rondo cannot know their order."),
                field=f"{where}.value.ranker",
            )
        order = filled[0]
    ids = [str(answer_id) for answer_id in fields.items_of(order, f"{where}.value.ranker")]
    if not ids or len(set(ids)) < len(ids) or not set(ids) <= set(names):
        raise FieldError(
            "ranking_expected",
            _("Rank some of these, each once: %(names)s."),
            field=f"{where}.value.ranker",
            names=", ".join(names),
        )
    return tuple(ids.index(name) + 1 if name in ids else NOT_ORDERED for name in names)


def _marks(
    result: Mapping[str, Any], value: Mapping[str, Any], place: int, text: str, where: str
) -> Iterator[SpanPart]:
    quote = value.get("text")
    offsets = value
    if isinstance(value.get("globalOffsets"), dict) and not isinstance(value.get("start"), int):
        # A page's offsets are paths into its HTML; these count in its text.
        offsets = value["globalOffsets"]
        if not isinstance(quote, str):
            raise FieldError(
                "field_missing",
                _("The text of the span is missing. Offsets in a page are not safe without it."),
                field=f"{where}.value.text",
            )
    start, end = placed(
        text,
        fields.whole_number(offsets.get("start"), f"{where}.value.start"),
        fields.whole_number(offsets.get("end"), f"{where}.value.end"),
        quote if isinstance(quote, str) else None,
        f"{where}.value",
    )
    meta = result.get("meta") or {}
    severity = meta.get("severity")
    if severity is not None:
        severity = fields.whole_number(severity, f"{where}.meta.severity")
    for label in value.get("labels") or value.get("hypertextlabels") or []:
        yield span_at(
            place,
            text,
            key_of(str(label)),
            start,
            end,
            severity=severity,
            note="\n".join(meta.get("text") or []),
        )


def _rating(result: Mapping[str, Any], value: Mapping[str, Any], place: int, where: str) -> RatingPart:
    stars = fields.whole_number(value.get("rating"), f"{where}.value.rating")
    scale = (result.get("meta") or {}).get("scale") or (RatingScale.FIVE if stars <= 5 else RatingScale.SEVEN)
    return RatingPart(
        completion=str(place),
        criterion=key_of(str(result.get("from_name", "rating"))),
        scale=str(scale),
        value=stars,
    )


def _survey(row: Row) -> Iterator[RowPart]:
    """Account for every result and every field of the annotations."""
    data = row.get("data")
    if not isinstance(data, dict):
        return
    try:
        names, completions = _answers(data)
    except FieldError:
        # Its reading raises the same error, which then names the row.
        return
    for where, annotation in _annotations(row):
        if annotation.get("was_cancelled"):
            yield RowPart("annotations[].was_cancelled", True, "not_read", "a skipped task is no annotation")
            continue
        reading = _AnnotationReading(row, names, completions)
        with suppress(FieldError):
            reading.read(annotation, where)
        yield from reading.parts
        for name, value in annotation.items():
            if name in _READ_OF_ANNOTATION or value in (None, "", [], {}, False):
                continue
            if name == "ground_truth":
                yield RowPart(f"annotations[].{name}", value, "metadata", "")
            elif name in _BOOKKEEPING:
                yield RowPart(f"annotations[].{name}", value, "not_read", "bookkeeping of Label Studio")
            elif VERDICT_LIKE.search(words_of(name)):
                yield RowPart(f"annotations[].{name}", value, "question", "its name looks like a verdict")
            else:
                yield RowPart(f"annotations[].{name}", value, "metadata", "")


def _annotator(row: Row, annotation: Mapping[str, Any]) -> str:
    """Return the annotator: the one in the task's `meta` for an export of Rondo, else `completed_by`.

    Label Studio gives an imported annotation to whoever imports it, and keeps its old id in `import_id`.
    """
    meta = row.get("meta")
    written = meta.get("judgment") if isinstance(meta, dict) else None
    if written is not None and str(annotation.get("import_id") or annotation.get("id")) == str(written):
        return fields.optional_text(meta.get("annotator"), "meta.annotator") if meta else ""
    return _person(annotation.get("completed_by"))


def _person(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("pseudonym") or value.get("id") or value.get("email")
    return "" if value is None else str(value)


READERS = (
    Reader(
        name="label-studio",
        sentence="Label Studio's JSON export: pairs, rankings, marks, ratings.",
        read=_tasks,
        matches=lambda row: isinstance(row.get("data"), dict) and "annotations" in row,
        reads={
            "annotations": "the annotations",
            "meta": "who annotated, in an export of Rondo, and metadata",
            **PROMPT_READS,
            **{
                role: words for role, words in ANSWER_READS.items() if role.startswith(("answer_", "source_"))
            },
            "data.text": "the response",
            **{f"data.{name}": "the responses" for name in _LISTS},
        },
        ignores={
            "predictions": "a model's prediction is no annotation",
            "drafts": "a draft is no annotation",
            **dict.fromkeys(
                (
                    *("updated_at", "inner_id", "total_annotations", "total_predictions", "project"),
                    *("cancelled_annotations", "comment_count", "unresolved_comment_count", "updated_by"),
                    *("last_comment_updated_at", "comment_authors", "is_labeled", "overlap", "agreement"),
                ),
                "bookkeeping of Label Studio",
            ),
        },
        inner="data",
        survey=_survey,
        loses="predictions, drafts, skipped tasks; results of other types stay with the annotation",
    ),
)
WRITERS = (
    Writer(
        name="label-studio",
        sentence="Label Studio's JSON: a task with an annotation for each judgment.",
        container="json",
        rows=_task,
        carries_answers=True,
        carries="preferences, rankings with ties, spans, ratings, answers, comments",
        loses=(
            "missing information, corrections, critiques, demonstrations, strength, metadata, answers about "
            "steps"
        ),
    ),
)
