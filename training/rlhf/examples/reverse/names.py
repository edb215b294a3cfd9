"""The names, and a snapshot of them: demonstrations to imitate, prompts with the right answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from training.contract import (
    ContractError,
    Message,
    SnapshotCompletion,
    SnapshotHeader,
    SnapshotPrompt,
    SnapshotRow,
    Split,
    write_snapshot,
)


@dataclass(frozen=True, slots=True)
class Names:
    """Names to learn from, and names to be asked about that are not among them."""

    train: tuple[str, ...]
    """As they stand in the file: a frequent name stands there more than once."""
    dev: tuple[str, ...]
    """Each once, in the file's order."""
    known: int
    """Different names of the file's dev split that are left out because they stand in train too."""


def read_names(path: Path) -> Names:
    """Both splits, without the names of dev that stand in train. Raises `ContractError` without the file."""
    if not path.is_file():
        raise ContractError(
            f"{path}: the names are not here; name the file with --data. They come with the "
            "string-reversal example of CMU 11-711 (github: cmu-l3/anlp-spring2026-code)"
        )
    stored = json.loads(path.read_text(encoding="utf-8"))
    train, dev = tuple(stored["train"]), tuple(dict.fromkeys(stored["dev"]))
    there = set(train)
    unknown = tuple(name for name in dev if name not in there)
    return Names(train, unknown, known=len(dev) - len(unknown))


def freeze_names(folder: Path, names: Names, *, wording: str, held_out: int) -> SnapshotHeader:
    """Write the snapshot that both runs learn from.

    wording: the question, with `{name}` in it. held_out: number of names of dev, the first ones, that
    the runs are evaluated on while they train.
    """
    some: list[tuple[Split, Sequence[str]]] = [("train", names.train), ("held-out", names.dev[:held_out])]
    return write_snapshot(
        folder,
        (row for split, chosen in some for row in _rows(split, chosen, wording)),
        project="string reversal",
        rounds=(1,),
        prompts=(prompt for split, chosen in some for prompt in _prompts(split, chosen, wording)),
    )


def question(name: str, wording: str) -> tuple[Message, ...]:
    """Return the chat that asks for a name's reversal."""
    return (Message(role="user", content=wording.format(name=name)),)


def _rows(split: Split, names: Sequence[str], wording: str) -> Iterator[SnapshotRow]:
    for index, name in enumerate(names):
        yield SnapshotRow(
            judgment=f"{split}-{index}",
            comparison=f"{split}-{index}",
            annotator="names",
            round=1,
            prompt=f"{split}-{name}",
            split=split,
            messages=question(name, wording),
            completions=(SnapshotCompletion(id=f"{split}-{index}.0", text=name[::-1], source="names"),),
            verdict="not_asked",
            ranks={},
            demonstration=name[::-1],
        )


def _prompts(split: Split, names: Sequence[str], wording: str) -> Iterator[SnapshotPrompt]:
    for index, name in enumerate(names):
        yield SnapshotPrompt(
            id=f"{split}-{index}", split=split, messages=question(name, wording), reference=name[::-1]
        )
