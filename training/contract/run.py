"""Run folder: the trainer's input, and its output while it works."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import math
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from annotation.record.base import ContractError, Figure, Number, decode, record, require
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


# Files that a trainer writes into a run's folder while it runs: signs of life, resource use, samples.

LOCK_FILE = "lock"
HEARTBEAT_SECONDS = 5.0
STALE_SECONDS = 60.0
"""A trainer on another machine that has not touched its lock for this long counts as dead."""

Liveness = Literal["waiting", "starting", "running", "interrupted", "finished", "stopped", "failed"]
"""`RunState`, `waiting` before the first start, and `interrupted`: unfinished, and no trainer works on it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LockHolder:
    """The trainer that last wrote the lock file."""

    pid: str
    host: str
    """Empty where an older version of Rondo wrote the file."""
    seen_at: float
    """Time of its last heartbeat, in seconds since the epoch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderReport:
    """The state of a run's folder, with live and dead trainers distinguished."""

    state: Liveness
    status: RunStatus | None
    holder: LockHolder | None

    @property
    def sentence(self) -> str:
        """Return the report in one line, the state first."""
        step = f"step {self.status.step} of {self.status.total_steps}" if self.status else "no step yet"
        if self.state == "interrupted":
            return (
                f"interrupted: {step}; no trainer works in this folder. It can be resumed: start it again to "
                "go on from the last saved step"
            )
        if self.state in ("starting", "running") and self.holder is not None:
            ago = max(0.0, time.time() - self.holder.seen_at)
            where = f" on {self.holder.host}" if self.holder.host else ""
            return f"{self.state}: {step}; process {self.holder.pid}{where}, last heartbeat {ago:.0f} s ago"
        message = f"; {self.status.message}" if self.status and self.status.message else ""
        return f"{self.state}: {step}{message}"


def lock_content() -> str:
    """Return the content of a trainer's lock: process and host, a line each."""
    return f"{os.getpid()}\n{socket.gethostname()}\n"


def read_holder(folder: Path) -> LockHolder | None:
    """Return the trainer that last locked the folder; None before the first."""
    path = folder / LOCK_FILE
    try:
        lines = path.read_text(encoding="utf-8").split()
        seen_at = path.stat().st_mtime
    except OSError:
        return None
    pid, host = (*lines, "", "")[:2]
    return LockHolder(pid=pid or "unknown", host=host, seen_at=seen_at) if lines else None


def has_trainer(folder: Path) -> bool:
    """Return whether a trainer works in the folder."""
    holder = read_holder(folder)
    if holder is None:
        return False
    if is_locked_here(folder):
        return True
    is_here = holder.host in ("", socket.gethostname())
    return not is_here and time.time() - holder.seen_at < STALE_SECONDS


def report_of(folder: Path) -> FolderReport:
    """Report on the run in a folder. Raises `ContractError` if `status.json` cannot be read."""
    status = read_status(folder)
    holder = read_holder(folder)
    if has_trainer(folder):
        state: Liveness = status.state if status and status.state in ("starting", "running") else "starting"
    elif status is None:
        state = "waiting" if holder is None else "interrupted"
    else:
        state = "interrupted" if status.state in ("starting", "running") else status.state
    return FolderReport(state=state, status=status, holder=holder)


def is_locked_here(folder: Path) -> bool:
    """Return whether a trainer of this machine holds the folder.

    Tries a shared lock, which fails exactly while a trainer holds the folder exclusively.
    """
    try:
        with (folder / LOCK_FILE).open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


# ── Resource use of the trainer: `machine.jsonl` in a run's folder, a line every few seconds ──


MACHINE_FILE = "machine.jsonl"
_TAIL_BYTES = 1 << 16


