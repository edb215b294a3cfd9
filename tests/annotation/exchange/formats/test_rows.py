"""Rows are read one by one from every sort of file, and a bad row is reported by its number."""

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from annotation.errors import Refusal
from annotation.exchange.formats import rows as rows_module
from annotation.exchange.formats.fields import FieldError, excerpt
from annotation.exchange.formats.rows import read_rows

ROWS: list[dict[str, Any]] = [{"prompt": f"Tea {n}? 🍵", "n": n} for n in range(1, 4)]


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def test_json_lines_keep_the_numbers_of_their_lines_over_blank_ones(tmp_path: Path):
    path = tmp_path / "x.jsonl"
    path.write_text("\ufeff" + lines(ROWS[:1]) + "\n" + lines(ROWS[1:]), encoding="utf-8")
    assert [row for _, row in read_rows(path)] == ROWS


@pytest.mark.parametrize("chunk", [1, 7, 64, 100_000])
def test_a_list_in_json_is_read_an_object_at_a_time(tmp_path: Path, monkeypatch, chunk: int):
    monkeypatch.setattr(rows_module, "_CHUNK", chunk)
    path = tmp_path / "x.json"
    path.write_text(json.dumps(ROWS, indent=2, ensure_ascii=False), encoding="utf-8")
    assert list(read_rows(path)) == list(enumerate(ROWS, start=1))


def test_a_list_that_ends_too_early_is_refused_with_the_last_good_row(tmp_path: Path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(ROWS)[:-10], encoding="utf-8")
    with pytest.raises(Refusal, match="not JSON after row 2"):
        list(read_rows(path))


NUMBERS = ("0", "1", "2")


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    "document",
    [
        {name: dict(zip(NUMBERS, (row[name] for row in ROWS), strict=True)) for name in ("prompt", "n")},
        {
            "columns": ["prompt", "n"],
            "index": [0, 1, 2],
            "data": [[row["prompt"], row["n"]] for row in ROWS],
        },
        {"schema": {"fields": [], "pandas_version": "1.4.0"}, "data": ROWS},
        {"data": ROWS, "meta": {"page": 1}},
        {
            "features": [{"name": "prompt"}],
            "rows": [{"row_idx": n, "row": row, "truncated_cells": []} for n, row in enumerate(ROWS)],
            "num_rows_total": 3,
        },
    ],
    ids=["pandas", "pandas split", "pandas table", "a page of an API", "a page of the hub"],
)
def test_a_table_in_one_object_is_its_rows(tmp_path: Path, document: dict[str, Any], indent: int | None):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document, indent=indent), encoding="utf-8")
    assert list(read_rows(path)) == list(enumerate(ROWS, start=1))


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": {"text": "Tea?"}, "response": {"text": "Yes."}},
        {"data": ROWS, "prompt": "Tea?"},
        {"data": ["Tea?", "Yes."]},
        {"rows": []},
        {"resourceSpans": ROWS},
    ],
    ids=str,
)
def test_one_object_that_is_no_table_is_a_row(tmp_path: Path, row: dict[str, Any]):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(row), encoding="utf-8")
    assert list(read_rows(path)) == [(1, row)]


def test_parquet_arrow_and_a_folder_of_them(tmp_path: Path):
    table = pyarrow.Table.from_pylist(ROWS)
    data = tmp_path / "set" / "data"
    data.mkdir(parents=True)
    pyarrow.parquet.write_table(table.slice(0, 2), data / "train-0.parquet")
    pyarrow.parquet.write_table(table.slice(2), data / "test-0.parquet")
    (tmp_path / "set" / "dataset_info.json").write_text("{}")
    # In the order of the names: the test file first.
    assert [row for _, row in read_rows(tmp_path / "set")] == [ROWS[2], ROWS[0], ROWS[1]]
    assert [row for _, row in read_rows(tmp_path / "set", split="train")] == ROWS[:2]
    with pyarrow.ipc.new_stream(tmp_path / "x.arrow", table.schema) as stream:
        stream.write_table(table)
    assert [row for _, row in read_rows(tmp_path / "x.arrow")] == ROWS
    with pyarrow.ipc.new_file(tmp_path / "y.arrow", table.schema) as file:
        file.write_table(table)
    assert [row for _, row in read_rows(tmp_path / "y.arrow")] == ROWS


def test_a_folder_that_datasets_saved_is_read(tmp_path: Path):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    assert [row for _, row in read_rows(tmp_path / "saved")] == ROWS


@pytest.mark.parametrize("delimiter", ["|", ",", ";", "\t"])
def test_csv_tells_a_row_with_too_many_cells(tmp_path: Path, delimiter: str):
    path = tmp_path / "x.csv"
    path.write_text(f'a{delimiter}b\n1{delimiter}"two\nlines"\n1{delimiter}2{delimiter}3\n', encoding="utf-8")
    first, second = (row for _, row in read_rows(path))
    assert first == {"a": "1", "b": "two\nlines"}
    assert isinstance(second, FieldError)
    assert second.code == "too_many_cells"


def test_rows_of_a_spreadsheet_without_any_text_are_left_out(tmp_path: Path):
    path = tmp_path / "x.csv"
    path.write_text("prompt,n\n,\nTea?,1\n,\n", encoding="utf-8")
    assert [row for _, row in read_rows(path)] == [{"prompt": "Tea?", "n": "1"}]


@pytest.mark.parametrize("name", ["votes/May.json", "a/b.jsonl.gz", "x/y.CSV", "x/y.parquet"])
def test_a_missing_file_is_not_looked_for_on_the_hub(name: str):
    assert rows_module.hub_id(name) is None
    assert rows_module.hub_id(f"hf://datasets/{name}") == name
    assert rows_module.hub_id("owner/May") == "owner/May"


def test_a_bad_line_does_not_hide_the_good_ones(tmp_path: Path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": \n{"a": "\xff"}\n[1]\n{"a": 1, "a": 2}\n{"a": 2}\n')
    results = list(read_rows(path))
    assert [row for _, row in results if not isinstance(row, FieldError)] == [{"a": 1}, {"a": 2}]
    codes = [row.code for _, row in results if isinstance(row, FieldError)]
    assert codes == ["not_json", "not_utf8", "object_expected", "name_twice"]


def test_what_is_compressed_is_unpacked_only_where_that_is_allowed(tmp_path: Path):
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(lines(ROWS).encode()))
    assert [row for _, row in read_rows(path)] == ROWS
    with pytest.raises(Refusal, match="is compressed"):
        list(read_rows(path, unpack=False))
    archive = tmp_path / "x.zip"
    archive.write_bytes(b"PK\x03\x04 and so on")
    with pytest.raises(Refusal, match="is an archive"):
        list(read_rows(archive))


def test_a_broken_parquet_file_is_refused_in_words(tmp_path: Path):
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(Refusal, match="cannot be read as Parquet"):
        list(read_rows(path))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "null"),
        (True, "true"),
        ("é\n", '"é\\n"'),
        ("x" * 10_000_000, f'"{"x" * 40}…"'),
        ([1] * 1_000_000, f"{str([1] * 14)[:40]}…"),
        ({"a": datetime(2026, 1, 1, tzinfo=UTC)}, '{"a": "2026-01-01 00:00:00+00:00"}'),
    ],
)
def test_a_message_shows_the_beginning_of_a_value_as_json(value: Any, shown: str):
    assert excerpt(value) == shown
