"""Run the tests: on SQLite, and at the same time on PostgreSQL what reaches the database.

Many tests wait for a server, a trainer or a browser: while those of one database wait, those of the other
work. What PostgreSQL's said is printed once all of SQLite's is. The long tests run on one after the other.

`tests/shares.py` says which tests run on one of them alone, where both are there, and `tests/order.py` which
come first.

    .ci/test.py            all but the long tests: what `make test` runs
    .ci/test.py --faults   the long tests, and more drawn cases: `make test-faults`
    .ci/test.py --fast     no browser, no page, no training, SQLite alone: `make test-fast`

Other arguments are handed on to pytest: `.venv/bin/python .ci/test.py -k lease`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent
POSTGRES = os.environ.get("RONDO_TEST_POSTGRES", "postgres://postgres@127.0.0.1:5432/rondo")
IN_CI = os.environ.get("CI", "").lower() == "true"
TESTS_FAILED = 1
NO_TESTS = 5
FEW = 3
WORKERS = {"SQLite": 3, "PostgreSQL": 2, "SQLite, no pages": 2}
"""Processes of tests on two cores: more where many of them wait."""
_passed_second: list[str] = []
"""Tests of a browser that failed beside all the others and passed by themselves, of this run."""
_failed: list[str] = []
"""Tests that failed for good, with their database."""


LEFT_OUT_WHEN_FAST = (
    # A browser.
    "tests/browser",
    "tests/benchmarks",
    # torch: a model that is trained, served or only read.
    "tests/rlhf",
    "tests/serving",
    "tests/training/engine/test_v1_client.py",
    "tests/training/recipe/test_rubric_rewards.py",
    "tests/training/registry/test_base_models.py",
    "tests/training/registry/test_remote_base_models.py",
    "tests/training/snapshots/test_rewrites.py",
    # Trainers, workers or a whole installation, as processes.
    "tests/annotation/assignments/test_concurrency.py",
    "tests/faults",
    "tests/operations/test_requests.py",
    "tests/loop",
    "tests/training/launchers",
    "tests/training/rounds",
    "tests/training/runs",
    "tests/webapp/test_backup.py",
    "tests/webapp/test_checks.py",
    "tests/webapp/test_demo.py",
    "tests/webapp/test_headers.py",
    "tests/webapp/test_private_files.py",
    "tests/webapp/test_process_manager.py",
    "tests/webapp/test_storage.py",
    "tests/webapp/test_up.py",
    # Thousands of simulated votes, rounds and learned scores.
    "tests/training/evaluation/test_decision.py",
    "tests/training/evaluation/test_second_evaluator.py",
    "tests/training/ratings",
    # Whole files read again and again: imports, the guide, the document of the API, archives, a store.
    "tests/annotation/exchange/test_bombs.py",
    "tests/annotation/text/test_rendering_work.py",
    "tests/api/test_contract.py",
    "tests/architecture/test_house.py",
    "tests/architecture/test_imports.py",
    "tests/store",
    "tests/webapp/test_guide.py",
    "tests/webapp/test_sqlite.py",
    "tests/webapp/test_write_lock.py",
    # Every address as everybody, in both languages; every form of the admin.
    "tests/api/test_who_may.py",
    "tests/annotation/test_admin.py",
    "tests/architecture/test_addresses.py",
    "tests/architecture/test_languages.py",
    "tests/training/test_admin.py",
)
"""Folders and files that the fast run leaves out."""


def main() -> None:
    arguments = [argument for argument in sys.argv[1:] if argument not in ("--fast", "--faults")]
    if "--fast" in sys.argv:
        left_out = [f"--ignore={folder}" for folder in LEFT_OUT_WHEN_FAST]
        quick = "not postgres and not slow and not long and not browser and not starter and not servers"
        chosen = ["--share", "fast", "-m", quick, *left_out, *arguments]
        sys.exit(_run_at_once([("SQLite, no pages", chosen, {"RONDO_TEST_EXAMPLES": "10"})]))
    elsewhere = "not vllm and not quantised"
    is_long = "--faults" in sys.argv
    selected = f"{'(long or drawn)' if is_long else 'not long'} and {elsewhere}"
    examples = {} if is_long else {"RONDO_TEST_EXAMPLES": "10"}
    why_not = _postgres_refuses()
    share = [] if why_not else ["--share", "sqlite"]
    runs = [("SQLite", ["-m", f"not postgres and {selected}", *share, *arguments], examples)]
    if not why_not:
        on_postgres = ["-m", selected, "--share", "postgresql", *arguments]
        runs.append(("PostgreSQL", on_postgres, {**examples, "DATABASE_URL": POSTGRES}))
    # Kills, cut networks and full disks would be felt by the tests of the other database.
    code = max(_run_at_once([run]) for run in runs) if is_long else _run_at_once(runs)
    if why_not:
        print(
            f"\nLeft out: the tests on PostgreSQL. {why_not}\n"
            "  Install a server (Debian: apt install postgresql; macOS: brew install postgresql) that lets "
            "you in,\n  and name it if it is not the usual one: "
            "RONDO_TEST_POSTGRES=postgres://user:password@host:5432/rondo make test"
        )
        if IN_CI:
            sys.exit("CI must run them: start PostgreSQL before the tests.")
    # Nothing fails by it yet. The second run goes once ten full runs in a row had no need of it.
    print(report_second_runs(_passed_second), flush=True)
    # Last of all, for whoever sees only the end of what CI prints.
    print("".join(f"\nFAILED on {line}" for line in _failed), flush=True)
    sys.exit(code)


def report_second_runs(passed_second: list[str]) -> str:
    """Return what the run says at its end of tests that passed only in a second run; empty for none."""
    if not passed_second:
        return ""
    number = "1 test" if len(passed_second) == 1 else f"{len(passed_second)} tests"
    names = "\n".join(f"  {name}" for name in passed_second)
    return f"\n{number} passed only in a second run: find what they wait for in vain.\n{names}"


def _run_at_once(runs: Sequence[tuple[str, list[str], dict[str, str]]]) -> int:
    """Run all of them at the same time, then failed browser tests by themselves; return the worst status.

    The first one writes to the screen, the others to files that are printed after it.
    """
    with ThreadPoolExecutor(len(runs)) as pool, tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, title) for title, _, _ in runs]
        for output in outputs:
            output.touch()
        started = [
            pool.submit(_pytest, *run, output=output if number else None)
            for number, (run, output) in enumerate(zip(runs, outputs, strict=True))
        ]
        codes = []
        for future, output in zip(started, outputs, strict=True):
            codes.append(future.result())
            print(output.read_text(encoding="utf-8", errors="replace"), end="", flush=True)
    return max(
        _second_run(code, title, variables) for code, (title, _, variables) in zip(codes, runs, strict=True)
    )


def _pytest(title: str, arguments: list[str], variables: dict[str, str], *, output: Path | None) -> int:
    heading = f"\n── {title} " + "─" * (70 - len(title))
    parallel = (
        []
        if "-n" in arguments
        else ["-n", str(WORKERS[title]), "--dist", "loadfile", "--no-loadscope-reorder"]
    )
    command = [sys.executable, "-m", "pytest", *_cache(title), *parallel, "--durations", "15", *arguments]
    last_failed(title).unlink(missing_ok=True)
    environment = _environment(variables)
    if output is None:
        print(heading, flush=True)
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    with output.open("w", encoding="utf-8") as stream:
        print(heading, file=stream, flush=True)
        return subprocess.run(
            command, cwd=ROOT, env=environment, check=False, stdout=stream, stderr=stream
        ).returncode


def _second_run(code: int, title: str, variables: dict[str, str]) -> int:
    """Run failed tests of a browser once more, where there is nothing else that failed; return the status."""
    if code == TESTS_FAILED and (again := _browser_tests_that_failed(title)):
        print(f"\n── {title}: in a browser, once more by themselves " + "─" * 20, flush=True)
        print("\n".join(f"  {name}" for name in again), flush=True)
        alone = [sys.executable, "-m", "pytest", *_cache(title), "-n", "0", *again]
        code = subprocess.run(alone, cwd=ROOT, env=_environment(variables), check=False).returncode
        still_failing = _names_of_failed(title) if code == TESTS_FAILED else again if code else []
        _passed_second.extend(f"{title}: {name}" for name in again if name not in still_failing)
    if code == TESTS_FAILED:
        _failed.extend(f"{title}: {name}" for name in _names_of_failed(title))
    # With `-k` a run may well have nothing to do; without it that is a mistake.
    return 0 if code == NO_TESTS and len(sys.argv) > 1 else code


def _environment(variables: dict[str, str]) -> dict[str, str]:
    # One thread of torch for each of the processes: more than there are cores only waits.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **variables}
    if "DATABASE_URL" not in variables:
        environment.pop("DATABASE_URL", None)
    # Compiling torch, transformers and the tests again takes each process longer than all its imports.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def _cache(title: str) -> list[str]:
    """Options of pytest: each of the runs keeps its failures in a folder of its own."""
    return ["-o", f"cache_dir=.pytest_cache/{title}"]


def last_failed(title: str) -> Path:
    """Return where pytest keeps what failed in a run."""
    return ROOT / ".pytest_cache" / title / "v" / "cache" / "lastfailed"


def _names_of_failed(title: str) -> list[str]:
    path = last_failed(title)
    return sorted(json.loads(path.read_text())) if path.is_file() else []


def _browser_tests_that_failed(title: str) -> list[str]:
    """The tests that failed just now, where all of them drive a browser and they are few; else none.

    Browsers, their servers and a trainer share two cores here: what a person never waits for may take longer
    than a test does. Nothing but a browser is given a second chance.
    """
    failed = _names_of_failed(title)
    browser = [name for name in failed if name.startswith("tests/browser/")]
    return failed if failed == browser and len(failed) <= FEW else []


def _postgres_refuses() -> str:
    """Why PostgreSQL cannot be used; empty when it can. Asked of the server, in the tests' own words."""
    import psycopg

    parts = urlsplit(POSTGRES)
    try:
        psycopg.connect(
            host=parts.hostname,
            port=parts.port or 5432,
            user=parts.username,
            password=parts.password,
            # The tests make a database of their own; any that is there will do to ask for one.
            dbname="postgres",
            connect_timeout=3,
        ).close()
    except psycopg.OperationalError as error:
        return str(error).strip().splitlines()[-1]
    return ""


if __name__ == "__main__":
    main()