@record
class MachineUse:
    """The resource use of a trainer's first process at one moment."""

    time: Figure
    """Seconds since the epoch."""
    step: int
    """Steps taken so far."""
    device: str
    """The device, such as `cpu` or `cuda:0 (NVIDIA H100)`."""
    memory_bytes: int
    """Resident memory of the process."""
    cpu_cores: Figure
    """Processor cores kept busy since the line before."""
    tokens_per_second: Figure | None = None
    """Of the steps since the line before; None if a step has no token count."""
    gpu_memory_bytes: int | None = None
    """GPU memory held by the process; None without a GPU."""
    gpu_memory_total_bytes: int | None = None


def append_machine_use(run_folder: Path, use: MachineUse) -> None:
    """Append a line."""
    with (run_folder / MACHINE_FILE).open("a", encoding="utf-8") as stream:
        stream.write(canonical_json(dataclasses.asdict(use)) + "\n")


def read_machine_use(run_folder: Path) -> list[MachineUse]:
    """Return the valid lines in the file's last 64 KiB, oldest first."""
    path = run_folder / MACHINE_FILE
    if not path.is_file():
        return []
    with path.open("rb") as stream:
        start = max(0, path.stat().st_size - _TAIL_BYTES)
        stream.seek(start)
        lines = stream.read().split(b"\n")
    uses = []
    # The first piece may be the end of a line, the last one the beginning of one.
    for line in lines[1 if start else 0 : -1]:
        try:
            uses.append(decode(MachineUse, json.loads(line), str(path)))
        except ValueError:
            continue
    return uses


# ── Samples of a policy's answers at each step, token by token: `samples.jsonl` in a run's folder ──


SAMPLES_FILE = "samples.jsonl"
WATCH_MARK = "Watch: "
"""Start, after its time, of a line of `log.txt` with a warning of the reward-hacking watch."""


@record
class SampledToken:
    """A sampled token. A number is None where it was not finite."""

    text: str
    """Empty for the token that ends an answer, and for all but the last of those that make one character."""
    reward: Number | None
    """Its immediate reward; the answer's reward is at the last token."""
    advantage: Number | None
    logp: Number | None = None
    """Under the policy that drew it, nats."""
    kl: Number | None = None
    """log π − log π_ref, nats; None without a reference."""


@record
class SampledAnswer:
    """A sampled answer with its rewards."""

    step: int
    """Counted from 1."""
    prompt: str
    """The prompt's id in the snapshot."""
    message: str
    """The prompt's last message."""
    text: str
    finish_reason: Literal["stop", "length"]
    """length: it was cut off."""
    reward: Number | None
    """None where it could not be scored."""
    reason: str
    """The reason why it could not be scored; empty if it was."""
    parts: dict[str, Any]
    """Score of each part of the reward by its name; None where a part has none."""
    tokens: tuple[SampledToken, ...]
    version: int | None = None
    """Optimiser steps that the policy which sampled it had taken; None where the trainer samples."""


def read_samples(run_folder: Path, step: int) -> list[SampledAnswer]:
    """Return the samples of one step in the order written; empty before the step has any.

    A last line that is still being written is left out.
    """
    path = run_folder / SAMPLES_FILE
    if not path.is_file():
        return []
    samples = []
    # The file holds every step: what is no candidate is not decoded.
    mark = f'"step":{step},'
    with path.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, start=1):
            if mark not in line or not line.endswith("\n"):
                continue
            where = f"{path.name} line {number}"
            try:
                values = json.loads(line)
            except json.JSONDecodeError as error:
                raise ContractError(f"{where}: not JSON ({error})") from None
            sample = decode(SampledAnswer, values, where)
            if sample.step == step:
                samples.append(sample)
    return samples


def read_watch_warnings(log_file: Path) -> list[str]:
    """Return the reward-hacking watch's warnings in the run's log, each once, in order."""
    if not log_file.is_file():
        return []
    with log_file.open(encoding="utf-8", errors="replace") as stream:
        # Before the mark stands the time, "2026-01-31 12:00:00 ".
        messages = (line[20:].rstrip("\n") for line in stream)
        return list(
            dict.fromkeys(line.removeprefix(WATCH_MARK) for line in messages if line.startswith(WATCH_MARK))
        )
