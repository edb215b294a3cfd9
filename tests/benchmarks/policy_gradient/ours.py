"""One measurement of Rondo: a real run of the policy gradient, whose first step warms up.

Prints one line of JSON."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

import torch

from tests.benchmarks.training.ours import peak_memory, timed_steps
from training.contract.methods import settings_from_json
from training.contract.run import EXIT_FINISHED, LOG_FILE, RunSpec, write_spec
from training.contract.snapshot import Message, SnapshotPrompt, write_snapshot
from training.rlhf.__main__ import keep_freed_memory
from training.rlhf.runtime.stopping import StopRequest
from training.rlhf.train import train_run

_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""The same tokens as the others get: the prompt's text and nothing around it."""


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(2)
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as scratch:
        print(json.dumps(measure(options, Path(scratch))))


def measure(options: argparse.Namespace, scratch: Path) -> dict[str, float]:
    """Seconds of a step, of its sampling, CPU seconds, peak memory in MB."""
    steps = timed_steps()
    run = make_run(options, scratch)
    if train_run(run, stop=StopRequest(run), lock_wait_seconds=0) != EXIT_FINISHED:
        raise SystemExit((run / LOG_FILE).read_text()[-3000:])
    counted = steps[1:]
    peak = peak_memory()
    tied = max(step["tied"] for step in counted)
    if tied > 0.1:
        raise SystemExit(f"the answers to {tied:.0%} of the prompts earned the same: this is not comparable")
    names = {"seconds": "seconds", "generation": "seconds_rollout", "cpu": "cpu"}
    means = {name: sum(step[key] for step in counted) / len(counted) for name, key in names.items()}
    return {**means, "peak": peak}


def make_run(options: argparse.Namespace, scratch: Path) -> Path:
    """The run's folder, beside a snapshot of the prompts and the base under the bare template."""
    base = scratch / "base"
    base.mkdir()
    for file in options.model.iterdir():
        if file.name != "chat_template.jinja":
            os.symlink(file, base / file.name)
    (base / "chat_template.jinja").write_text(_TEMPLATE)
    prompts = [
        SnapshotPrompt(id=f"{index:04}", split="train", messages=(Message(role="user", content=text),))
        for index, text in enumerate(json.loads(options.prompts.read_text()))
    ]
    header = write_snapshot(scratch / "snapshot", [], project="names", rounds=(1,), prompts=prompts)
    folder = scratch / "run"
    settings = settings_from_json(
        "policy_gradient",
        {
            "adapter": "none",
            "optimiser": {
                "batch_size": options.batch,
                "micro_batch_tokens": 100_000,
                "learning_rate": 1e-5,
                "warmup_steps": 0,
                "epochs": 1,
                "save_every": 1000,
            },
            "rewards": [
                {
                    "name": "length",
                    "kind": "length",
                    "options": {"most": 0, "slack": 200, "unit": "characters"},
                }
            ],
            "rollout": {"samples": 8, "max_tokens": 10},
            "advantage": {"kind": "group_relative", "scale": False, "whiten": True},
            "kl": {"place": "none"},
            "update": {"inner_epochs": 3, "clip_high": 1.0},
            "evaluation_prompts": 0,
        },
    )
    spec = RunSpec(
        method="policy_gradient",
        base_model=str(base),
        snapshot=str(scratch / "snapshot"),
        snapshot_digest=header.digest,
        settings=settings,
        seed=options.seed,
        device="cpu",
        dtype="float32",
    )
    write_spec(folder, spec)
    return folder


if __name__ == "__main__":
    main()
