"""Seconds of a step of policy optimisation: Rondo, the course's loop and TRL's GRPOTrainer, in turns.

    python -m venv /tmp/trl && /tmp/trl/bin/pip install torch==2.13.0 'trl==1.16.*' peft datasets accelerate
    python -m tests.benchmarks.policy_gradient --model var/models/SmolLM2-135M-Instruct

A step: 16 names to be reversed × 8 samples of at most 10 tokens, then three updates of all weights by those
128 answers, in float32. Every measurement is a process of its own with the same prompts, two threads and a
reward that hardly ever ties (the answer's length in characters), so that no answer can be left out of an
update; of several rounds the medians and the median ratio are printed. The first step of each is not counted;
the course's loop warms up on two names.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.training.__main__ import Figures, load, measured
from training.rlhf.examples.reverse import read_names

WORDING = "Reverse the name: {name}. Answer:"
WHO = ("Rondo", "course", "TRL")


def main() -> None:
    """Measure in turns and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--peer", default="/tmp/trl/bin/python", help="Python of TRL's environment")
    parser.add_argument("--data", type=Path, required=True, help="names.json of the course")
    parser.add_argument("--only", nargs="+", choices=WHO, default=list(WHO))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--steps", type=int, default=1, help="that are counted, of each in a round")
    options = parser.parse_args()
    print(f"two threads each; {os.cpu_count()} CPUs, load average {load()} before", flush=True)
    runs: dict[str, list[Figures]] = {who: [] for who in options.only}
    with tempfile.TemporaryDirectory() as scratch:
        prompts = Path(scratch, "prompts.json")
        names = read_names(options.data).train[: options.prompts * (options.steps + 1)]
        prompts.write_text(json.dumps([WORDING.format(name=name) for name in names]))
        for turn in range(options.rounds):
            for who in options.only:
                runs[who].append(_measure(who, options, prompts, turn))
                print(f"round {turn + 1}, {who}: {runs[who][-1]}", flush=True)
    _tell(runs)
    print(f"load average {load()} after")


def _measure(who: str, options: argparse.Namespace, prompts: Path, turn: int) -> Figures:
    here = Path(__file__).parent
    command = {
        "Rondo": [sys.executable, "-m", "tests.benchmarks.policy_gradient.ours"],
        "course": [sys.executable, str(here / "course.py")],
        "TRL": [options.peer, str(here / "peer.py")],
    }[who]
    sizes = ["--batch", str(options.prompts), "--steps", str(options.steps), "--seed", str(turn)]
    return measured([*command, "--model", str(options.model.resolve()), "--prompts", str(prompts), *sizes])


def _tell(runs: dict[str, list[Figures]]) -> None:
    print("\n| | s per step | of it generation | CPU s per step | peak MB | Rondo is faster |")
    print("|---|---|---|---|---|---|")
    for who, some in runs.items():
        middle = {key: statistics.median(run[key] for run in some) for key in some[0]}
        ratio = ""
        if who != "Rondo" and "Rondo" in runs:
            turns = zip(some, runs["Rondo"], strict=True)
            ratio = f"{statistics.median(run['seconds'] / mine['seconds'] for run, mine in turns):.2f}×"
        print(
            f"| {who} | {middle['seconds']:.1f} | {middle['generation']:.1f} | {middle['cpu']:.1f} "
            f"| {middle['peak']:.0f} | {ratio} |"
        )


if __name__ == "__main__":
    main()
