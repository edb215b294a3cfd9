"""Memory of each part of a Rondo that runs: `python -m tests.benchmarks.memory [RONDO_HOME]`.

PSS (proportional set size) counts a page that n processes share as 1/n of it, so the figures of
several processes add up; it is known on Linux. RSS counts it in each of them.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
# The first word that fits, in this order, names the part.
PARTS = (
    ("training.rlhf", "trainer"),
    ("training.serving", "model server"),
    ("gunicorn", "web"),
    ("celery", "worker"),
    ("supervisor.supervisord", "process manager"),
    ("manage.py up", "up"),
)


@dataclass(frozen=True)
class Part:
    """One part of Rondo, over all its processes. Sizes in bytes; `pss` is 0 where it is not known."""

    name: str
    processes: int
    rss: int
    pss: int


def measure(pid: int) -> list[Part]:
    """The memory of `manage.py up` with this process id and of everything below it."""
    root = psutil.Process(pid)
    sizes: dict[str, list[tuple[int, int]]] = {}
    for process in [root, *root.children(recursive=True)]:
        try:
            command = " ".join(process.cmdline())
            memory = process.memory_full_info()
        except psutil.Error:
            continue
        name = next((part for word, part in PARTS if word in command), "other")
        sizes.setdefault(name, []).append((memory.rss, getattr(memory, "pss", 0)))
    return [
        Part(name, len(pairs), sum(rss for rss, _ in pairs), sum(pss for _, pss in pairs))
        for name, pairs in sorted(sizes.items())
    ]


def table(parts: list[Part]) -> str:
    """The figures as a Markdown table, in MB of 2**20 bytes."""
    rows = [
        f"| {part.name} | {part.processes} | {part.rss / 2**20:.0f} | {part.pss / 2**20:.0f} |"
        for part in parts
    ]
    return "\n".join(["| part | processes | RSS, MB | PSS, MB |", "|---|---|---|---|", *rows])


def main() -> None:
    home = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "var"
    try:
        pid = json.loads((home / "up.lock").read_text())["pid"]
    except (OSError, ValueError):
        raise SystemExit(
            f"No Rondo runs on {home}. Start one with `make run` and measure beside it."
        ) from None
    print(table(measure(pid)))


if __name__ == "__main__":
    main()
