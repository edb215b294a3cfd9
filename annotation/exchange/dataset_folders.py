"""A project's judgments as a folder that `datasets.load_dataset` reads, with a data card."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from annotation.choices import Split
from annotation.exchange.file_exports import Export, ExportFilters, dropped_line
from annotation.exchange.formats.registry import WRITERS
from annotation.exchange.formats.writers import Dropped, Record
from annotation.exchange.records import as_line
from annotation.models import Project

_SPLITS = {Split.TRAIN: "train", Split.HELD_OUT: "test"}
"""Our names of the two sides, and those of the hub."""
_CONFIGURATIONS = {"preference": "trl-preference", "judgments": "jsonl"}
"""Name of a configuration → its format."""
_ALL = ExportFilters()


def write_dataset_folder(*, project: Project, folder: Path, filters: ExportFilters = _ALL) -> list[Export]:
    """Write two configurations, each with the splits `train` and `test`, and what was left out.

    `preference` is TRL's pairs, `judgments` is everything, both as JSON Lines: `datasets` reads one sort of
    file from a folder. `README.md` is the card, with counts, filters and what was dropped; `dropped.jsonl`
    lists that, a line each.
    """
    exports = []
    with (folder / "dropped.jsonl").open("w", encoding="utf-8") as dropped:

        def note(record: Record, what: Dropped) -> None:
            dropped.write(dropped_line(record, what))

        for split, name in _SPLITS.items():
            exports += [
                _written(
                    project, writer, replace(filters, split=split), note, _lines(folder, configuration, name)
                )
                for configuration, writer in _CONFIGURATIONS.items()
            ]
    card = _card(project, exports)
    (folder / "README.md").write_text(card, encoding="utf-8")
    return exports


def _written(
    project: Project,
    format_name: str,
    filters: ExportFilters,
    note: Callable[[Record, Dropped], None],
    write: Callable[[Export], None],
) -> Export:
    export = Export(
        project=project,
        writer=WRITERS[format_name],
        filters=filters,
        on_drop=note,
    )
    write(export)
    return export


def _lines(folder: Path, configuration: str, name: str) -> Callable[[Export], None]:
    path = folder / configuration / f"{name}.jsonl"
    path.parent.mkdir(exist_ok=True)

    def write(export: Export) -> None:
        with path.open("w", encoding="utf-8", newline="\n") as stream:
            for row in export.row_stream():
                stream.write(as_line(_of_one_type(row)))
        if not export.rows:
            # `datasets` refuses a file without rows; the card does not name it then.
            path.unlink()

    return write


def _of_one_type(row: dict[str, Any]) -> dict[str, Any]:
    """Which completions there are differs from row to row, and a column has one type: so a list."""
    if "ranks" not in row:
        return row
    return row | {"ranks": [{"completion": pk, "rank": rank} for pk, rank in row["ranks"].items()]}


def _card(project: Project, exports: Sequence[Export]) -> str:
    rows = "\n".join(
        f"| {_configuration(e)} | {_side(e)} | {e.judgments} | {e.rows} | {_dropped(e)} |" for e in exports
    )
    files = "\n".join(
        f"- config_name: {name}\n  data_files:\n"
        + "\n".join(
            f"  - split: {_side(e)}\n    path: {name}/{_side(e)}.jsonl"
            for e in exports
            if e.writer.name == writer and e.rows
        )
        for name, writer in _CONFIGURATIONS.items()
        if any(e.rows for e in exports if e.writer.name == writer)
    )
    filters = exports[0].manifest()["filters"]
    return f"""---
configs:
{files}
tags:
- preference
- human-feedback
- rondo
---

# {project.name}

{project.description or "Judgments of model outputs, made with Rondo."}

## What is in it

`preference` holds one row for each decided pair, in TRL's conversational format. `judgments` holds
every judgment whole: ranks with ties, verdicts without a winner, marks, missing information, corrections,
ratings. A prompt is on one side of the split for good: `test` is what no training of Rondo's has seen.

| configuration | split | judgments | rows | not carried |
|---|---|---|---|---|
{rows}

`dropped.jsonl` names every one of them with its reason.

## Filters

- rounds: {filters["rounds"]}
- judged by programs too: {"yes" if filters["programs that judge"] else "no"}
{_narrower(filters)}- {filters["judgments"]}

People appear under pseudonyms. Texts are as models and people wrote them.
"""


def _side(export: Export) -> str:
    return _SPLITS[Split(export.filters.split)]


def _narrower(filters: dict[str, Any]) -> str:
    """The filters that restrict further, a line each."""
    names = ("annotator", "since", "until", "tag", "category")
    return "".join(f"- {name}: {filters[name]}\n" for name in names if name in filters)


def _configuration(export: Export) -> str:
    return "judgments" if export.writer.name == "jsonl" else "preference"


def _dropped(export: Export) -> str:
    return "; ".join(f"{reason}: {count}" for reason, count in sorted(export.dropped.items())) or "nothing"
