"""Judgments as JSON Lines, Rondo's own format: one current judgment a line, out and in again.

The fields that a snapshot has too are spelled as there (`training.contract`); ids are texts.

- `judgment`, `comparison`, `prompt`: ids; `round`: number of the round; `split`: `train` or `held-out`
- `annotator`: a pseudonym, the same for the same person everywhere; `machine`: whether it is a program
- `messages`, `context`, `references`, `tags`: what was asked, as imported
- `completions`: `id`, `text`, `source`, `sampling`, `seed`, `finish_reason`
- `display_order`: completion ids as this annotator saw them, first to last
- `verdict`: `ranked`, `equal`, `both_good`, `both_bad`, `cannot_judge`, or `not_asked` where the project
  does not ask which answer is better
- `ranks`: completion id → rank, 1 best, equal numbers tied
- `strength`: 1 to 4 for a pair with a winner, or null
- `spans`: `completion`, `category`, `start`, `end` (code points, half open), `quote`, `severity`
  (1, the mildest, to the category's steps, or null), `note`
- `missing`: `completion`, `category`, `text`, `insert_at` (the code point before which it belongs, or
  null), `evidence` (a list of `passage` and `sentence`, both from 0
  and null for the title, and the `quote` that stands there)
- `corrections`: `completion`, `text`, which is empty when nothing of the answer should stand; `edits`, which
  in order make that text of the completion's: `start`, `end` (code points, half open), `quote`,
  `replacement`; `preference`: the `chosen` text over the `rejected` completion
- `ratings`: `completion`, `criterion`, `scale` (`five`, `seven` or `thumbs`: 0 down, 1 up), `value`
- `critiques`: `completion`, `text`
- `demonstration`: the answer as this annotator would have written it, or null
- `comment`, `active_seconds`, `guideline_version`, `created_at` (ISO 8601, UTC)
- `blind`: false where the annotator knew which model wrote which answer; training leaves such a judgment out
- `imported_from`: where an imported judgment came from, or null

Read back, everything returns but what belongs to the other database: ids, the round, and the version of the
guidelines, which stay with the judgment under `more`. The annotator keeps the pseudonym.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from annotation.exchange.formats import fields
from annotation.exchange.formats.fields import FieldError
from annotation.exchange.formats.items import (
    ImportedCompletion,
    ImportedItem,
    ImportedJudgment,
    ImportedMissing,
    ImportedRating,
    ImportedSpan,
    Reader,
    Row,
    key_of,
    placed,
)
from annotation.exchange.formats.writers import Record, Scene, Writer, Written


def _line(row: Row) -> Iterator[ImportedItem]:
    completions = [
        (f"completions[{number}]", fields.object_of(value, f"completions[{number}]"))
        for number, value in enumerate(fields.items_of(fields.required(row, "completions"), "completions"))
    ]
    places = {str(one.get("id")): number for number, (_, one) in enumerate(completions)}
    if len(places) != len(completions):
        raise FieldError("completions", "two of them have the same id")
    yield ImportedItem(
        messages=fields.prompt(fields.required(row, "messages"), "messages"),
        context=[_passage(value) for value in fields.items_of(row.get("context"), "context")],
        references=[
            fields.text(v, "references") for v in fields.items_of(row.get("references"), "references")
        ],
        tags=[fields.text(value, "tags") for value in fields.items_of(row.get("tags"), "tags")],
        completions=tuple(_completion(where, one) for where, one in completions),
        judgments=(_judgment(row, places, [str(one.get("text")) for _, one in completions]),),
    )


def _passage(value: Any) -> dict[str, Any]:
    passage = fields.object_of(value, "context")
    return {
        "title": fields.optional_text(passage.get("title"), "context.title"),
        "sentences": [
            fields.text(sentence, "context.sentences", empty=True)
            for sentence in fields.items_of(passage.get("sentences"), "context.sentences")
        ],
    }


def _completion(where: str, one: Mapping[str, Any]) -> ImportedCompletion:
    finish = one.get("finish_reason") or ""
    if finish not in ("", "stop", "length"):
        raise FieldError(f"{where}.finish_reason", f"{finish!r} is neither stop nor length")
    seed = one.get("seed")
    return ImportedCompletion(
        text=fields.text(one.get("text"), f"{where}.text"),
        source=fields.optional_text(one.get("source"), f"{where}.source"),
        sampling=fields.object_of(one.get("sampling") or {}, f"{where}.sampling"),
        seed=None if seed is None else fields.whole_number(seed, f"{where}.seed"),
        finish_reason=finish,
    )


def _judgment(row: Row, places: Mapping[str, int], texts: list[str]) -> ImportedJudgment:
    def place(value: Any, where: str) -> int:
        if str(value) not in places:
            raise FieldError(where, f"names the completion {value!r}, which the line does not have")
        return places[str(value)]

    def parts(name: str) -> Iterator[Mapping[str, Any]]:
        return (fields.object_of(value, name) for value in fields.items_of(row.get(name), name))

    ranks = fields.object_of(row.get("ranks") or {}, "ranks")
    by_place = {place(pk, "ranks"): fields.whole_number(rank, "ranks") for pk, rank in ranks.items()}
    strength = row.get("strength")
    return ImportedJudgment(
        verdict=str(fields.required(row, "verdict")),
        ranks=tuple(by_place[number] for number in sorted(by_place)),
        annotator=fields.optional_text(row.get("annotator"), "annotator"),
        is_machine=row.get("machine") is True,
        strength=None if strength is None else fields.whole_number(strength, "strength"),
        comment=fields.optional_text(row.get("comment"), "comment"),
        spans=tuple(_span(one, place(one.get("completion"), "spans"), texts) for one in parts("spans")),
        missing=tuple(_missing(one, place(one.get("completion"), "missing")) for one in parts("missing")),
        corrections=tuple(
            (
                place(one.get("completion"), "corrections"),
                fields.text(one.get("text"), "corrections", empty=True),
            )
            for one in parts("corrections")
        ),
        ratings=tuple(_rating(one, place(one.get("completion"), "ratings")) for one in parts("ratings")),
        critiques=tuple(
            (place(one.get("completion"), "critiques"), fields.text(one.get("text"), "critiques"))
            for one in parts("critiques")
        ),
        demonstration=fields.optional_text(row.get("demonstration"), "demonstration"),
        active_seconds=row.get("active_seconds"),
        created_at=fields.optional_text(row.get("created_at"), "created_at"),
        display_order=tuple(
            place(pk, "display_order") for pk in fields.items_of(row.get("display_order"), "display_order")
        ),
        more={
            name: row[name]
            for name in ("judgment", "comparison", "round", "guideline_version", "blind", "imported_from")
            if row.get(name) is not None
        },
    )


def _span(one: Mapping[str, Any], completion: int, texts: list[str]) -> ImportedSpan:
    severity = one.get("severity")
    start, end = placed(
        texts[completion],
        fields.whole_number(one.get("start"), "spans.start"),
        fields.whole_number(one.get("end"), "spans.end"),
        fields.text(one.get("quote"), "spans.quote", empty=True),
        "spans.quote",
    )
    return ImportedSpan(
        completion=completion,
        category=key_of(fields.text(one.get("category"), "spans.category")),
        start=start,
        end=end,
        severity=None if severity is None else fields.whole_number(severity, "spans.severity"),
        note=fields.optional_text(one.get("note"), "spans.note"),
    )


def _missing(one: Mapping[str, Any], completion: int) -> ImportedMissing:
    place = one.get("insert_at")
    evidence = [fields.object_of(value, "missing.evidence") for value in one.get("evidence") or []]
    return ImportedMissing(
        completion=completion,
        category=key_of(fields.text(one.get("category"), "missing.category")),
        text=fields.optional_text(one.get("text"), "missing.text"),
        insert_at=None if place is None else fields.whole_number(place, "missing.insert_at"),
        evidence=tuple(
            (fields.whole_number(pointer.get("passage"), "missing.evidence"), pointer.get("sentence"))
            for pointer in evidence
        ),
    )


def _rating(one: Mapping[str, Any], completion: int) -> ImportedRating:
    scale = one.get("scale")
    if scale not in ("five", "seven", "thumbs"):
        raise FieldError("ratings.scale", f"{scale!r} is not known; known are five, seven, thumbs")
    return ImportedRating(
        completion=completion,
        criterion=key_of(fields.text(one.get("criterion"), "ratings.criterion")),
        scale=scale,
        value=fields.whole_number(one.get("value"), "ratings.value"),
    )


def _whole(record: Record, scene: Scene) -> Written:
    yield dict(record)


READERS = (
    Reader(
        name="jsonl",
        sentence="Rondo's own JSON Lines, whole: marks, missing info, corrections, ratings.",
        read=_line,
        matches=lambda row: {"messages", "completions", "verdict", "display_order"} <= row.keys(),
    ),
)
WRITERS = (
    Writer(
        name="jsonl",
        sentence="Rondo's own JSON Lines: everything, one judgment a line.",
        container="jsonl",
        rows=_whole,
        carries_context=True,
    ),
)
