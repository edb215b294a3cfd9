"""The benchmark of live learning in its smallest size."""

import subprocess
import sys

import pytest

from tests.benchmarks.loop.forge import ROOT


@pytest.mark.long
@pytest.mark.slow
def test_judgments_become_updates_whose_responses_are_judged_next():
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.live", "--smoke"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [row] = [line for line in done.stdout.splitlines() if line.startswith("| 0 ")]
    _, _, live, updates, rounds, judgments, *_ = row.split("|")
    assert int(updates) >= 1
    assert int(judgments) == 12
    for rate in (live, rounds):
        assert 0 <= float(rate.split("[")[0]) <= 1
    assert len([line for line in done.stdout.splitlines() if line.startswith("update ")]) == 2
