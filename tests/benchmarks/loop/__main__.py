"""Measure the loop from end to end: simulated annotators with a known preference, the real application.

python -m tests.benchmarks.loop --smoke
python -m tests.benchmarks.loop --scene keywords --seeds 0 1 2 3 4 --rounds 5 --results var/loop.json
python -m tests.benchmarks.loop --shape pairs rankings --loss bradley_terry plackett_luce

Every option that takes several values is an axis: all combinations are run, each with every seed. A round's
labels are bounded by the annotators' time under a stated cost model, so that shapes cost the same. Without
`--model` a small writer is trained first; with it, the folder of any model, such as the starter.

`--smoke`: two rounds with a writer, in under a minute; the exit status is 0 when its figures are sane.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import signal
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks.loop.machine import running_machine
from tests.benchmarks.loop.preferences import SCENES, CostModel
from tests.benchmarks.loop.report import problems_of, row_of, summary_of, table_head
from tests.benchmarks.loop.rounds import Arm, Course, Size, go_round

_SMOKE = Size(rounds=2, prompts=110, prompts_per_round=36, hours_per_round=1.0, measured=48, steps=24)
_AXES = ("scene", "acquisition", "shape", "loss", "reward", "policy")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.loop",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--smoke", action="store_true", help="two rounds in under a minute")
    made.add_argument("--scene", nargs="+", choices=SCENES, default=["both"])
    made.add_argument("--acquisition", nargs="+", default=["age"], help="strategies of a project's settings")
    made.add_argument("--shape", nargs="+", choices=["pairs", "rankings", "spans"], default=["pairs"])
    losses = ["bradley_terry", "plackett_luce", "plackett_luce_ties"]
    made.add_argument("--loss", nargs="+", choices=losses, default=["bradley_terry"])
    made.add_argument("--reward", nargs="+", choices=["adapted", "frozen"], default=["frozen"])
    made.add_argument("--policy", nargs="+", choices=["dpo", "grpo"], default=["dpo"])
    made.add_argument("--seeds", nargs="+", type=int, default=[0])
    for name, default in asdict(Size()).items():
        made.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    made.add_argument("--model", type=Path, help="folder of a base model; a writer without one")
    made.add_argument("--writer-steps", type=int, default=600)
    made.add_argument("--threads", type=int, default=1)
    made.add_argument("--results", type=Path, help="write all figures as JSON here")
    return made


def arms_of(options: argparse.Namespace) -> list[Arm]:
    """Return all combinations of the axes."""
    chosen = {name: getattr(options, name) for name in _AXES}
    return [Arm(**dict(zip(chosen, values, strict=True))) for values in itertools.product(*chosen.values())]


def main() -> int:
    """Run all arms and print their table; the exit status."""
    options = parser().parse_args()
    begun = time.monotonic()
    # Ended from outside, it ends what it has started.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    size = Size(**{name: getattr(options, name) for name in asdict(Size())})
    arms, seeds, steps = arms_of(options), options.seeds, options.writer_steps
    if options.smoke:
        size, arms, seeds, steps = _SMOKE, [Arm(scene="format")], [0], 80
    courses: list[Course] = []
    print(table_head(), flush=True)
    with running_machine(threads=options.threads, model=options.model, writer_steps=steps) as machine:
        for seed, arm in itertools.product(seeds, arms):
            tell = partial(_tell, options.results, size, courses)
            courses.append(go_round(machine, arm, size, seed=seed, tell=tell))
    seconds = time.monotonic() - begun
    print(f"\n{summary_of(courses)}\n{seconds:.0f} s in all")
    problems = problems_of(courses, size)
    for problem in problems:
        print(f"Not sane: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _tell(
    path: Path | None, size: Size, before: list[Course], course: Course, figures: dict[str, Any]
) -> None:
    """Print a round, and keep all that was measured so far."""
    print(row_of(course, figures), flush=True)
    _write(path, [*before, course], size)


def _write(path: Path | None, courses: list[Course], size: Size) -> None:
    if path is None:
        return
    values = {
        "command": " ".join(["python -m tests.benchmarks.loop", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores, {platform.platform()}",
        "cost_model": asdict(CostModel()),
        "size": asdict(size),
        "courses": [
            {"arm": asdict(course.arm), "seed": course.seed, "rounds": course.rounds} for course in courses
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=1))


if __name__ == "__main__":
    sys.exit(main())
