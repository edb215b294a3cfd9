"""Rondo's trainer beside TRL's: the same judgments, model, adapter, precision, machine, in turns.

    python -m venv /tmp/trl && /tmp/trl/bin/pip install torch==2.13.0 'trl==1.16.*' peft datasets accelerate
    python -m tests.benchmarks.training --model var/models/SmolLM2-135M-Instruct --peer /tmp/trl/bin/python

Two threads each; every measurement is a process of its own; of several rounds the median is printed. Figures
per ranking of TRL on all pairs are its time per pair times the pairs that these rankings decide; on sampled
pairs, two pairs a ranking, in which each answer stands once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.training.questions import as_pairs, one_pair_each, rankings
from tests.rlhf.runs import ROOT

Figures = dict[str, float]
ENVIRONMENT = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}
PARTS = ("reward", "context", "dpo")


def main() -> None:
    """Measure what is asked for, in turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--peer", default="/tmp/trl/bin/python", help="Python of TRL's environment")
    parser.add_argument("--part", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--judgments", type=int, default=8, help="per step of ours; half of it with context")
    parser.add_argument("--steps", type=int, default=3, help="of TRL's, the first not counted")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    options = parser.parse_args()
    print(f"{options.dtype}, two threads each; {os.cpu_count()} CPUs, load average {load()} before")
    for part in options.part:
        (dpo if part == "dpo" else reward)(options, context=part == "context")
    print(f"load average {load()} after")


def reward(options: argparse.Namespace, *, context: bool) -> None:
    """Reward model on 4-way rankings, figures per ranking."""
    count = max(1, options.judgments // 2) if context else options.judgments
    rows = rankings(count, context=context)
    with tempfile.TemporaryDirectory() as scratch:
        pairs = write_pairs(Path(scratch, "pairs.jsonl"), as_pairs(rows))
        runs: list[tuple[Figures, Figures]] = []
        for turn in range(options.rounds):
            mine = ours(options, "reward", count, *(["--context"] if context else []))
            size = ["--batch", "2", "--max-length", "1400"] if context else ["--batch", "8"]
            runs.append((mine, peer(options, "reward", pairs, "--seed", str(turn), *size)))
    per_ranking = runs[0][0]["pairs"] / count
    title = "reward model, 4-way rankings, " + ("with context passages" if context else "question alone")
    tell(title, "ranking", "Rondo", [mine for mine, _ in runs], 1.0, None)
    for name, factor in ((f"TRL, all {per_ranking:.1f} pairs", per_ranking), ("TRL, 2 sampled pairs", 2.0)):
        tell("", "ranking", name, [other for _, other in runs], factor, [mine for mine, _ in runs])


def dpo(options: argparse.Namespace, *, context: bool) -> None:
    """DPO on one pair of each question, figures per pair."""
    del context  # question alone
    rows = one_pair_each(rankings(options.judgments * 2, context=False))
    with tempfile.TemporaryDirectory() as scratch:
        pairs = write_pairs(Path(scratch, "pairs.jsonl"), as_pairs(rows))
        runs = [
            (
                ours(options, "preference", len(rows)),
                peer(options, "dpo-cached", pairs, "--seed", str(turn)),
                peer(options, "dpo", pairs, "--seed", str(turn)),
            )
            for turn in range(options.rounds)
        ]
    mine = [run[0] for run in runs]
    tell("DPO, question alone", "pair", "Rondo, cached reference", mine, 1.0, None)
    tell("", "pair", "TRL, cached reference", [run[1] for run in runs], 1.0, mine)
    tell("", "pair", "TRL, default", [run[2] for run in runs], 1.0, mine)
    first = statistics.median(run["first_seconds"] for run in mine)
    print(f"  Rondo's first step, reference and warming up included: {first:.2f} s a pair")


def ours(options: argparse.Namespace, method: str, count: int, *more: str) -> Figures:
    """One measurement of Rondo, in a process of its own."""
    module = ["-m", "tests.benchmarks.training.ours", "--method", method, "--judgments", str(count)]
    return measured([sys.executable, *module, "--model", str(options.model), "--dtype", options.dtype, *more])


def peer(options: argparse.Namespace, method: str, pairs: Path, *more: str) -> Figures:
    """One measurement of TRL, in a process of its own."""
    script = [options.peer, str(Path(__file__).with_name("peer.py")), "--method", method]
    chosen = ["--pairs", str(pairs), "--model", str(options.model.resolve()), "--dtype", options.dtype]
    return measured([*script, *chosen, "--steps", str(options.steps), *more])


def measured(command: list[str]) -> Figures:
    """Run a measurement; what its last line says."""
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-3000:]}")
    figures: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def tell(
    title: str, unit: str, name: str, runs: list[Figures], factor: float, reference: list[Figures] | None
) -> None:
    """One row: medians over the rounds, and the median of the rounds' ratios to Rondo's figures."""
    if title:
        print(f"\n{title}\n| | {unit}s/s | CPU s per {unit} | peak MB | Rondo is faster, wall | CPU time |")
        print("|---|---|---|---|---|---|")
    seconds = statistics.median(run["seconds"] * factor for run in runs)
    cpu = statistics.median(run["cpu"] * factor for run in runs)
    peak = statistics.median(run["peak"] for run in runs)
    ratios = ["", ""]
    if reference is not None:
        turns = list(zip(runs, reference, strict=True))
        ratios = [
            f"{statistics.median(run[key] * factor / mine[key] for run, mine in turns):.2f}×"
            for key in ("seconds", "cpu")
        ]
    print(f"| {name} | {1 / seconds:.3f} | {cpu:.2f} | {peak:.0f} | {ratios[0]} | {ratios[1]} |", flush=True)


def write_pairs(path: Path, pairs: list[dict[str, Any]]) -> Path:
    """Write JSON lines for TRL."""
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return path


def load() -> str:
    """The machine's load average over 1, 5 and 15 minutes."""
    return ", ".join(f"{value:.1f}" for value in os.getloadavg())


if __name__ == "__main__":
    main()
