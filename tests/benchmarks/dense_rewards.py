"""PPO with dense, fine-grained rewards beside PPO with one preference reward, on the published qa-feedback.

python -m tests.benchmarks.dense_rewards var/models/SmolLM2-135M-Instruct \\
    $RONDO_TEST_DATA/qa_feedback/feedback.json --folder RUNS --seeds 0 1 2

Both arms take the same steps on the same prompts from the same policy. Their reward models learn from the
same 300 questions: segment heads and completeness from what people marked (Wu et al. 2023), a preference
head from their rankings of the four answers. Each arm is scored by the other's rewards too, which it is not
trained for. Told, over the last 50 questions, answered greedily: every head's reward, divergence from the
reference in nats an answer, length; the mean over seeds with a 95 % interval by Student's t. Runs lie in
--folder: a second call goes on where the first was stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from scipy.stats import t as student

from tests.benchmarks import fine_grained, training_quality
from training.contract import read_metrics
from training.contract.methods import Method, settings_from_json
from training.contract.run import EXIT_FINISHED, RunSpec, write_spec
from training.contract.snapshot import SnapshotRow, read_snapshot_header, write_snapshot
from training.rlhf.runtime.stopping import StopRequest
from training.rlhf.train import train_run

WEIGHTS: Mapping[str, float] = {"relevance": 0.3, "factuality": 0.5, "completeness": 0.3}
"""Those of Wu et al. 2023, table 6."""
TOLD = ("preference", *WEIGHTS)


def train(
    folder: Path, options: argparse.Namespace, method: Method, rows: Sequence[SnapshotRow], **more: Any
) -> Path:
    """Train a run to its end, or go on with it; its folder."""
    snapshot = folder.with_name(f"{folder.name}-snapshot")
    if not (folder / "spec.json").is_file():
        write_snapshot(snapshot, rows, project="qa-feedback", rounds=(1,))
        spec = RunSpec(
            method=method,
            base_model=str(options.model.resolve()),
            snapshot=f"../{snapshot.name}",
            snapshot_digest=read_snapshot_header(snapshot).digest,
            settings=settings_from_json(method, more["settings"]),
            name=folder.name,
            commit="0" * 40,
            dtype=options.dtype,
            device=options.device,
            seed=more.get("seed", 0),
        )
        write_spec(folder, spec)
    if train_run(folder, stop=StopRequest(folder), lock_wait_seconds=0) != EXIT_FINISHED:
        raise SystemExit(f"{folder}: the run did not end; see its log.txt")
    return folder


def reward_model(folder: Path, options: argparse.Namespace, kind: str) -> Path:
    """The checkpoint of one of the two reward models."""
    optimiser = {
        "learning_rate": 3e-4,
        "batch_size": 8,
        "epochs": options.reward_epochs,
        "evaluate_every": 0,
        "keep_best": False,
    }
    shared = {"lora": {"layers": options.reward_layers}, "max_tokens": 512, "optimiser": optimiser}
    if kind == "preference":
        ranked = training_quality.rows(options.data)
        rows: Sequence[SnapshotRow] = ranked[: fine_grained.train_size(len(ranked))]
        learned: dict[str, Any] = {"loss": "plackett_luce", "centring": 0.01}
    else:
        rows = fine_grained.rows(options.data)
        learned = {
            "loss": "none",
            "segments": [
                {"name": name, "granularity": granularity, "categories": list(categories)}
                for name, (granularity, categories) in fine_grained.HEADS.items()
                if name in WEIGHTS
            ],
            "completeness": {"name": "completeness"},
        }
    return train(folder / kind, options, "reward", rows, settings={**shared, **learned}) / "checkpoint"


def parts(checkpoints: Mapping[str, Path], names: Sequence[str], *, trained: bool) -> list[dict[str, Any]]:
    """Reward parts by head; one that is trained for is brought to mean 0 and deviation 1."""
    return [
        {
            "name": name,
            "kind": "model",
            "checkpoint": str(
                checkpoints["preference" if name == "preference" else "fine-grained"].resolve()
            ),
            "heads": {"score" if name == "preference" else name: 1.0},
            "weight": WEIGHTS.get(name, 1.0) if trained else 1.0,
            "normalise": trained,
        }
        for name in names
    ]


def policy_settings(options: argparse.Namespace, checkpoints: Mapping[str, Path], arm: str) -> dict[str, Any]:
    """PPO for the arm's rewards, watched by the other's."""
    trained_names = ("preference",) if arm == "holistic" else tuple(WEIGHTS)
    return {
        "rewards": parts(checkpoints, trained_names, trained=True),
        "watch": {
            "held_out": parts(
                checkpoints, [name for name in TOLD if name not in trained_names], trained=False
            )
        },
        "rollout": {"samples": 2, "max_tokens": options.new_tokens, "temperature": 0.7},
        "advantage": {"kind": "gae", "whiten": True},
        "kl": {"place": "reward", "kind": "k1", "beta": options.beta},
        "update": {"inner_epochs": 2, "minibatches": 1},
        "lora": {"rank": 16},
        "max_tokens": 512,
        "evaluation_prompts": 50,
        "optimiser": {
            "learning_rate": options.learning_rate,
            "batch_size": options.prompts,
            "max_steps": options.steps,
            "epochs": 100,
            "evaluate_every": 0,
            "save_every": 5,
            "keep_best": False,
        },
    }


def held_out(folder: Path) -> dict[str, float]:
    """The figures of a run's last evaluation."""
    last = read_metrics(folder)[-1]
    figures = {"divergence": last["held_out_kl"], "length": last["held_out_length"]}
    for name in TOLD:
        key = f"held_out_reward/{name}"
        figures[name] = last[key] if key in last else last[f"held_out_watched/{name}"]
    return figures


def interval(values: Sequence[float]) -> str:
    """Mean and half the width of its 95 % interval."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:.3f}"
    spread = statistics.stdev(values) / math.sqrt(len(values)) * student.ppf(0.975, len(values) - 1)
    return f"{mean:.3f} ± {spread:.3f}"


def main() -> None:
    """Train reward models and both arms, print a table in Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--prompts", type=int, default=8, help="a step, two answers each")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--beta", type=float, default=0.05)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--reward-epochs", type=int, default=2)
    parser.add_argument("--reward-layers", type=int, default=30)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()
    print(f"{torch.get_num_threads()} threads; load average before: {os.getloadavg()}", flush=True)
    checkpoints = {
        kind: reward_model(options.folder, options, kind) for kind in ("preference", "fine-grained")
    }
    questions = fine_grained.rows(options.data)
    by_arm: dict[str, list[dict[str, float]]] = {"fine-grained": [], "holistic": []}
    for seed in options.seeds:
        for arm, figures in by_arm.items():
            settings = policy_settings(options, checkpoints, arm)
            folder = options.folder / f"{arm}-{seed}"
            train(folder, options, "policy_gradient", questions, settings=settings, seed=seed)
            figures.append(held_out(folder))
            print(arm, seed, json.dumps(figures[-1]), flush=True)
    names = [*TOLD, "divergence", "length"]
    print(f"| arm | {' | '.join(names)} |\n|{'---|' * (len(names) + 1)}")
    for arm, runs in by_arm.items():
        print(f"| {arm} | {' | '.join(interval([run[name] for run in runs]) for name in names)} |")


if __name__ == "__main__":
    main()
