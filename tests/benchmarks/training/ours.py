"""One measurement of Rondo's trainer: a real run of two steps over the same judgments.

The first step warms up; with DPO it also computes the reference's log-probabilities, which the second
finds remembered. Prints one line of JSON. `python -m tests.benchmarks.training` starts it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.training.questions import decided_pairs, one_pair_each, rankings
from tests.rlhf.runs import make_run
from training.rlhf.runtime.run_folder import RunFolder
from training.rlhf.runtime.stopping import StopRequest
from training.rlhf.train import train_run


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--method", choices=["reward", "preference"], required=True)
    parser.add_argument("--judgments", type=int, required=True)
    parser.add_argument("--context", action="store_true")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=2)
    print(json.dumps(measure(parser.parse_args())))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds and CPU seconds of each step, per judgment; peak memory in MB."""
    torch.set_num_threads(options.threads)
    rows = rankings(options.judgments, context=options.context)
    if options.method == "preference":
        rows = one_pair_each(rows)
    steps = timed_steps()
    with tempfile.TemporaryDirectory() as scratch:
        folder = make_run(
            Path(scratch, "run"),
            options.model.resolve(),
            rows,
            method=options.method,
            settings={"context": options.context, "max_tokens": 1400 if options.context else 256},
            lora={"rank": 16},
            optimiser={
                "batch_size": options.judgments,
                "micro_batch_tokens": 2048,
                "epochs": 2,
                "save_every": 100,
                "evaluate_every": 0,
            },
            dtype=options.dtype,
        )
        code = train_run(folder, stop=StopRequest(folder), lock_wait_seconds=0)
        if code:
            raise SystemExit(code)
    first, second = steps
    return {
        "pairs": sum(len(decided_pairs(row)) for row in rows),
        "seconds": second["seconds"] / len(rows),
        "cpu": second["cpu"] / len(rows),
        "first_seconds": first["seconds"] / len(rows),
        "tokens": second["tokens"] / len(rows),
        "peak": peak_memory(),
    }


def timed_steps() -> list[dict[str, Any]]:
    """Rows that runs of this process write from now on, each with its step's processor seconds, `cpu`."""
    moments = [time.process_time()]
    steps: list[dict[str, Any]] = []
    record = RunFolder.record

    def timed(self: RunFolder, row: Mapping[str, Any]) -> None:
        now = time.process_time()
        steps.append({**row, "cpu": now - moments[-1]})
        record(self, row)
        moments.append(time.process_time())

    RunFolder.record = timed  # type: ignore[method-assign]
    return steps


def peak_memory() -> int:
    """The most memory that this process ever had, in MB of 2**20 bytes (Linux)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024


if __name__ == "__main__":
    main()
