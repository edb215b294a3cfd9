"""A trainer that draws its curves: what the demo project runs in place of `training.rlhf`.

    python -m webapp.demo.trainer RUN_DIR

It keeps to the contract of run folders: spec and snapshot in, metrics, log, status and checkpoint out. Its
checkpoints hold no weights. The policy of the demo's third round fails in the middle, as a run with too high
a learning rate does.
"""

import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from training.contract.checkpoint import Manifest, write_manifest
from training.contract.run import (
    CHECKPOINT_FOLDER,
    EXIT_FAILED,
    EXIT_FINISHED,
    LOG_FILE,
    METRICS_FILE,
    EvaluationReport,
    RunSpec,
    RunStatus,
    read_spec,
    write_evaluation,
    write_status,
)
from training.contract.snapshot import read_snapshot

STEPS = 80
EVALUATED_EVERY = 10
FAILS_AT = 34
FAILING_RUN = "round-3-policy"
_ACCURACY = (0.645, 0.69, 0.715)
"""Held-out accuracy of the reward models of the rounds, at their end."""


def train(folder: Path) -> int:
    """Write the output of a run; return its exit status."""
    spec = read_spec(folder)
    judged = sum(1 for _row in read_snapshot((folder / spec.snapshot).resolve()))
    fails = FAILING_RUN in spec.name
    last: dict[str, Any] = {}
    with (folder / METRICS_FILE).open("w") as metrics, (folder / LOG_FILE).open("w") as log:
        log.write(_line(f"{spec.name}: {judged} judgments, {spec.method}, seed {spec.seed} (simulated)"))
        for row in _metrics(spec, judged):
            if fails and row["step"] == FAILS_AT:
                message = (
                    f"The loss was not finite at step {FAILS_AT}, 5 times in a row. Lower the learning rate."
                )
                log.write(_line(message))
                _tell(folder, "failed", FAILS_AT, message)
                return EXIT_FAILED
            metrics.write(json.dumps(row) + "\n")
            last |= row
            if row["step"] % EVALUATED_EVERY == 0:
                log.write(_line(f"step {row['step']} of {STEPS}: loss {row['loss']:.3f}"))
    _write_evaluation(folder, spec, last)
    _write_checkpoint(folder / CHECKPOINT_FOLDER, spec, last)
    _tell(folder, "finished", STEPS, "")
    return EXIT_FINISHED


def _metrics(spec: RunSpec, judged: int) -> Iterator[dict[str, Any]]:
    chance = Random(spec.name)  # noqa: S311 - curves of a demo
    curves = {"reward": _reward, "policy_gradient": _policy_gradient}.get(spec.method, _preference)
    round_number = next((number for number in (1, 2, 3) if f"round-{number}-" in spec.name), 1)
    for step in range(1, STEPS + 1):
        rate = 1e-3 * min(1.0, step / 8) * (0.5 + 0.5 * math.cos(math.pi * step / STEPS))
        row = {
            "step": step,
            **curves(step, chance, round_number, judged),
            "gradient_norm": 0.6 + 1.5 * math.exp(-step / 12) + abs(chance.gauss(0, 0.12)),
            "learning_rate": rate,
            "seconds_per_step": 2.4 + abs(chance.gauss(0, 0.2)),
        }
        yield {name: round(value, 5) for name, value in row.items()}


def _progress(step: int, pace: float = 22.0) -> float:
    """Return a share of the way from 0 to nearly 1 that slows down."""
    return 1 - math.exp(-step / pace)


