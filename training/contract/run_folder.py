"""Files that a trainer writes into a run's folder while it runs: signs of life, resource use, samples."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from annotation.record.base import ContractError, Figure, Number, decode, record
from training.contract.files import canonical_json
from training.contract.run import RunStatus, read_status

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
