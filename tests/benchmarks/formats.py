"""Judgments in and out: rows a second and peak memory, to show that it does not grow with their number.

    python -m tests.benchmarks.formats --judgments 10000 100000

Each size is a process of its own with a database of its own: made pairs of about 400 characters come in as
TRL preference pairs, then go out as Rondo's JSON Lines, as CSV and as Parquet. Peak memory is the process's
own (`ru_maxrss`), printed for the import and after each export. On SQLite it grows until the page cache of an
import is full, 64 MB (`annotation.models.bulk`), and no further.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_FORMATS = ("jsonl", "csv", "openrlhf")
_TEXT = "green tea steeps two minutes at seventy degrees and black tea four at a full boil "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--judgments", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one)))
        return
    for size in options.judgments:
        with tempfile.TemporaryDirectory() as home:
            finished = subprocess.run(
                [sys.executable, "-m", "tests.benchmarks.formats", "--one", str(size)],
                env={**os.environ, "RONDO_HOME": home, "DJANGO_SETTINGS_MODULE": "webapp.settings"},
                capture_output=True,
                text=True,
                check=False,
            )
        if finished.returncode:
            sys.exit(finished.stderr)
        print(finished.stdout.splitlines()[-1], flush=True)


def measure(size: int) -> dict[str, float]:
    """Rows a second and peak memory in MB, of one import and of three exports."""
    import django

    django.setup()
    from django.core.management import call_command

    from annotation.exchange.file_exports import Export, write_parquet
    from annotation.exchange.file_imports import import_file
    from annotation.exchange.formats.registry import WRITERS
    from annotation.services.projects.projects import create_project

    call_command("migrate", verbosity=0)
    folder = Path(os.environ["RONDO_HOME"])
    path = folder / "pairs.jsonl"
    _write_pairs(path, size)
    project = create_project(name="Tea", slug="tea")
    figures: dict[str, float] = {"judgments": size, "MB before": _peak()}
    begun = time.perf_counter()
    record = import_file(project=project, path=path)
    assert record.counts["judgments"] == size
    figures |= {"in, rows/s": round(size / (time.perf_counter() - begun)), "in, MB": _peak()}
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
