"""Judgments as tasks of Label Studio, in the shape of its JSON export: out.

One task with one annotation for each judgment. Label Studio 1.23 takes an annotation that names
nobody for one of the person who imports it. It refuses `completed_by` without `email`, and an email that none
of its members has, so pseudonyms go out in the task's `meta`, which it stores and exports again. Its pages
count code points, as Rondo does.

A ranking with ties is a `ranker` in some order that agrees with it, and `meta.ranks` says which are tied.
What has no type there goes out as dropped: missing info, corrections, critiques, a demonstration, strength.
"""

from collections.abc import Iterator
from typing import Any

from annotation.choices import Verdict
from annotation.exchange.formats.writers import Dropped, Record, Scene, Writer, Written


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


WRITERS = (
    Writer(
        name="label-studio",
        sentence="Label Studio's JSON: a task with an annotation for each judgment.",
        container="json",
        rows=_task,
        carries="preferences, rankings with ties, spans, ratings, comments",
        loses="missing information, corrections, critiques, demonstrations, strength, metadata",
    ),
)
