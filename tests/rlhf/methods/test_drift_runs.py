"""A preference that turned round between two rounds, from the snapshot to the served reward model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rlhf.methods.test_group_heads import LONG, SHORT
from tests.rlhf.runs import make_run, row, train
from training.contract import read_manifest
from training.contract.run import EXIT_FINISHED, read_evaluation
from training.contract.snapshot import SnapshotRow, Split
from training.contract.validation import people_from_details


def turned_round() -> list[SnapshotRow]:
    """Sixty judgments of round 1 prefer the long text, forty of round 2 and ten held-out ones the short."""
    rows = []
    for index in range(110):
        newest = index >= 60
        split: Split = "held-out" if index >= 100 else "train"
        rows.append(
            row(
                f"j{index}",
                [LONG * (2 + index % 3), SHORT],
                [2, 1] if newest else [1, 2],
                split=split,
                prompt=f"question {index % 10}",
                round=2 if newest else 1,
            )
        )
    return rows


@pytest.mark.parametrize(
    ("discount", "accuracy"),
    [("off", 0.0), ("auto", 1.0), ("half_life", 1.0)],
    ids=["off", "auto", "half-life"],
)
def test_older_annotations_count_less_where_the_newest_round_contradicts_them(
    base: Path, tmp_path: Path, discount: str, accuracy: float
) -> None:
    """Of sixty old and forty new ones the old win; at a half-life of one round thirty of them count."""
    settings = {"adapter": "none", "features": "frozen", "discount_drift": discount, "drift_half_life": 1.0}
    folder = make_run(tmp_path / "run", base, turned_round(), settings=settings)

    assert train(folder) == EXIT_FINISHED

    assert read_manifest(folder / "checkpoint").metrics["held_out_accuracy"] == accuracy
    evaluation = read_evaluation(folder)
    assert evaluation is not None
    report = people_from_details(evaluation.details)
    if discount == "off":
        assert report is None or (report.drift, report.half_life) == (None, None)
        return
    assert report is not None
    assert report.half_life is not None
    assert report.half_life <= 1.0
    if discount == "auto":
        assert report.drift is not None
        assert (report.drift.round, report.drift.judgments, report.drift.applied) == (2, 40, True)
    else:
        assert (report.drift, report.half_life) == (None, 1.0)
