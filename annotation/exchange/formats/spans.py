"""Marks that go out: as offsets, and as a BIO label for each token (Ramshaw & Marcus 1995).

Tokens are those of a tokenizer where one is given, else words and signs. Where two marks share a token, one
sequence of labels cannot say so: the second goes into another row, of the next `layer`.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.exchange.formats.writers import Dropped, Record, Scene, Tokens, Writer, Written

_WORD = re.compile(r"\w+|[^\w\s]")
_MARK = ("category", "start", "end", "quote", "severity", "note")
_MORE = ("parent", "liked")
"""Only of spans that have them: the category above theirs, and whether they are a merit."""


def words(text: str) -> list[tuple[int, int]]:
    """Return the positions of the words and signs of a text."""
    return [match.span() for match in _WORD.finditer(text)]


def tokens_of(folder: Path) -> Tokens:
    """The tokens of a model folder's `tokenizer.json`, without the special ones."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # The library raises nothing narrower.
        raise Refusal(
            "tokenizer_not_readable",
            _("%(folder)s has no tokenizer.json that can be read: %(error)s"),
            field="tokenizer",
            folder=folder,
            error=error,
        ) from None

    def tokens(text: str) -> Sequence[tuple[int, int]]:
        offsets: Sequence[tuple[int, int]] = tokenizer.encode(text, add_special_tokens=False).offsets
        return offsets

    return tokens


def _marked(record: Record) -> Written:
    """Each completion with its marks, under `marks`; those that have none as dropped."""
    for completion in record["completions"]:
        marks = [span for span in record["spans"] if span["completion"] == completion["id"]]
        if not marks:
            yield Dropped("nothing is marked, or it was not read for marks", completion["id"])
            continue
        yield {
            "judgment": record["judgment"],
            "annotator": record["annotator"],
            "prompt": record["messages"],
            "completion": completion["id"],
            "source": completion["source"],
            "text": completion["text"],
            "marks": marks,
        }


def _offsets(record: Record, scene: Scene) -> Written:
    for row in _marked(record):
        if isinstance(row, Dropped):
            yield row
        else:
            marks = row.pop("marks")
            yield {
                **row,
                "spans": [{name: mark[name] for name in (*_MARK, *_MORE) if name in mark} for mark in marks],
            }


def _bio(record: Record, scene: Scene) -> Written:
    tokens = scene.tokens or words
    for row in _marked(record):
        if isinstance(row, Dropped):
            yield row
            continue
        marks, text = row.pop("marks"), row.pop("text")
        places = list(tokens(text))
        layers: list[list[str]] = []
        for mark in sorted(marks, key=lambda m: (m["start"], m["end"], m["category"])):
            if not _laid(mark, places, layers):
                yield Dropped(f"{mark['start']}–{mark['end']} holds no token", row["completion"])
        for number, labels in enumerate(layers, start=1):
            yield {
                **row,
                "layer": number,
                "tokens": [text[start:end] for start, end in places],
                "offsets": [list(place) for place in places],
                "labels": labels,
            }


def _laid(mark: Mapping[str, Any], places: Sequence[tuple[int, int]], layers: list[list[str]]) -> bool:
    """Write a mark's labels into the first layer that has room; False where no token lies in it."""
    inside = [n for n, (start, end) in enumerate(places) if start < mark["end"] and mark["start"] < end]
    if not inside:
        return False
    for labels in layers:
        if all(labels[number] == "O" for number in inside):
            break
    else:
        labels = ["O"] * len(places)
        layers.append(labels)
    for number in inside:
        labels[number] = f"{'B' if number == inside[0] else 'I'}-{mark['category']}"
    return True


WRITERS = (
    Writer(
        name="spans",
        sentence="Marks as offsets in code points, one marked answer a line.",
        container="jsonl",
        rows=_offsets,
        carries="spans",
        loses="everything else; it goes out alone",
    ),
    Writer(
        name="bio",
        sentence="Marks as BIO labels of tokens: of a tokenizer's with --tokenizer, else of words.",
        container="jsonl",
        rows=_bio,
        carries="spans, as labels of tokens",
        loses="everything else; it goes out alone",
    ),
)
