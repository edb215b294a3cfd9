"""The smallest form of the guard's benchmark: a hacked run asks people; a recorded round is replayed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
def test_the_benchmark_of_the_guard_runs_and_replays(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.benchmarks.guard"]
    made = subprocess.run(
        [*command, "--smoke"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )
    assert made.returncode == 0, made.stderr[-3000:]
    course, summary = map(json.loads, made.stdout.splitlines())
    assert course["reward"] == "words"
    assert 0 < course["pairs"] <= 40
    assert course["questions"][0]["step"] > course["questions"][0]["then"]
    assert summary["courses"] == 1

    held_out = [[0.9, -1.0]] * 40
    lost = {"value": 0.2, "low": 0.15, "high": 0.25}
    figures = {"round": 1, "verdict": "promote", "true_win_rate_parent": lost, "over_optimised": True}
    results = {
        "courses": [{"arm": {"policy": "grpo"}, "seed": 0, "rounds": [{**figures, "held_out": held_out}]}]
    }
    path = tmp_path / "loop.json"
    path.write_text(json.dumps(results))
    replayed = subprocess.run(
        [*command, "--replay", str(path), "--times", "3"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert replayed.returncode == 0, replayed.stderr[-3000:]
    line, summary = map(json.loads, replayed.stdout.splitlines())
    assert (line["over_optimised"], line["held_out"]) == (True, 40)
    assert summary["over_optimised_promoted_at_most"] == 0.0
