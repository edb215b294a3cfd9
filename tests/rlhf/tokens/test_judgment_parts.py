"""Runs that learn from one part of the training judgments."""

from pathlib import Path

import pytest

from tests.rlhf.runs import judgments, make_run, train
from training.contract import read_manifest
from training.contract.run import EXIT_FINISHED
from training.contract.snapshot import part_of_prompt
from training.rlhf.loop.run import rows_of_part


def test_two_parts_share_no_prompt_and_both_are_evaluated_on_all_that_is_held_out():
    rows = judgments()

    policy, evaluator = (list(rows_of_part(rows, part)) for part in ("policy", "evaluator"))

    held_out = {row.judgment for row in rows if row.split != "train"}
    trained = [{row.prompt for row in part if row.split == "train"} for part in (policy, evaluator)]
    assert trained[0]
    assert trained[1]
    assert not trained[0] & trained[1]
    assert trained[0] | trained[1] == {row.prompt for row in rows if row.split == "train"}
    for part in (policy, evaluator):
        assert {row.judgment for row in part if row.split != "train"} == held_out
    assert list(rows_of_part(rows, "all")) == rows


@pytest.mark.parametrize("part", ["policy", "evaluator"])
def test_a_run_trains_on_the_judgments_of_its_part(base: Path, tmp_path: Path, part: str):
    folder = make_run(tmp_path / "run", base, optimiser={"max_steps": 1}, judgments=part)

    assert train(folder) == EXIT_FINISHED

    count = sum(row.split == "train" and part_of_prompt(row.prompt) == part for row in judgments())
    assert f"{count} judgments to train on" in (folder / "log.txt").read_text()
    manifest = read_manifest(folder / "checkpoint")
    assert manifest.spec["judgments"] == part
    assert manifest.metrics["held_out_decided"] == 2
