"""Run the tests: on SQLite, and at the same time on PostgreSQL what says more there.

`tests/shares.py` says which tests run on one of them alone, where both are there, and `tests/order.py` which
come first.

    .ci/test.py            all but the long tests: what `make test` runs
    .ci/test.py --faults   the long tests: `make test-faults`
    .ci/test.py --fast     no browser, no page, no training, SQLite alone: `make test-fast`

Other arguments are handed on to pytest: `.venv/bin/python .ci/test.py -k lease`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent
POSTGRES = os.environ.get("RONDO_TEST_POSTGRES", "postgres://postgres@127.0.0.1:5432/rondo")
IN_CI = os.environ.get("CI", "").lower() == "true"
NO_TESTS = 5
ALONE, ONE_OF_TWO = 3, 2
"""Processes of tests: some more than cores, as many tests wait for a server, a trainer or a browser."""

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
        sys.exit(run_shares([Share("SQLite, no pages", chosen, {"RONDO_TEST_EXAMPLES": "10"})]))
    elsewhere = "not vllm and not quantised"
    is_long = "--faults" in sys.argv
    selected = f"{'long' if is_long else 'not long'} and {elsewhere}"
    examples = {} if is_long else {"RONDO_TEST_EXAMPLES": "25"}
    if why_not := _postgres_refuses():
        code = run_shares([Share("SQLite", ["-m", f"not postgres and {selected}", *arguments], examples)])
        print(
            f"\nLeft out: the tests on PostgreSQL. {why_not}\n"
            "  Install a server (Debian: apt install postgresql; macOS: brew install postgresql) that lets "
            "you in,\n  and name it if it is not the usual one: "
            "RONDO_TEST_POSTGRES=postgres://user:password@host:5432/rondo make test"
        )
        if IN_CI:
            sys.exit("CI must run them: start PostgreSQL before the tests.")
        sys.exit(code)
    on_sqlite = ["-m", f"not postgres and {selected}", "--share", "sqlite", *arguments]
    on_postgres = [
        *("-m", selected, "--share", "postgresql"),
        *("-o", "cache_dir=.pytest_cache/postgresql", *arguments),
    ]
    sys.exit(
        run_shares(
            [
                Share("SQLite", on_sqlite, examples),
                Share("PostgreSQL", on_postgres, {**examples, "DATABASE_URL": POSTGRES}),
            ]
        )
    )


@dataclass(frozen=True)
class Share:
    """A part of the tests: what it is called, how pytest selects it, and its environment."""

    title: str
    arguments: list[str]
    variables: dict[str, str]


def run_shares(shares: list[Share]) -> int:
    """Run shares at the same time, so that no core is idle; return the worst exit code.

    The output of the first is shown as it comes, that of each other one when those before it have ended.
    """
    workers = ONE_OF_TWO if len(shares) > 1 else ALONE
    codes = []
    with ExitStack() as stack:
        outputs = [None, *(stack.enter_context(tempfile.TemporaryFile()) for _ in shares[1:])]
        _print_title(shares[0])
        running = [
            subprocess.Popen(
                _command(share, workers),
                cwd=ROOT,
                env=_environment(share),
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
            )
            for share, output in zip(shares, outputs, strict=True)
        ]
        for share, process, output in zip(shares, running, outputs, strict=True):
            code = process.wait()
            if output is not None:
                _print_title(share)
                output.seek(0)
                print(output.read().decode(errors="replace"), flush=True)
            # With `-k` a run may well have nothing to do; without it that is a mistake.
            codes.append(0 if code == NO_TESTS and len(sys.argv) > 1 else code)
    return max(codes)


def _print_title(share: Share) -> None:
    print(f"\n── {share.title} " + "─" * (70 - len(share.title)), flush=True)


def _environment(share: Share) -> dict[str, str]:
    # One thread of torch for each of the processes: more than there are cores only waits.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **share.variables}
    if "DATABASE_URL" not in share.variables:
        environment.pop("DATABASE_URL", None)
    # Compiling torch, transformers and the tests again takes each process longer than all its imports.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def _command(share: Share, workers: int) -> list[str]:
    parallel = (
        []
        if "-n" in share.arguments
        else ["-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"]
    )
    return [sys.executable, "-m", "pytest", *parallel, "--durations", "15", *share.arguments]


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
