"""A run's metrics, folded: no spike is lost, nothing is read twice, a resumed run takes its steps again."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.contract import read_metrics
from training.contract.run import METRICS_FILE
from training.figures.curves import (
    COUNT,
    HIGH,
    LOW,
    MOST_BUCKETS,
    SUM,
    Folded,
    folded_metrics,
    metric_of,
    points_since,
    standing_rows,
)


def fold_rows(rows: Iterable[Mapping[str, Any]]) -> Folded:
    folded = Folded()
    for row in rows:
        folded.add(row)
    return folded


VALUES = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False, width=32))


@given(
    st.lists(VALUES, min_size=1, max_size=2000),
    st.integers(min_value=0, max_value=10_000),
    st.integers(min_value=1, max_value=7),
)
def test_the_least_and_the_greatest_value_of_every_bucket_survive(values, first, stride):
    steps = range(first, first + stride * len(values), stride)
    folded = fold_rows([{"step": step, "loss": value} for step, value in zip(steps, values, strict=True)])
    assert len(folded.rows) <= MOST_BUCKETS
    expected: dict[int, list[float]] = {}
    for step, value in zip(steps, values, strict=True):
        if value is not None:
            expected.setdefault(step // folded.width, []).append(value)
    cells = {bucket: cell for bucket, cell in folded.cells["loss"].items() if cell[COUNT]}
    assert {b: (c[LOW], c[HIGH], c[COUNT]) for b, c in cells.items()} == {
        b: (min(of), max(of), len(of)) for b, of in expected.items()
    }
    for bucket, of in expected.items():
        assert math.isclose(cells[bucket][SUM], math.fsum(of), rel_tol=1e-9, abs_tol=1e-3 * max(map(abs, of)))


def test_a_spike_of_one_step_in_a_hundred_thousand_is_drawn():
    folded = fold_rows({"step": step, "loss": 100.0 if step == 54_321 else 1.0} for step in range(1, 100_001))
    points = points_since(folded, "loss", since=0)
    assert [point[2:4] for point in points if point[3] != 1.0] == [[54_321, 100.0]]
    assert len(points) <= MOST_BUCKETS


def write(folder: Path, rows: list[dict[str, Any]], *, torn: str = "") -> None:
    with (folder / METRICS_FILE).open("a") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)
        stream.write(torn)


def test_only_what_was_added_is_read(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("training.figures.curves._KEEP_AFTER_BYTES", 0)
    cache_file = tmp_path / "kept.json"
    write(tmp_path, [{"step": step, "loss": float(step)} for step in range(1, 4)], torn='{"step": 4, "lo')
    first = folded_metrics(tmp_path, cache_file=cache_file)
    assert (first.last_step, first.latest) == (3, {"loss": 3.0})
    read: list[bytes] = []

    def reading(line: bytes) -> Any:
        read.append(line)
        return json.loads(line)

    monkeypatch.setattr("training.figures.curves._row", reading)
    write(tmp_path, [], torn='ss": 4.0}\n')
    again = folded_metrics(tmp_path, cache_file=cache_file)
    assert again.last_step == 4
    assert len(read) == 1


def test_what_is_remembered_equals_what_is_read_at_once(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("training.figures.curves._KEEP_AFTER_BYTES", 0)
    cache_file = tmp_path / "kept.json"
    rows = [
        {"step": step, "loss": math.sin(step), "kl": None if step % 50 else 1.0} for step in range(1, 1200)
    ]
    for start in range(0, len(rows), 100):
        write(tmp_path, rows[start : start + 100])
        grown = folded_metrics(tmp_path, cache_file=cache_file)
    assert grown.to_json() == folded_metrics(tmp_path, cache_file=tmp_path / "none.json").to_json()


def test_a_long_file_is_read_in_turns(tmp_path: Path):
    write(tmp_path, [{"step": step, "loss": 1.0} for step in range(1, 2001)])
    cache_file = tmp_path / "kept.json"
    turns = 0
    while (folded := folded_metrics(tmp_path, cache_file=cache_file, most_seconds=0)).is_behind:
        turns += 1
    assert turns > 10
    assert (folded.last_step, folded.cells["loss"].keys() == folded.rows.keys()) == (2000, True)


def test_steps_that_a_resumed_run_takes_again_stand_as_it_took_them_last(tmp_path: Path):
    write(tmp_path, [{"step": step, "loss": 1000.0 + step} for step in range(1, 8)])
    cache_file = tmp_path / "kept.json"
    folded_metrics(tmp_path, cache_file=cache_file)
    write(tmp_path, [{"step": step, "loss": float(step)} for step in range(4, 7)])
    write(tmp_path, [{"step": step, "loss": -float(step)} for step in range(5, 9)])
    folded = folded_metrics(tmp_path, cache_file=cache_file)
    standing = [(1, 1001.0), (2, 1002.0), (3, 1003.0), (4, 4.0), (5, -5.0), (6, -6.0), (7, -7.0), (8, -8.0)]
    assert [(b, c[LOW], c[HIGH]) for b, c in sorted(folded.cells["loss"].items())] == [
        (step, value, value) for step, value in standing
    ]
    rows = list(standing_rows(tmp_path, folded))
    assert [(row["step"], row["loss"]) for row in rows] == standing
    assert rows == read_metrics(tmp_path)


def test_another_file_of_the_same_name_is_read_from_its_beginning(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("training.figures.curves._KEEP_AFTER_BYTES", 0)
    cache_file = tmp_path / "kept.json"
    write(tmp_path, [{"step": step, "loss": 9.0} for step in range(1, 50)])
    folded_metrics(tmp_path, cache_file=cache_file)
    (tmp_path / METRICS_FILE).rename(tmp_path / "old.jsonl")
    write(tmp_path, [{"step": 1, "loss": 2.0}])
    assert folded_metrics(tmp_path, cache_file=cache_file).latest == {"loss": 2.0}


def test_a_folded_form_that_is_damaged_is_made_anew(tmp_path: Path):
    write(tmp_path, [{"step": 1, "loss": 2.0}])
    (tmp_path / "kept.json").write_text('{"format": 1, "most_buckets": 256, "rows": []}')
    assert folded_metrics(tmp_path, cache_file=tmp_path / "kept.json").latest == {"loss": 2.0}


def test_a_line_is_broken_where_numbers_are_missing():
    rows: list[dict[str, float | None]] = [
        {"step": 1, "loss": 1.0},
        {"step": 2, "loss": None},
        {"step": 3, "loss": 2.0},
        {"step": 4, "loss": 3.0},
    ]
    assert points_since(fold_rows(rows), "loss", since=2) == [
        [2],
        [3, 2.0, 3, 2.0, 2.0],
        [4, 3.0, 4, 3.0, 3.0],
    ]


def test_an_evaluation_every_tenth_step_is_one_line():
    evaluated: dict[str, float] = {"held_out_accuracy": 0.5}
    rows: list[dict[str, float]] = [{"step": s, **(evaluated if s % 10 == 0 else {})} for s in range(1, 41)]
    points = points_since(fold_rows(rows), "held_out_accuracy", since=0)
    assert [point[0] for point in points] == [10, 20, 30, 40]


def test_a_table_has_the_last_value_of_each_run_and_the_range_of_all():
    rows = [{"step": step, "loss": value} for step, value in ((1, 3.0), (2, 1.0), (4, 2.0), (5, math.nan))]
    last, missing = metric_of([fold_rows(rows), Folded()], "loss").values
    assert (last.value, last.step, last.lowest, last.highest) == (2.0, 4, 1.0, 3.0)
    assert missing is None


@pytest.mark.parametrize(
    ("name", "title", "unit"),
    [
        ("kl_per_token", "kl per token", "nats"),
        ("held_out_length_log_loss", "held out length log loss", "nats"),
        ("length", "length", "tokens"),
        ("seconds_rollout", "seconds rollout", "s"),
        ("tokens_per_second", "tokens per second", ""),
        ("reward/help_score", "reward, help score", ""),
    ],
)
def test_a_metric_has_a_title_and_a_unit(name: str, title: str, unit: str):
    metric = metric_of([], name)
    assert (metric.title, metric.unit) == (title, unit)