def _held_out(step: int, accuracy: float, judged: int) -> dict[str, float]:
    if step % EVALUATED_EVERY:
        return {}
    held_out = max(10, judged // 12)
    half_width = 1.96 * math.sqrt(accuracy * (1 - accuracy) / held_out)
    loss = 0.6931 - 0.42 * (accuracy - 0.5)
    return {
        "held_out_accuracy": accuracy,
        "held_out_accuracy_low": accuracy - half_width,
        "held_out_accuracy_high": accuracy + half_width,
        "held_out_log_loss": loss,
        "held_out_loss": loss,
        "held_out_constant_log_loss": 0.6931,
        "held_out_length_log_loss": 0.6874,
        "held_out_decided": float(held_out),
        "held_out_judgments": float(held_out),
    }


def _reward(step: int, chance: Random, round_number: int, judged: int) -> dict[str, float]:
    way = _progress(step)
    accuracy = 0.5 + (_ACCURACY[round_number - 1] - 0.5) * way
    return {
        "loss": 0.693 - 0.19 * way + chance.gauss(0, 0.025),
        "accuracy": min(1.0, max(0.0, 0.5 + 0.27 * way + chance.gauss(0, 0.07))),
        "margin": 0.75 * way + chance.gauss(0, 0.06),
        "reward_mean": 0.1 * way + chance.gauss(0, 0.03),
        **_held_out(step, accuracy + chance.gauss(0, 0.008), judged),
    }


def _preference(step: int, chance: Random, round_number: int, judged: int) -> dict[str, float]:
    way = _progress(step, 30)
    return {
        "loss": 0.693 - 0.16 * way + chance.gauss(0, 0.02),
        "accuracy": min(1.0, max(0.0, 0.5 + 0.24 * way + chance.gauss(0, 0.07))),
        "margin": 0.6 * way + chance.gauss(0, 0.05),
        "log_ratio": -0.9 * way + chance.gauss(0, 0.05),
        "reference_kl": 1.4 * way + abs(chance.gauss(0, 0.06)),
        **_held_out(step, 0.5 + 0.14 * way + chance.gauss(0, 0.01), judged),
    }


def _policy_gradient(step: int, chance: Random, round_number: int, judged: int) -> dict[str, float]:
    way = _progress(step, 35)
    return {
        "loss": -0.02 * way + chance.gauss(0, 0.01),
        "reward": -0.4 + 1.5 * way + chance.gauss(0, 0.12),
        "reward/people": -0.4 + 1.5 * way + chance.gauss(0, 0.12),
        "kl": 3.2 * way + abs(chance.gauss(0, 0.15)),
        "entropy": 2.1 - 0.5 * way + chance.gauss(0, 0.04),
        "length": 74 + 22 * way + chance.gauss(0, 3),
        "unfinished": max(0.0, 0.16 - 0.12 * way + chance.gauss(0, 0.02)),
        "clip_fraction": 0.02 + 0.05 * way + abs(chance.gauss(0, 0.008)),
    }


def _write_evaluation(folder: Path, spec: RunSpec, last: dict[str, Any]) -> None:
    """Write the last evaluation: its figures, and how sure the model was of what people chose."""
    figures = {name: value for name, value in last.items() if name.startswith("held_out_")}
    if not figures:
        return
    bins = []
    for place, probability in enumerate((0.55, 0.65, 0.75, 0.85, 0.95)):
        count = round(figures["held_out_judgments"] * (0.34, 0.27, 0.2, 0.12, 0.07)[place])
        seen = 0.5 + (probability - 0.5) * 0.8
        half_width = min(0.5, 1.96 * math.sqrt(seen * (1 - seen) / max(1, count)))
        bins.append(
            {
                "low": probability - 0.05,
                "high": probability + 0.05,
                "count": count,
                "mean_probability": probability,
                "observed": seen,
                "observed_low": max(0.0, seen - half_width),
                "observed_high": min(1.0, seen + half_width),
            }
        )
    head = "score" if spec.method == "reward" else "preference"
    details = {head: {"reliability": bins}}
    write_evaluation(folder, EvaluationReport(step=STEPS, figures=figures, details=details))


def _line(message: str) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n"


def _tell(folder: Path, state: Any, step: int, message: str) -> None:
    status = RunStatus(state=state, step=step, total_steps=STEPS, message=message, updated_at=time.time())
    write_status(folder, status)


def _write_checkpoint(folder: Path, spec: RunSpec, metrics: dict[str, float]) -> None:
    folder.mkdir(exist_ok=True)
    write_manifest(
        folder,
        Manifest(
            kind="reward" if spec.method == "reward" else "policy",
            name=spec.name,
            base_model=Path(spec.base_model).name,
            base_digest="0" * 64,
            spec=spec.to_json(),
            snapshot_digest=spec.snapshot_digest,
            seed=spec.seed,
            commit=spec.commit,
            steps=STEPS,
            metrics={name: value for name, value in metrics.items() if name.startswith("held_out_")},
            dropped=[],
            heads=["score"] if spec.method == "reward" else [],
            files={},
            versions={},
            parent_digest=spec.parent_digest,
            warnings=["Simulated: this checkpoint of the demo project holds no weights."],
        ),
    )


if __name__ == "__main__":
    sys.exit(train(Path(sys.argv[1])))
