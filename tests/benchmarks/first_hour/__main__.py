"""Measure a newcomer's first hour: forty noisy judgments, the round, at most 25 asked pairs, the decision.

python -m tests.benchmarks.first_hour --smoke
python -m tests.benchmarks.first_hour --model var/models/SmolLM2-135M-Instruct --results var/first_hour.json
python -m tests.benchmarks.first_hour --random --seeds 0 1 2 3 4 5 6 7 8 9

The real application, trainer and model server on the real starter model; only the person is simulated, by a
rule of `first_hour.rules` with 12 % noise. Machine time is that from the start of training to the decision.

`--smoke`: one newcomer with a small writer instead of the starter; the exit status is 0 if the course ends.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import signal
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from tests.benchmarks.first_hour.newcomer import RANDOM, Course, Newcomer, Size
from tests.benchmarks.first_hour.rules import RULES
from tests.benchmarks.loop.machine import running_machine

_SMOKE = Size(comparisons=12, asked=6, measured=12, prompts=40, tokens=48)
_COLUMNS = (
    *("newcomer", "seed", "judged", "asked", "decision", "true win rate", "minutes", "waited", "chosen"),
)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.first_hour",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--smoke", action="store_true", help="one newcomer with a small writer")
    made.add_argument("--rule", nargs="+", choices=RULES, default=list(RULES))
    made.add_argument("--random", action="store_true", help="newcomers who answer at random")
    made.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    made.add_argument("--model", type=Path, help="folder of the starter model; fetched without it")
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--results", type=Path, help="write all figures as JSON here")
    return made


def row_of(course: Course) -> str:
    """Return the line of one newcomer."""
    rate = course.true_win_rate
    share = "" if rate is None else f"{rate['value']:.2f} [{rate['low']:.2f}, {rate['high']:.2f}]"
    cells = [
        *(course.rule, course.seed, course.judged, course.answered, course.decision, share),
        *(f"{course.seconds / 60:.1f}", f"{course.waited / 60:.1f}", "; ".join(course.chosen)),
    ]
    return f"| {' | '.join(map(str, cells))} |"


def summary_of(courses: list[Course]) -> str:
    """Return how many ended promoted, and how many of these are truly better."""
    promoted = [course for course in courses if course.decision == "promoted"]
    better = [course for course in promoted if course.true_win_rate and course.true_win_rate["low"] > 0.5]
    slowest = max((course.seconds for course in courses), default=0.0) / 60
    return (
        f"{len(promoted)} of {len(courses)} promoted, {len(better)} of them truly better (interval above one "
        f"half); at most {slowest:.1f} minutes from start to decision"
    )


def main() -> int:
    """Take all courses and print their table; the exit status."""
    options = parser().parse_args()
    # Ended from outside, it ends what it has started.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    rules, seeds, size, model = options.rule, options.seeds, Size(), options.model
    if options.random:
        rules = [RANDOM]
    if options.smoke:
        rules, seeds, size, model = rules[:1], seeds[:1], _SMOKE, None
    elif model is None:
        from training.rlhf.starter import ensure

        model = ensure(Path("var/models"))
    courses: list[Course] = []
    print(f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}", flush=True)
    with running_machine(threads=options.threads, model=model, writer_steps=80) as machine:
        for seed, rule in itertools.product(seeds, rules):
            courses.append(Newcomer(machine, rule, size, seed).go())
            print(row_of(courses[-1]), flush=True)
            _write(options.results, courses, size)
    print(f"\n{summary_of(courses)}")
    return 0 if all(course.judged == size.comparisons for course in courses) else 1


def _write(path: Path | None, courses: list[Course], size: Size) -> None:
    if path is None:
        return
    values = {
        "command": " ".join(["python -m tests.benchmarks.first_hour", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores, {platform.platform()}",
        "size": asdict(size),
        "courses": [asdict(course) for course in courses],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=1))


if __name__ == "__main__":
    sys.exit(main())
