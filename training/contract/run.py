"""Run folder: the trainer's input, and its output while it works."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from annotation.record.base import Figure, decode, record, require
from training.contract.files import (
    FORMAT_VERSION,
    canonical_json,
    read_json,
    require_format,
    write_atomically,
)
from training.contract.methods import Method, Settings, settings_from_json
from training.contract.methods.reward import RewardSettings

SPEC_FILE = "spec.json"
STATUS_FILE = "status.json"
METRICS_FILE = "metrics.jsonl"
EVALUATION_FILE = "evaluation.json"
LOG_FILE = "log.txt"
DROPPED_FILE = "dropped.jsonl"
"""Examples that the run could not learn from, one line each: judgment, completion (empty for all), reason."""
OUTPUT_FILE = "output.txt"
"""Output of the trainer's process apart from its log: warnings of libraries, a traceback."""
CANCEL_FILE = "cancel"
STATE_FOLDER = "state"
CHECKPOINT_FOLDER = "checkpoint"

REWARD_URL_VARIABLE = "RONDO_REWARD_URL"
REWARD_KEY_VARIABLE = "RONDO_REWARD_KEY"
"""Environment variables of a trainer: the model server that scores samples, and its key."""

EXIT_FINISHED = 0
EXIT_FAILED = 1
EXIT_STOPPED = 3
"""Exit status of a trainer that saved its state and can be started again."""

Sharding = Literal["none", "full", "node"]
Quantization = Literal["none", "int8", "nf4"]
"""Bits of a frozen base's linear layers: as loaded, 8-bit integers, 4-bit normal floats."""
RunState = Literal["starting", "running", "finished", "stopped", "failed"]


def _settings_of_method(values: Any, info: ValidationInfo) -> Any:
    """Decode settings as those of the method before them; refuse an unknown method."""
    is_json = isinstance(values, Mapping) and "method" in info.data
    return settings_from_json(info.data["method"], values) if is_json else values


@record
class RunSpec:
    """The trainer's input: `spec.json` in the run's folder."""

    method: Method
    base_model: str
    """Folder of the base model in transformers' format."""
    snapshot: str
    """Folder of the snapshot; a relative path starts at the run's folder."""
    snapshot_digest: str
    """Hash that the snapshot must have; the run refuses another."""
    settings: Annotated[
        Settings, BeforeValidator(_settings_of_method), AfterValidator(lambda settings: settings.resolved())
    ]
    seed: int = 0
    """Seeds initialisation, order and dropout."""
    parent: str | None = None
    """Folder of the checkpoint whose adapter training continues; None starts from the base."""
    parent_digest: str | None = None
    """Digest of that checkpoint's manifest; the run refuses another."""
    name: str = ""
    """Name of the checkpoint to be."""
    commit: str = ""
    """Version of Rondo that wrote the spec."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device to train on; auto takes a GPU when there is one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the frozen base; auto is float32 on a CPU and bfloat16 on a GPU.
    Adapters and heads stay float32. Where all weights are trained they stay float32 too, and products are
    computed in this precision."""
    sharding: Sharding = "none"
    """full: the processes of the run share one copy of the base, each keeping a part of every block (FSDP2),
    for a base that one GPU cannot hold; where all weights are trained, gradients and optimiser state too.
    node: those of each machine share a copy, so that weights do not cross the network. Slower; changes
    memory, not results."""
    quantization: Quantization = "none"
    """int8 or nf4: the frozen base's linear layers in 8 or 4 bits (QLoRA), for a base too large for memory.
    Changes what the base computes a little; the reference is the quantised base."""
    processes: Annotated[int, Field(ge=1, le=64)] = 1
    """Processes that train together on the machine, one for each GPU. The launcher starts them; who starts a
    trainer by hand says so by torchrun."""
    judgments: Literal["all", "policy", "evaluator"] = "all"
    """Which training judgments are learned from: all, or those on the prompts of one part (`part_of_prompt`).
    Held-out judgments are always evaluated. Runs on samples learn from none."""
    cache: str | None = None
    """Folder for what another run on the same snapshot need not compute again: tokens, log-probabilities of
    the reference. A relative path starts at the run's folder; null is `cache` in it. May be deleted."""
    format: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        require(
            self.settings.method == self.method, "spec", f"settings are those of {self.settings.method!r}"
        )
        require(
            self.quantization == "none"
            or self.settings.adapter == "lora"
            or (isinstance(self.settings, RewardSettings) and self.settings.is_fitted_at_once),
            "spec, quantization",
            "weights of a few bits cannot be trained; set it to 'none', or adapter to 'lora'",
        )
        require(
            self.quantization == "none" or self.sharding == "none",
            "spec, quantization",
            "a quantised base cannot be cut; set it or sharding to 'none'",
        )
        require(self.format == FORMAT_VERSION, "spec", f"format {self.format} is not {FORMAT_VERSION}")

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Build a spec from decoded JSON, settings resolved.

        In 1.0 TRL could train a run: its checkpoint is read as any other's, without TRL's options.
        """
        require_format(values, SPEC_FILE)
        return decode(cls, {name: value for name, value in values.items() if name != "trl"}, SPEC_FILE)

    def to_json(self) -> dict[str, Any]:
        """Return the resolved spec, every default written out."""
        return dataclasses.asdict(self)


def write_spec(run_folder: Path, spec: RunSpec) -> None:
    """Write `spec.json`, which makes the folder a run that can be started."""
    write_atomically(run_folder / SPEC_FILE, json.dumps(spec.to_json(), indent=2, sort_keys=True) + "\n")


def read_spec(run_folder: Path) -> RunSpec:
    """Read and validate `spec.json`. Refuses one of 1.0 that TRL was to train."""
    values = read_json(run_folder / SPEC_FILE)
    require(
        not values.get("trl"),
        SPEC_FILE,
        "Rondo no longer starts TRL; take trl out of the spec, and Rondo's trainer trains it",
    )
    return RunSpec.from_json(values)


@record
class RunStatus:
    """A trainer's progress; `status.json`, replaced as a whole after every step."""

    state: RunState
    step: int = 0
    total_steps: int = 0
    seconds_left: Figure | None = None
    message: str = ""
    """Current activity, or why it failed and what to do, for people."""
    updated_at: Figure = 0.0
    """Seconds since the epoch, by the trainer's clock."""


