"""String reversal as a newcomer starts it: two runs, results and a curve; and the course's own setting."""

from __future__ import annotations

import json
import random
import string
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.rlhf.runs import ROOT
from training.contract import read_metrics
from training.contract.run import CHECKPOINT_FOLDER
from training.rlhf.examples.reverse import main


@pytest.fixture
def names_file(tmp_path: Path) -> Path:
    random.seed(0)
    names = ["".join(random.choices(string.ascii_lowercase, k=4)) for _ in range(45)]
    path = tmp_path / "names.json"
    path.write_text(json.dumps({"train": names[:40], "dev": names[35:]}))
    return path


@pytest.fixture
def reverse(
    names_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., str]]:
    """`reverse(out, "--seeds", "5")` is what the command says. Its trainers are processes."""

    def command(out: Path, *arguments: str) -> str:
        files = ["--data", str(names_file), "--out", str(out)]
        monkeypatch.setattr(sys, "argv", ["reverse", *files, "--device", "cpu", "--threads", "1", *arguments])
        code, captured = main(), capsys.readouterr()
        assert code == 0, captured.out + captured.err
        return captured.out

    threads = torch.get_num_threads()
    monkeypatch.chdir(ROOT)
    yield command
    torch.set_num_threads(threads)


@pytest.mark.long
@pytest.mark.slow
def test_one_command_trains_both_runs_and_writes_results_and_curve(
    reverse: Callable[..., str], tmp_path: Path
) -> None:
    out = tmp_path / "reverse"
    first = reverse(out, "--seeds", "5", "--sft-steps", "3", "--rl-steps", "2")
    assert "5 others of it stand in train too and are left out" in first
    results = json.loads((out / "results.json").read_text())
    (seed,) = results["seeds"]
    assert (results["asked"], seed["seed"], [step for step, _ in seed["reward"]]) == (5, 5, [1, 2])
    assert (out / "curve.svg").read_text().startswith("<svg")
    assert len(read_metrics(out / "seed-5" / "sft")) == 3
    assert (out / "seed-5" / "rl" / CHECKPOINT_FOLDER / "model.safetensors").is_file()
    # What is trained is not trained again, and its time is still told.
    again = reverse(out, "--seeds", "5", "--sft-steps", "3", "--rl-steps", "2")
    assert again.splitlines()[-9:-2] == first.splitlines()[-9:-2]
    assert json.loads((out / "results.json").read_text()) == results


def test_without_the_names_the_command_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--data", str(tmp_path / "names.json"), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["reverse", *files, "--threads", str(torch.get_num_threads())])
    assert main() == 1
    assert "the names are not here; name the file with --data" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.slow
def test_the_courses_own_setting_trains_a_chat_model_for_a_few_steps(
    reverse: Callable[..., str], base: Path, tmp_path: Path
) -> None:
    out, model = tmp_path / "course", str(base)
    steps = ["--sft-steps", "5", "--rl-steps", "2", "--prompts", "2"]
    output = reverse(out, "--model", model, "--seeds", "0", *steps)
    assert "after reinforcement: greedy" in output
    rows = read_metrics(out / "seed-0" / "rl")
    assert len(rows) == 2
    losses = [row["loss"] for row in read_metrics(out / "seed-0" / "sft")]
    assert losses[-1] < losses[0]
