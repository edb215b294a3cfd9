"""The time that a run's page takes to answer, with many metric points.

    python -m tests.benchmarks.pages [--steps 100000] [--metrics 12] [--points 100000] [--requests 20]

Makes a project, a run and its files in a temporary folder with a database of its own (DATABASE_URL names
another, which must be empty), and asks through Django's test client: what the server itself takes, without
the network. Cold is the first request for a file that nothing was folded of yet; the worker folds a run's
metrics as it goes, so people meet that only with files that came from elsewhere. A cold request reads for
60 ms and leaves the rest to the next one.
"""

import argparse
import json
import math
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100_000, help="steps of the long run")
    parser.add_argument("--metrics", type=int, default=12, help="metrics that each step tells")
    parser.add_argument("--points", type=int, default=100_000, help="metric points of the other run")
    parser.add_argument("--requests", type=int, default=20, help="of which the median is told")
    options = parser.parse_args()
    home = tempfile.mkdtemp(prefix="rondo-pages-")
    os.environ |= {"RONDO_HOME": home, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    try:
        _measure(options, Path(home))
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _measure(options: argparse.Namespace, home: Path) -> None:
    import django

    django.setup()
    from django.conf import settings
    from django.core.management import call_command
    from django.test import Client
    from django.test.utils import setup_test_environment

    setup_test_environment()
    settings.RONDO_HOME = home
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    call_command("migrate", verbosity=0)
    from annotation.models import User
    from tests.factories import make_project
    from tests.training.registry.registry_rows import make_trained

    carol = User.objects.create_superuser("carol", password="x")
    project = make_project(managers=[carol])
    client = Client()
    client.force_login(carol)
    # What a server does once after its start, such as reading its templates, is not a page's business.
    warm = make_trained("warm", project).run
    assert warm is not None
    _write(warm.path, 10, options.metrics)
    _seconds(client, warm.get_absolute_url())
    steps = {"long": options.steps, "points": max(1, options.points // options.metrics)}
    print("| file | request | median | slowest |\n|---|---|---|---|")
    for name, count in steps.items():
        run = make_trained(name, project).run
        assert run is not None
        size = _write(run.path, count, options.metrics)
        what = f"{count} steps × {options.metrics} metrics, {size / 1e6:.1f} MB"
        page, curves = run.get_absolute_url(), f"{run.get_absolute_url()}curves/"
        _row(what, "page, cold, first request", [_seconds(client, page)])
        turns = 1
        while client.get(curves).json()["runs"][0]["is_behind"]:
            turns += 1
        mark = client.get(curves).json()["runs"][0]["mark"]
        _row(what, f"page, after {turns} requests folded all", _several(client, page, options.requests))
        _row(what, "all curves for the script", _several(client, curves, options.requests))
        _row(what, "what is new in the curves", _several(client, f"{curves}?since={mark}", options.requests))
        _row(what, "live part", _several(client, f"{page}live/", options.requests))


def _write(folder: Path, steps: int, metrics: int) -> int:
    path = folder / "metrics.jsonl"
    names = ["loss", "reward", "kl", *(f"metric_{n}" for n in range(metrics - 3))]
    with path.open("w") as stream:
        for step in range(1, steps + 1):
            row: dict[str, Any] = {name: math.sin(step * (n + 1) / 97) for n, name in enumerate(names)}
            stream.write(json.dumps({"step": step, **row}) + "\n")
    with (folder / "log.txt").open("w") as stream:
        stream.writelines(f"2026-01-01 00:00:00 Step {step} of {steps}: loss 0.1\n" for step in range(steps))
    return path.stat().st_size


def _seconds(client: Any, url: str) -> float:
    began = time.perf_counter()
    answer = client.get(url)
    assert answer.status_code == 200, url
    _ = answer.content
    return time.perf_counter() - began


def _several(client: Any, url: str, requests: int) -> list[float]:
    return [_seconds(client, url) for _ in range(requests)]


def _row(what: str, request: str, seconds: list[float]) -> None:
    middle, slowest = statistics.median(seconds), max(seconds)
    print(f"| {what} | {request} | {1000 * middle:.0f} ms | {1000 * slowest:.0f} ms |", flush=True)


if __name__ == "__main__":
    main()
