"""Every command of the benchmark pages still runs: each in its smallest form."""

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from tests.tiny import tiny_model_folder

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    *(ROOT / "tests" / "benchmarks").glob("*.md"),
    ROOT / "Makefile",
    *(ROOT / "webapp/guide").rglob("*.md"),
)
COMMAND = re.compile(r"(?:python -m |`)tests\.benchmarks\.([a-z_.]*[a-z_])")
FEEDBACK = "MODEL DATA/qa_feedback/feedback.json"
SMALLEST = {
    "conversations": "--turns 1 --starter STARTER",
    "decisions": "--smoke",
    "dense_rewards": f"{FEEDBACK} --folder OUT/dense --seeds 0 --steps 1 --prompts 2 --new-tokens 4 "
    "--reward-epochs 1 --reward-layers 1",
    "fine_grained": f"{FEEDBACK} --heads relevance --max-steps 1 --threshold-on 2",
    "formats": "--judgments 200 --labellers 2",
    "generation": "MODEL --dtype float32",
    "labelling": "--annotators 1 --seconds 1 --tasks 30 --workers 1",
    "labelling.files": "--pairs 20",
    "labelling.page": "",
    "labelling.storm": "--annotators 2 --seconds 3 --workers 1",
    "learning_rates": "MODEL DATA --prompts 12 --steps 1 --folds 2 --rates 1e-3 --out OUT/rates.json",
    "long_rows": "--tokens 64",
    "loop.acquisition": "--set autoj --seeds 0 --labels 12 --batch 6",
    "loop.arms": "--study ties --seeds 0 --hours 0.1",
    "loop.plot": "hour OUT/hour.svg DECISIONS",
    "loop.online": "--pairs 300 --judgments 60 --updates 1",
    "loop.rehearsal": "WRITER --policy dpo --seeds 0 --rounds 1 --pairs 24 --dpo-steps 1",
    "memory_estimate": "--cases 0",
    "padded_rows": "MODEL --rounds 1 --prompt 8 --answer 4 --prompts 2 --samples 2",
    "pages": "--steps 50 --metrics 2 --points 50 --requests 1",
    "policy_gradient": "--model MODEL --data DATA/names_reversal/names.json --only Rondo --prompts 2",
    "policy_gradient_memory": "MODEL",
    "ratings": "",
    "reward_baselines": "--set autoj --starter MODEL --cache OUT/cache --seeds 0 --judgments 20",
    "reward_stacks": "features OUT/stacks.npz --set autoj --starter STARTER --judgments 8 --longest 96",
    "serving": "MODEL --tokens 4 --threads 1",
    "similar_prompts": "--prompts 200 --width 16",
    "single_response": "MODEL --rounds 1 --tokens 4",
    "traces": "--steps 3 --megabytes 0.01 --requests 1",
    "training_quality": f"{FEEDBACK} --steps 1 --seeds 0 --arms bradley-terry --train 8 --test 4",
}
"""Smallest arguments. MODEL is a tiny one, WRITER one that `loop.writer` trained, STARTER the real starter
model, DECISIONS what `decisions --smoke` printed, DATA the folder of small sets, OUT a new one."""
ON_POSTGRESQL = {
    "leaderboard": "POSTGRES --judgments 300 --times 2",
    "million": "--annotations 200 --times 1",
}
"""Those that need a PostgreSQL server: POSTGRES, where they get a database of their own."""
ELSEWHERE = {
    "first_hour": "tests/benchmarks/test_first_hour.py",
    "guard": "tests/loop/test_guard_smoke.py",
    "live": "tests/benchmarks/test_live.py",
    "loop": "tests/benchmarks/test_loop.py",
    "gpu": "tests/benchmarks/test_gpu.py",
    "gpu.exactness": "tests/benchmarks/test_gpu.py",
}
"""Commands whose smallest form another test runs, which names it."""
NOT_RUN = {
    "faults": "goes on until a round has ended; tests/faults/test_killed.py kills once each",
    "deployment": "starts all services of the Compose file on PostgreSQL and Redis, for minutes",
    "first_comparison": "clones and installs: `make bench`",
    "memory": "measures a Rondo that runs",
    "training": "stands beside TRL, which lives in an environment of its own",
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
    known = [*SMALLEST, *ON_POSTGRESQL, *ELSEWHERE, *NOT_RUN]
    assert len(known) == len(set(known))
    assert commands() == set(known)
    for name, file in ELSEWHERE.items():
        assert f"tests.benchmarks.{name}" in (ROOT / file).read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("name", "arguments"), SMALLEST.items())
def test_a_command_runs_in_its_smallest_form(name: str, arguments: str, places: dict[str, str]):
    if "STARTER" in arguments:
        from training.rlhf.starter import ensure

        places = {**places, "STARTER": str(ensure(Path(places["OUT"], "starter")))}
    if "WRITER" in arguments:
        places = {**places, "WRITER": f"{places['OUT']}/writer"}
        run("loop.writer", "WRITER --steps 5", places)
    if "DECISIONS" in arguments:
        printed = Path(places["OUT"], "decisions.jsonl")
        printed.write_text(run("decisions", "--smoke", places))
        places = {**places, "DECISIONS": str(printed)}
    run(name, arguments, places)


@pytest.mark.long
@pytest.mark.postgres
@pytest.mark.parametrize(("name", "arguments"), ON_POSTGRESQL.items())
def test_a_command_on_postgresql_runs_in_its_smallest_form(name: str, arguments: str, places: dict[str, str]):
    server = os.environ["DATABASE_URL"]
    database = f"benchmark_{name}_{os.getpid()}"
    with psycopg.connect(server, dbname="postgres", autocommit=True) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(database)))
        try:
            url = urlsplit(server)._replace(path=f"/{database}").geturl()
            run(name, arguments, {**places, "POSTGRES": url}, DATABASE_URL=url)
        finally:
            connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(database)))


def run(name: str, arguments: str, places: dict[str, str], **variables: str) -> str:
    """Run a command to its end; return what it prints, which must be something."""
    words = [re.sub("|".join(places), lambda found: places[found[0]], word) for word in arguments.split()]
    left_out = ("RONDO_", "DJANGO_", "DATABASE_URL")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    done = subprocess.run(
        [sys.executable, "-m", f"tests.benchmarks.{name}", *words],
        cwd=ROOT,
        env={**inherited, "OMP_NUM_THREADS": "1", "RONDO_TEST_DATA": places["DATA"], **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip()
    return done.stdout
