"""A trainer's report on its machine, and a model card that comes from outside into an export."""

import sys
from pathlib import Path

import pytest
import torch

from tests.rlhf.runs import make_run, train
from training.contract.run import EXIT_FINISHED, read_machine_use
from training.rlhf import export
from training.rlhf.runtime.run_folder import MachineWriter, RunFolder


def test_a_run_tells_what_it_uses_and_its_export_takes_a_card(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run", base, optimiser={"max_steps": 2})
    assert train(run) == EXIT_FINISHED
    uses = read_machine_use(run)
    assert uses[0].step == 1
    assert uses[0].device == "cpu"
    assert uses[0].memory_bytes > 2**20
    assert uses[0].tokens_per_second
    assert uses[0].gpu_memory_bytes is None
    card = tmp_path / "card.md"
    card.write_text("# Of my own\n")
    out = tmp_path / "out"
    # That it is a command of its own is shown in tests/rlhf/model/test_plain_loading.py.
    options = ["--base", str(base), "--out", str(out), "--card", str(card)]
    monkeypatch.setattr(sys, "argv", ["export", str(run / "checkpoint"), *options])
    assert export.main() == 0
    assert (out / "README.md").read_text() == "# Of my own\n"


def test_a_line_is_written_every_few_seconds_with_the_tokens_since_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("training.rlhf.runtime.run_folder.time.monotonic", lambda: now)
    machine = MachineWriter(RunFolder(tmp_path), torch.device("cpu"))
    for step, at in enumerate([100.0, 101.0, 102.0, 105.0, 106.0], start=1):
        now = at
        machine.note(step=step, tokens=300.0, seconds=1.0 if step < 4 else 2.0)
    lines = read_machine_use(tmp_path)
    # Step 1 by itself; then steps 2 to 4: 900 tokens in 1 + 1 + 2 seconds. Step 5 waits for its five seconds.
    assert [(line.step, line.tokens_per_second) for line in lines] == [(1, 300.0), (4, 225.0)]


def test_only_the_first_process_of_a_run_tells(tmp_path: Path) -> None:
    MachineWriter(RunFolder(tmp_path, writes=False), torch.device("cpu")).note(
        step=1, tokens=1.0, seconds=1.0
    )
    assert read_machine_use(tmp_path) == []
