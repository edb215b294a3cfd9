"""A real TRL that continues adapters and saves. `make test-trl` installs it and runs these."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.rlhf.runs import make_run, status_of, train
from training.contract import EXIT_FINISHED, EXIT_STOPPED, read_manifest, read_metrics
from training.contract.external import TrlSettings

pytestmark = [
    pytest.mark.trl,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif("RONDO_TEST_TRL" not in os.environ, reason="needs TRL: `make test-trl`"),
]


@pytest.fixture(autouse=True)
def trl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RONDO_TRL", str(Path(os.environ["RONDO_TEST_TRL"]).parent / "trl"))


def dpo(folder: Path, base: Path, *, steps: int, **more: Any) -> Path:
    optimiser = {"max_steps": steps, "save_every": 1, "keep_best": False, "epochs": 50, "warmup_steps": 0}
    return make_run(
        folder,
        base,
        method="preference",
        settings={"reference": "base"},
        optimiser={**optimiser, "learning_rate": 1e-2},
        trl=TrlSettings(),
        **more,
    )


def test_trl_continues_a_parents_adapter_and_measures_from_the_base(base: Path, tmp_path: Path):
    parent = dpo(tmp_path / "parent", base, steps=3)
    assert train(parent) == EXIT_FINISHED, status_of(parent).message
    # A new adapter changes nothing yet; the parent's has learned.
    assert read_metrics(parent)[0]["margin"] == 0
    run = dpo(tmp_path / "run", base, steps=2, parent=str(parent / "checkpoint"))
    assert train(run) == EXIT_FINISHED, status_of(run).message
    lines = read_metrics(run)
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[0]["margin"] > 0.01
    assert read_manifest(run / "checkpoint", verify=True).parent_digest is not None


def test_a_cancelled_trl_goes_on_from_its_last_save(base: Path, tmp_path: Path):
    run = dpo(tmp_path / "run", base, steps=40)

    def cancel() -> None:
        while not (run / "state/trl/output/checkpoint-3").exists():
            time.sleep(0.05)
        (run / "cancel").touch()

    threading.Thread(target=cancel, daemon=True).start()
    assert train(run) == EXIT_STOPPED
    reached = read_metrics(run)[-1]["step"]
    assert 1 <= reached < 40
    assert train(run) == EXIT_FINISHED, status_of(run).message
    assert f"Going on after step {reached}, from TRL's save" in (run / "log.txt").read_text()
    assert [line["step"] for line in read_metrics(run)] == list(range(1, 41))
