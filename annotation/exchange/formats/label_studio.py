"""Label Studio's JSON export: in (pairs, rankings, marks, ratings), and the same shape out.

From https://labelstud.io/guide/export, /tags/pairwise, /tags/ranker and /tags/labels: a task has `data` and
`annotations`; an annotation has `completed_by`, `was_cancelled` and `result`; a result has `type`,
`from_name`, `to_name` and `value`:

| type       | value                                                                 |
|------------|-----------------------------------------------------------------------|
| `pairwise` | `selected`: `left` or `right`                                         |
| `ranker`   | `ranker`: ids, the best first, or one list of them in an object        |
| `labels`   | `start`, `end`, `text`, `labels`                                      |
| `rating`   | `rating`                                                              |
| `choices`  | `choices`: a verdict without a winner (tie, both good, both bad, …)    |
| `textarea` | `text`: the comment                                                   |

The labelling configuration is not in the export, so which field of `data` holds which text is told from the
names: `prompt`, and `answer_1`, `answer_2`, … or what a mapping makes of other names. A browser counts UTF-16
units; where the quoted text says so, offsets are turned into code points.

**Out**, one task with one annotation for each judgment. Label Studio 1.23 takes an annotation that names
nobody for one of the person who imports it. It refuses `completed_by` without `email`, and an email that none
of its members has, so pseudonyms go out in the task's `meta`, which it stores and exports again. Its pages
count code points, as Rondo does.

A ranking with ties is a `ranker` in some order that agrees with it, and `meta.ranks` says which are tied.
What has no type there goes out as dropped: missing info, corrections, critiques, a demonstration, strength.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
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
    placed,
    verdict_of,
)
from annotation.exchange.formats.writers import Dropped, Record, Scene, Writer, Written


def _tasks(row: Row) -> Iterator[ImportedItem]:
    data = fields.object_of(fields.required(row, "data"), "data")
    names, completions = _answers(data)
    judgments = []
    for number, value in enumerate(fields.items_of(row.get("annotations"), "annotations")):
        annotation = fields.object_of(value, f"annotations[{number}]")
        if annotation.get("was_cancelled"):
            continue
        judgments.append(
            replace(
                _judgment(annotation, names, completions, f"annotations[{number}].result"),
                annotator=_annotator(row, annotation),
            )
        )
    yield ImportedItem(
        messages=messages_of(data),
        completions=tuple(completions),
        judgments=tuple(judgments),
    )


def _answers(data: Mapping[str, Any]) -> tuple[list[str], list[ImportedCompletion]]:
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
                )
                for entry in value
            ]
    answers = answers_of(data) or [(name, data[name]) for name in ("text1", "text2") if name in data]
    if not answers and isinstance(data.get("text"), str):
        answers = [("text", data["text"])]
    if not answers:
        raise FieldError(
            "data", f"has no answers; map some of {', '.join(sorted(data))} to answer_1, answer_2, …"
        )
    return [name for name, _ in answers], [
        ImportedCompletion(
            text=fields.text(text, f"data.{name}"),
            source=fields.optional_text(data.get(f"source_{number}"), f"data.source_{number}"),
        )
        for number, (name, text) in enumerate(answers, start=1)
    ]


def _judgment(
    annotation: Mapping[str, Any], names: Sequence[str], answers: Sequence[ImportedCompletion], where: str
) -> ImportedJudgment:
    verdict, ranks = Verdict.NOT_ASKED, tuple[int, ...]()
    comment = ""
    spans: list[ImportedSpan] = []
    ratings: list[ImportedRating] = []
    for number, entry in enumerate(fields.items_of(annotation.get("result"), where)):
        at = f"{where}[{number}]"
        result = fields.object_of(entry, at)
        value = fields.object_of(result.get("value"), f"{at}.value")
        kind = result.get("type")
        if kind == "pairwise":
            ranks = _pair(value, len(answers), at)
            verdict = Verdict.RANKED
        elif kind == "ranker":
            ranks = _ranking(result, value, names, at)
            # More than two that are all tied are a ranking still; two are called equal.
            verdict = verdict_of(ranks) if len(names) == 2 else Verdict.RANKED
        elif kind in ("labels", "hypertextlabels"):
            spans += _marks(result, value, names, answers, at)
        elif kind == "rating":
            ratings.append(_rating(result, value, names, at))
        elif kind == "choices" and (without := no_winner((value.get("choices") or [""])[0])):
            verdict = without
            ranks = () if without == Verdict.CANNOT_JUDGE else (1,) * len(answers)
        elif kind == "textarea":
            comment = "\n".join(map(str, fields.items_of(value.get("text"), f"{at}.value.text")))
    seconds = annotation.get("lead_time")
    return ImportedJudgment(
        verdict=verdict,
        ranks=ranks,
        spans=tuple(spans),
        ratings=tuple(ratings),
        comment=fields.text(comment, where, empty=True),
        active_seconds=int(seconds) if isinstance(seconds, (int, float)) and seconds >= 0 else None,
    )


def _pair(value: Mapping[str, Any], answers: int, where: str) -> tuple[int, ...]:
    if answers != 2:
        raise FieldError(where, f"is a pair, and the task has {answers} answers")
    if value.get("selected") not in ("left", "right"):
        raise FieldError(f"{where}.value.selected", f"{value.get('selected')!r} is neither left nor right")
    return (1, 2) if value["selected"] == "left" else (2, 1)


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
            raise FieldError(f"{where}.value.ranker", "has several buckets, whose order Rondo cannot know")
        order = filled[0]
    ids = [str(answer_id) for answer_id in fields.items_of(order, f"{where}.value.ranker")]
    if not ids or len(set(ids)) < len(ids) or not set(ids) <= set(names):
        raise FieldError(f"{where}.value.ranker", f"does not name some of {', '.join(names)}, each once")
    return tuple(ids.index(name) + 1 if name in ids else NOT_ORDERED for name in names)


def _place(result: Mapping[str, Any], names: Sequence[str], where: str) -> int:
    name = str(result.get("to_name", ""))
    if name in names:
        return names.index(name)
    if len(names) == 1:
        return 0
    raise FieldError(f"{where}.to_name", f"{name!r} is none of the answers {', '.join(names)}")


def _marks(
    result: Mapping[str, Any],
    value: Mapping[str, Any],
    names: Sequence[str],
    answers: Sequence[ImportedCompletion],
    where: str,
) -> Iterator[ImportedSpan]:
    number = _place(result, names, where)
    quote = value.get("text")
    start, end = placed(
        answers[number].text,
        fields.whole_number(value.get("start"), f"{where}.value.start"),
        fields.whole_number(value.get("end"), f"{where}.value.end"),
        quote if isinstance(quote, str) else None,
        f"{where}.value",
    )
    meta = result.get("meta") or {}
    for label in value.get("labels") or value.get("hypertextlabels") or []:
        yield ImportedSpan(
            completion=number,
            category=key_of(str(label)),
            start=start,
            end=end,
            severity=meta.get("severity"),
            note="\n".join(meta.get("text") or []),
        )


def _rating(
    result: Mapping[str, Any], value: Mapping[str, Any], names: Sequence[str], where: str
) -> ImportedRating:
    stars = fields.whole_number(value.get("rating"), f"{where}.value.rating")
    scale = (result.get("meta") or {}).get("scale") or (RatingScale.FIVE if stars <= 5 else RatingScale.SEVEN)
    return ImportedRating(
        completion=_place(result, names, where),
        criterion=key_of(str(result.get("from_name", "rating"))),
        scale=str(scale),
        value=stars,
    )


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
    for span in record["spans"]:
        meta = {"severity": span["severity"]} if span["severity"] is not None else {}
        yield {
            "from_name": "marks",
            "to_name": names[span["completion"]],
            "type": "labels",
            "value": {
                "start": span["start"],
                "end": span["end"],
                "text": span["quote"],
                "labels": [span["category"]],
            },
            "meta": meta | ({"text": [span["note"]]} if span["note"] else {}),
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


def _comment(record: Record) -> Iterator[dict[str, Any]]:
    if record["comment"]:
        yield {
            "from_name": "comment",
            "to_name": "prompt",
            "type": "textarea",
            "value": {"text": [record["comment"]]},
        }


READERS = (
    Reader(
        name="label-studio",
        sentence="Label Studio's JSON export: pairs, rankings, marks, ratings.",
        read=_tasks,
        matches=lambda row: isinstance(row.get("data"), dict) and "annotations" in row,
    ),
)
WRITERS = (
    Writer(
        name="label-studio",
        sentence="Label Studio's JSON: a task with an annotation for each judgment.",
        container="json",
        rows=_task,
    ),
)
