"""Every command of the benchmark pages still runs: each in its smallest form."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import tiny_model_folder

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    ROOT / "tests" / "benchmarks" / "README.md",
    ROOT / "Makefile",
    *(ROOT / "webapp/guide").rglob("*.md"),
)
COMMAND = re.compile(r"(?:python -m |`)tests\.benchmarks\.([a-z_.]*[a-z_])")
QUICK = {
    "formats": "--judgments 200 --labellers 2",
    "labelling": "--annotators 1 --seconds 1 --tasks 30 --workers 1",
    "pages": "--steps 50 --metrics 2 --points 50 --requests 1",
}
"""Smallest arguments of commands that `make test` runs."""
LONG = {
    "generation": "MODEL --dtype float32",
    "long_rows": "--tokens 64",
    "loop.acquisition": "--set autoj --seeds 0 --labels 12 --batch 6",
    "loop.arms": "--study ties --seeds 0 --hours 0.1",
    "policy_gradient_memory": "MODEL",
    "ratings": "",
    "traces": "--steps 3 --megabytes 0.01 --requests 1",
    "training_quality": "MODEL DATA/qa_feedback/feedback.json --steps 1 --seeds 0 --arms bradley-terry "
    "--train 8 --test 4",
}
"""Those that the long tests run. MODEL is a tiny one, DATA the folder of small sets, OUT a new one."""
ELSEWHERE = {
    "loop": "tests/loop/test_smoke.py",
    "gpu": "tests/rlhf/test_gpu_benchmark.py",
}
"""Commands whose smallest form another test runs, which names it."""
NOT_RUN = {
    **dict.fromkeys(("fine_grained", "dense_rewards"), "fails on the small sets: they hold too little"),
    **dict.fromkeys(("reward_baselines", "reward_stacks"), "needs the starter model"),
    **dict.fromkeys(
        ("learning_rates", "loop.online", "memory_estimate", "policy_gradient", "serving", "training"),
        "no smallest form was tried yet",
    ),
    **dict.fromkeys(("leaderboard", "million", "deployment"), "needs a PostgreSQL server of its own"),
    "labelling.files": "has one size, of 10,000 pairs",
    "labelling.page": "was not seen to end within 100 seconds on a busy machine",
    "labelling.storm": "tests/annotation/assignments/test_storm.py runs the same code",
    "loop.rehearsal": "needs a writer that `loop` has trained",
    "conversations": "no smallest form was tried yet; tests/faults/test_talks.py asks the same",
    "faults": "tests/faults/test_killed.py kills once each",
    "first_comparison": "clones and installs: `make bench`",
    "memory": "measures a Rondo that runs",
}
"""Commands that no test runs, and why."""


def commands() -> set[str]:
    """Return the commands of the pages, without `tests.benchmarks.`."""
    return {name for page in PAGES for name in COMMAND.findall(page.read_text(encoding="utf-8"))}


@pytest.fixture(scope="module")
def places(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("benchmarks")
    tiny_model_folder(folder / "model")
    return {"MODEL": str(folder / "model"), "DATA": str(small_data), "OUT": str(folder)}


def test_every_command_of_the_pages_is_run_or_says_why_not():
    known = [*QUICK, *LONG, *ELSEWHERE, *NOT_RUN]
    assert len(known) == len(set(known))
    assert commands() == set(known)
    for name, file in ELSEWHERE.items():
        assert f"tests.benchmarks.{name}" in (ROOT / file).read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments"),
    [*QUICK.items(), *(pytest.param(*item, marks=pytest.mark.long) for item in LONG.items())],
)
def test_a_command_runs_in_its_smallest_form(name: str, arguments: str, places: dict[str, str]):
    words = [re.sub("MODEL|DATA|OUT", lambda found: places[found[0]], word) for word in arguments.split()]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RONDO_", "DJANGO_"))}
    done = subprocess.run(
        [sys.executable, "-m", f"tests.benchmarks.{name}", *words],
        cwd=ROOT,
        env={**kept, "OMP_NUM_THREADS": "1", "RONDO_TEST_DATA": places["DATA"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip()
