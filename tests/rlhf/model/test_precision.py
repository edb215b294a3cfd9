"""A run's messages about its precision."""

from pathlib import Path

import pytest

from tests.rlhf.runs import make_run, train

SAID = "no instructions for bfloat16"


@pytest.mark.parametrize(
    ("dtype", "fast", "times"), [("bfloat16", False, 1), ("bfloat16", True, 0), ("float32", False, 0)]
)
def test_bfloat16_on_a_processor_without_it_is_told_once(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, fast: bool, times: int
) -> None:
    monkeypatch.setattr("training.rlhf.train.has_fast_bfloat16", lambda device: fast)
    run = make_run(tmp_path / "run", base, optimiser={"max_steps": 1}, dtype=dtype)
    assert train(run) == 0
    assert (run / "log.txt").read_text().count(SAID) == times
