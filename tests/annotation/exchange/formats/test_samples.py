"""Every reader on a sample of its files: columns, the text that wins, what comes back, and stable keys."""

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from annotation.choices import Verdict
from annotation.exchange.file_imports import import_file
from annotation.exchange.formats.registry import READERS, WRITERS
from annotation.exchange.item_imports import ImportScene, ItemImport, Occurrences, QuestionsInProject
from annotation.models import Judgment, Project
from tests.annotation.exchange.formats.reading import SAMPLES, plan_rows, read_by
from tests.annotation.exchange.formats.test_round_trip import export_to, spelled

ROWS = SAMPLES["readers"]
SETS = SAMPLES["sets"]
FILES = {**SAMPLES["files"], **SETS}
BEST = {name: sample["best"] for name, sample in SETS.items() if "best" in sample}


# ── declared columns ──────────────────────────────────────────────────────────────────


class Recorder(dict[str, Any]):
    """A row that remembers which of its columns are asked for."""

    def __init__(self, values: dict[str, Any], asked: set[str]) -> None:
        super().__init__(values)
        self.asked = asked

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)


def test_there_is_a_sample_of_every_reader():
    assert ROWS.keys() == READERS.keys()


def test_every_format_says_what_it_carries_and_every_export_of_a_tool_what_is_lost():
    assert [name for name, writer in WRITERS.items() if not writer.carries or not writer.loses] == []
    tools_of_others = {"label-studio", "argilla", "potato", "open-webui", "langfuse", "langsmith", "phoenix"}
    assert [name for name in sorted(tools_of_others | {"promptfoo"}) if not READERS[name].loses] == []


@pytest.mark.parametrize("name", sorted(ROWS))
def test_a_reader_reads_no_column_that_it_does_not_declare(name: str):
    reader = READERS[name]
    plan = plan_rows([ROWS[name]])
    assert plan.reader.name == name
    values, _metadata = plan.prepare(ROWS[name])
    asked: set[str] = set()
    rows = iter([(1, Recorder(dict(values), asked))])
    for _, row in reader.group(rows) if reader.group else rows:
        list(reader.read(row))
    hidden = {column for column in asked if column.startswith("\x00")}
    unsaid = {
        column
        for column in asked - hidden
        if not reader.reading_of(column) and not reader.ignoring(column) and column != reader.inner
    }
    # `rows` and `spans` are put together from several rows of a file.
    assert unsaid - {"rows", "spans", "apart"} == set()


@pytest.mark.parametrize("name", sorted(ROWS))
def test_nothing_of_a_file_as_its_tool_writes_it_must_be_asked_about(name: str):
    plan = plan_rows([ROWS[name]])
    assert [column.line for column in plan.questions] == []
    names = {column.name for column in plan.account}
    assert {column for column in ROWS[name] if column != plan.reader.inner} <= names


def test_what_is_kept_as_metadata_is_kept_also_where_rows_are_read_together():
    for name, column in (("openassistant", "tree_state"), ("csv", "owner"), ("otel_traces", "owner")):
        row = {**ROWS[name], column: "kim"}
        plan = plan_rows([row])
        assert column in plan.metadata
        (item,) = read_by([row], plan)
        assert item.metadata[column] == "kim", name


# ── public sets ───────────────────────────────────────────────────────────────────────


FORMATS = ("csv", "label-studio", "chatbot-arena", "trl-preference", "trl-unpaired", "llama-factory")


def imported(name: str, folder: Path) -> Project:
    sample = SETS[name]
    project = Project.objects.create(name=name, slug=f"set-{uuid.uuid4().hex[:12]}")
    path = folder / "set.json"
    path.write_text(json.dumps(sample["rows"]))
    import_file(project=project, path=path, leave_out=sample.get("leave_out", []))
    return project


@pytest.mark.django_db
@pytest.mark.parametrize("name", BEST)
def test_the_right_text_wins(name: str, tmp_path: Path):
    project = imported(name, tmp_path)
    judgments = Judgment.objects.filter(comparison__project=project).prefetch_related("ranks__completion")
    winners = []
    for judgment in judgments:
        best = [each.completion.text for each in judgment.ranks.all() if each.rank == 1]
        winners.append(best[0] if judgment.verdict == Verdict.RANKED else "")
    assert sorted(winners) == sorted(BEST[name])


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("name", "format_name"),
    [
        (name, format_name)
        for index, name in enumerate(SETS)
        # The others take turns: test_round_trip.py tries all judgments on each.
        for format_name in ("jsonl", FORMATS[index % len(FORMATS)])
    ],
)
def test_a_public_set_goes_out_and_comes_in_equal(name: str, format_name: str, tmp_path: Path):
    path = tmp_path / f"out.{WRITERS[format_name].container}"
    first = export_to(imported(name, tmp_path), format_name, path)
    if not first:
        # UltraFeedback's judge is a program, which goes out only where that is asked for.
        assert name == "UltraFeedback" or format_name not in ("jsonl", "csv", "label-studio")
        return
    second = Project.objects.create(name="Again", slug=f"again-{uuid.uuid4().hex[:12]}")
    record = import_file(project=second, path=path)
    assert record.errors == []
    again = export_to(second, format_name, tmp_path / f"again.{WRITERS[format_name].container}")
    shown = [
        # The annotator of the other database keeps a pseudonym there; who had none gets another here.
        spelled([{**row, "annotator": "", "judge": "", "meta": ""} for row in rows], format_name)
        for rows in (first, again)
    ]
    assert shown[0] == shown[1]


# ── keys of judgments, by which a file that comes in twice is known ───────────────────


def keys_of(rows: Sequence[dict[str, Any]], **choices: Any) -> list[str]:
    """The keys of the judgments of a file in project 7."""
    scene = ImportScene(project=Project(pk=7), categories={}, criteria={}, questions=QuestionsInProject([]))
    with Occurrences() as occurrences:
        new = ItemImport(scene=scene, format_name="any", occurrences=occurrences, file_import=1)
        items = read_by(list(rows), plan_rows(list(rows), **choices))
        return [key.hex for item in items for key in new._keys(item)]


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_judgment_has_the_key_that_it_had_before(name: str):
    sample = FILES[name]
    # The keys are by version 1.0's rule.
    assert keys_of(sample["rows"], leave_out=sample.get("leave_out", [])) == sample["keys"]
