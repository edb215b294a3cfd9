"""Rows of a file, read as an import reads them, without a database."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from annotation.exchange.file_imports import items_of
from annotation.exchange.formats.columns import profile_of, renamed
from annotation.exchange.formats.fields import FieldError
from annotation.exchange.formats.items import ImportedItem, ImportedJudgment
from annotation.exchange.formats.plans import Parts, Plan, resolved
from annotation.exchange.formats.registry import plan_for

Rows = list[dict[str, Any]]
SAMPLES: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("samples.json").read_text("utf-8"))
"""Pairs of training files, a row for each reader, rows of public sets, and rows of files with their keys."""


def plan_rows(rows: Rows, *, mapping: Mapping[str, Any] | None = None, **choices: Any) -> Plan:
    """Return the plan for a file of these rows, with what its format surveys."""
    profile = profile_of(rows)
    reader = plan_for(profile, mapping=mapping, meanings=choices.get("meanings")).reader
    if reader.survey is None:
        return plan_for(profile, mapping=mapping, **choices)
    parts = Parts()
    columns = resolved(mapping or {}, [], profile)
    for row in rows:
        for part in reader.survey(renamed(row, columns)):
            parts.add(part)
    return plan_for(profile, name=reader.name, mapping=mapping, parts=parts, **choices)


def read_file(rows: Rows, format_name: str, **choices: Any) -> list[ImportedItem]:
    """The checked items of a file of these rows, which must be taken for that format unasked."""
    plan = plan_rows(rows, **choices)
    assert plan.reader.name == format_name
    assert [(column.name, column.reading) for column in plan.questions] == []
    return list(read_by(rows, plan))


def read_by(rows: Rows, plan: Plan) -> Iterator[ImportedItem]:
    """The checked items of rows, by a plan. Raises `FieldError` for the first bad row."""

    def refuse(number: int, error: FieldError) -> None:
        raise error

    for _, item in items_of(iter(enumerate(rows, start=1)), plan, refuse):
        yield item


def ranks_of(judgment: ImportedJudgment) -> tuple[int, ...]:
    """The ranks of a judgment that orders all answers, by their places; () without ranks."""
    assert list(judgment.ranks) == [str(place) for place in range(len(judgment.ranks))]
    return tuple(judgment.ranks.values())


def account_of(rows: Rows, **choices: Any) -> dict[str, str]:
    """Column or part → its account as a line, without its name."""
    plan = plan_rows(rows, **choices)
    return {column.name: column.line.removeprefix(f"{column.name}: ") for column in plan.account}
