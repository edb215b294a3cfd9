"""Judgments in and out: rows a second and peak memory, to show that it does not grow with their number.

    python -m tests.benchmarks.formats --judgments 10000 100000
    python -m tests.benchmarks.formats --judgments 100000 --labellers 8

With `--labellers` so many people label in a process of their own meanwhile, each about two seconds a
comparison, and the longest that one of them waited for *submit and next* is printed beside the longest
transaction of the import.

Each size is a process of its own with a database of its own: made pairs of about 400 characters come in as
TRL preference pairs, then go out as Rondo's JSON Lines, as CSV and as Parquet. Peak memory is the process's
own (`ru_maxrss`), printed for the import and after each export. On SQLite it grows until the page cache of an
import is full, 64 MB (`annotation.models.bulk`), and no further.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-m", "tests.benchmarks.formats")
_FORMATS = ("jsonl", "csv", "openrlhf")
_TEXT = "green tea steeps two minutes at seventy degrees and black tea four at a full boil "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--judgments", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--labellers", type=int, default=0, help="people who label while the file comes in")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--label", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.label:
        print(json.dumps(label(options.label)))
        return
    if options.one:
        print(json.dumps(measure(options.one, labellers=options.labellers)))
        return
    for size in options.judgments:
        with tempfile.TemporaryDirectory() as home:
            finished = subprocess.run(
                [*COMMAND, "--one", str(size), "--labellers", str(options.labellers)],
                env={**os.environ, "RONDO_HOME": home, "DJANGO_SETTINGS_MODULE": "webapp.settings"},
                capture_output=True,
                text=True,
                check=False,
            )
        if finished.returncode:
            sys.exit(finished.stderr)
        print(finished.stdout.splitlines()[-1], flush=True)


def label(people: int) -> dict[str, float]:
    """Label as so many people until the folder has a file `stop`: labels, and waits in milliseconds."""
    import django

    django.setup()
    from annotation.choices import Role, Verdict
    from annotation.models import Membership, Project, User
    from annotation.services.assignments.next import assign_next
    from annotation.services.judgments.submission import submit_judgment
    from tests.records import judgment_record

    project = Project.objects.get(slug="work")
    folder = Path(os.environ["RONDO_HOME"])
    users = [User.objects.create_user(username=f"person-{number}") for number in range(people)]
    for user in users:
        Membership.objects.create(project=project, user=user, role=Role.ANNOTATOR)
    waits: list[float] = []

    def work(number: int) -> None:
        draw = random.Random(number)
        assignment = assign_next(project=project, annotator=users[number])
        while not (folder / "stop").exists() and assignment is not None:
            time.sleep(draw.uniform(1, 3))
            ids = assignment.display_order
            begun = time.perf_counter()
            submit_judgment(
                assignment=assignment,
                annotator=users[number],
                answer=judgment_record(
                    verdict=Verdict.RANKED, ranks={pk: place for place, pk in enumerate(ids, start=1)}
                ),
                idempotency_key=uuid.uuid4(),
            )
            assignment = assign_next(project=project, annotator=users[number])
            waits.append(time.perf_counter() - begun)

    (folder / "labelling").touch()
    with ThreadPoolExecutor(people) as pool:
        for done in [pool.submit(work, number) for number in range(people)]:
            done.result()
    waits.sort()
    return {
        "labels": len(waits),
        "label p95, ms": round(1000 * waits[int(0.95 * (len(waits) - 1))]) if waits else 0,
        "label longest, ms": round(1000 * waits[-1]) if waits else 0,
    }


def _labelling(people: int) -> subprocess.Popen[str] | None:
    """Begin to label in another process, and wait until it is at work."""
    if not people:
        return None
    from annotation.exchange.prompts import import_prompts
    from annotation.services.projects.projects import create_project

    work = create_project(name="Work", slug="work")
    lines = (
        json.dumps({"prompt": f"What is tea {number}?", "completions": ["A drink.", "A leaf."]})
        for number in range(4_000)
    )
    import_prompts(project=work, lines=lines, name="work")
    process = subprocess.Popen([*COMMAND, "--label", str(people)], stdout=subprocess.PIPE, text=True)
    while not (Path(os.environ["RONDO_HOME"]) / "labelling").exists():
        if process.poll() is not None:
            sys.exit("The labellers ended before the import began.")
        time.sleep(0.1)
    time.sleep(2)
    return process


def measure(size: int, *, labellers: int = 0) -> dict[str, float]:
    """Rows a second and peak memory in MB, of one import and of three exports."""
    import django

    django.setup()
    from django.core.management import call_command

    from annotation.exchange.file_exports import Export, write_parquet
    from annotation.exchange.file_imports import import_file
    from annotation.exchange.formats.registry import WRITERS
    from annotation.exchange.item_imports import ItemImport
    from annotation.services.projects.projects import create_project

    call_command("migrate", verbosity=0)
    folder = Path(os.environ["RONDO_HOME"])
    path = folder / "pairs.jsonl"
    _write_pairs(path, size)
    project = create_project(name="Tea", slug="tea")
    process = _labelling(labellers)
    figures: dict[str, float] = {"judgments": size, "MB before": _peak()}
    transactions: list[float] = []
    write = ItemImport.write

    def timed(self: ItemImport, items: Any) -> Any:
        begun = time.perf_counter()
        try:
            return write(self, items)
        finally:
            transactions.append(time.perf_counter() - begun)

    ItemImport.write = timed  # type: ignore[method-assign]
    begun = time.perf_counter()
    record = import_file(project=project, path=path)
    seconds = time.perf_counter() - begun
    ItemImport.write = write  # type: ignore[method-assign]
    assert record.counts["judgments"] == size
    figures |= {
        "in, rows/s": round(size / seconds),
        "in, MB": _peak(),
        "longest transaction, ms": round(1000 * max(transactions)),
    }
    if process is not None:
        (folder / "stop").touch()
        figures |= json.loads(process.communicate(timeout=120)[0].splitlines()[-1])
    for name in _FORMATS:
        export = Export(project=project, writer=WRITERS[name])
        begun = time.perf_counter()
        if export.writer.container == "parquet":
            write_parquet(export.row_stream(), export.writer.columns, folder / "out")
        else:
            with (folder / "out").open("w", encoding="utf-8") as stream:
                stream.writelines(export.text_stream())
        assert export.judgments == size
        figures |= {f"{name}, rows/s": round(size / (time.perf_counter() - begun)), f"{name}, MB": _peak()}
    return figures


def _write_pairs(path: Path, size: int) -> None:
    with path.open("w", encoding="utf-8") as stream:
        for number in range(size):
            start = number % len(_TEXT)
            text = (_TEXT[start:] + _TEXT * 2)[:170].strip()
            row = {
                "prompt": f"How long does tea {number} steep?",
                "chosen": f"{number}: {text}",
                "rejected": f"{text}, {number}",
            }
            stream.write(json.dumps(row) + "\n")


def _peak() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    main()