def write_status(run_folder: Path, status: RunStatus) -> None:
    """Replace the status."""
    write_atomically(run_folder / STATUS_FILE, canonical_json(dataclasses.asdict(status)) + "\n")


def read_status(run_folder: Path) -> RunStatus | None:
    """Return the status; None before the trainer has written one."""
    path = run_folder / STATUS_FILE
    if not path.is_file():
        return None
    return decode(RunStatus, read_json(path), str(path))


@record
class EvaluationReport:
    """The last evaluation whose state would have become the checkpoint. `evaluation.json`."""

    step: int
    """Optimiser steps that the evaluated state had taken."""
    figures: Mapping[str, Figure | None]
    """The held-out figures that its line of `metrics.jsonl` has too."""
    details: dict[str, Any]
    """Results that are no single number, by the name of their head or part. Of pairs (`score`,
    `preference`): `reliability` and `reliability_calibrated`, lists of bins {low, high, count,
    mean_probability, observed, observed_low, observed_high} of how sure the model was of its favourite,
    raw and divided by `temperature`; and `length`, the fields of `calibration.LengthBias`. Of a segment
    head: `precision_recall`, a list of points {threshold, precision, recall}, threshold a probability of a
    fault."""


def write_evaluation(run_folder: Path, report: EvaluationReport) -> None:
    """Replace the report. Numbers that are not finite are written as null."""
    values = _finite(dataclasses.asdict(report))
    write_atomically(run_folder / EVALUATION_FILE, canonical_json(values) + "\n")


def read_evaluation(run_folder: Path) -> EvaluationReport | None:
    """Return the report, numbers that were not finite as None; None before the first evaluation."""
    path = run_folder / EVALUATION_FILE
    if not path.is_file():
        return None
    return decode(EvaluationReport, read_json(path), str(path))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_metrics(run_folder: Path, *, after_step: int = -1) -> list[dict[str, Any]]:
    """Return the rows of `metrics.jsonl` after `after_step`, one per step, in order.

    A last line that is still being written is left for the next call. For a step repeated by a resumed run,
    the newer row counts.
    """
    path = run_folder / METRICS_FILE
    if not path.is_file():
        return []
    by_step: dict[int, dict[str, Any]] = {}
    with path.open(encoding="utf-8") as stream:
        for line in stream:
            if not line.endswith("\n"):
                break
            row = json.loads(line)
            if row["step"] > after_step:
                by_step[row["step"]] = row
    return [by_step[step] for step in sorted(by_step)]
