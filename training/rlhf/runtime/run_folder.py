"""A run's folder while a trainer works in it: its lock, log, status and metrics."""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from training.contract import ContractError
from training.contract.files import canonical_json
from training.contract.run import (
    DROPPED_FILE,
    HEARTBEAT_SECONDS,
    LOCK_FILE,
    LOG_FILE,
    METRICS_FILE,
    MachineUse,
    RunSpec,
    RunState,
    RunStatus,
    append_machine_use,
    lock_content,
    read_holder,
    read_status,
    write_status,
)

# Device, precision and random seeds of a run.

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def resolve_device(requested: str, *, local_rank: int = 0) -> torch.device:
    """The device a run asks for; `auto` takes a GPU when there is one. Refuses one that is not there."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    kind = (
        next(name for name in ("cuda", "mps", "cpu") if available[name]) if requested == "auto" else requested
    )
    if not available[kind]:
        raise ContractError(f"spec, device: {kind} is not available on this machine; use 'auto' or 'cpu'")
    if kind != "cuda":
        return torch.device(kind)
    if local_rank >= (count := torch.cuda.device_count()):
        raise ContractError(
            f"spec, processes: process {local_rank} of this machine has no GPU, because it sees {count}; "
            "lower processes in the recipe, one for each GPU, or give the run more GPUs"
        )
    return torch.device(kind, local_rank)


def resolve_dtype(requested: str, device: torch.device) -> torch.dtype:
    """Precision of the frozen base; `auto` is float32 on a CPU and bfloat16 on a GPU."""
    if requested == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return _DTYPES[requested]


def has_fast_bfloat16(device: torch.device) -> bool:
    """Return whether matrices of bfloat16 are multiplied by instructions made for them."""
    # What torch itself asks before it hands them to oneDNN.
    return device.type != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def make_deterministic(device: torch.device) -> None:
    """Ask torch for the same bits every time: a must on a CPU, best effort on a GPU."""
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=device.type != "cpu")


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed every generator for one optimiser step of one process.

    A step's random numbers follow from seed, step and rank alone. So there is no generator
    state to save, and a resumed run draws what an uninterrupted one would have drawn.
    """
    mixed = np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64).item()
    random.seed(mixed)
    np.random.seed(mixed % 2**32)
    torch.manual_seed(mixed % 2**63)


def code_version(spec: RunSpec) -> str:
    """The version of Rondo that trains: as the spec says it, else the checkout's commit, else empty."""
    root = Path(__file__).resolve().parents[3]
    if spec.commit or not (root / ".git").exists():
        return spec.commit
    try:
        completed = subprocess.run(
            ["git", "rev-parse", "HEAD"],  # noqa: S607 - whichever git the machine has
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return completed.stdout.strip()


def library_versions() -> dict[str, str]:
    """Versions of the libraries that a checkpoint's numbers depend on."""
    return {name: version(name) for name in ("torch", "transformers", "peft")}


# ── Run folder ──

log = logging.getLogger("rondo.trainer")


class FolderInUseError(ContractError):
    """Another trainer works in the folder. Its status and log are its own: nothing may be written."""


@contextmanager
def locked(folder: Path, *, wait_seconds: float, give_up: Callable[[], bool]) -> Iterator[None]:
    """Hold the folder alone. A second trainer waits for the first, then raises `FolderInUseError`.

    The system lets go of the lock when its holder dies, however it dies. `give_up` is asked
    while waiting.
    """
    deadline = time.monotonic() + wait_seconds
    with (folder / LOCK_FILE).open("a+") as stream:
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline or give_up():
                    holder = read_holder(folder)
                    process = holder.pid if holder else "unknown"
                    raise FolderInUseError(
                        f"{folder}: another trainer (process {process}) works in this folder; "
                        "wait until it has ended or stop it"
                    ) from None
                time.sleep(0.1)
        stream.truncate(0)
        stream.write(lock_content())
        stream.flush()
        with _heartbeat(stream.fileno()):
            yield


@contextmanager
def _heartbeat(lock: int) -> Iterator[None]:
    """Touch the lock file every few seconds: a sign of life for machines that the lock does not reach."""
    ended = threading.Event()

    def touch() -> None:
        while not ended.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):
                os.utime(lock)

    thread = threading.Thread(target=touch, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class _Warnings(logging.Handler):
    """Collects warnings."""

    def __init__(self, into: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._into = into

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning that is not there yet; errors are reported otherwise."""
        if record.levelno == logging.WARNING and record.getMessage() not in self._into:
            self._into.append(record.getMessage())


class RunFolder:
    """Writes a trainer's reports. With `writes` off, as in all processes but the first, it is silent."""

    def __init__(self, path: Path, *, writes: bool = True) -> None:
        self.path = path
        self.writes = writes
        self.warnings: list[str] = []
        """Warnings since the log was opened; each once."""
        earlier = None
        with suppress(ContractError):
            earlier = read_status(path)
        self._step = earlier.step if earlier else 0
        self._total_steps = earlier.total_steps if earlier else 0

    def open_log(self) -> None:
        """Send the log to `log.txt` and to standard error."""
        log.setLevel(logging.INFO if self.writes else logging.ERROR)
        log.propagate = False
        handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
        if self.writes:
            handlers.append(logging.FileHandler(self.path / LOG_FILE, encoding="utf-8"))
        for old in log.handlers[:]:
            log.removeHandler(old)
            old.close()
        for handler in handlers:
            handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
            log.addHandler(handler)
        log.addHandler(_Warnings(self.warnings))

    def tell(
        self,
        state: RunState,
        message: str = "",
        *,
        step: int | None = None,
        total_steps: int | None = None,
        seconds_left: float | None = None,
    ) -> None:
        """Replace `status.json`. Steps left out are those reported last, also by an earlier trainer."""
        self._step = self._step if step is None else step
        self._total_steps = self._total_steps if total_steps is None else total_steps
        if self.writes:
            status = RunStatus(
                state=state,
                step=self._step,
                total_steps=self._total_steps,
                seconds_left=seconds_left,
                message=message,
                updated_at=time.time(),
            )
            write_status(self.path, status)

    def list_dropped(self, dropped: Iterable[Mapping[str, str]]) -> None:
        """Write `dropped.jsonl`: a line for each judgment or completion that cannot be learned from."""
        if self.writes:
            partial = self.path / f".{DROPPED_FILE}.partial"
            with partial.open("w", encoding="utf-8") as stream:
                stream.writelines(canonical_json(dict(entry)) + "\n" for entry in dropped)
            partial.replace(self.path / DROPPED_FILE)

    def trim_metrics(self) -> None:
        """Cut off a last line that a killed trainer left unfinished."""
        path = self.path / METRICS_FILE
        if self.writes and path.is_file():
            with path.open("rb+") as stream:
                whole = stream.read().rpartition(b"\n")
                stream.truncate(len(whole[0]) + len(whole[1]))

    def record(self, row: Mapping[str, Any]) -> None:
        """Append one line to `metrics.jsonl`. What is not finite is written as null."""
        if self.writes:
            plain = {
                key: None if isinstance(value, float) and not math.isfinite(value) else value
                for key, value in row.items()
            }
            with (self.path / METRICS_FILE).open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(plain, allow_nan=False) + "\n")


# ── Resources that a run uses on its host, reported every few seconds ──

_EVERY_SECONDS = 5.0


class MachineWriter:
    """Writes `machine.jsonl`. Learns nothing and changes nothing of what is learned."""

    def __init__(self, folder: RunFolder, device: torch.device) -> None:
        self._folder = folder
        self._device = device
        self._process = psutil.Process()
        self._process.cpu_percent()  # what the next call tells counts from here
        self._told_at: float | None = None
        self._tokens = 0.0
        self._seconds = 0.0

    def note(self, *, step: int, tokens: float | None, seconds: float) -> None:
        """Take note of a step that took so many tokens and seconds; write a line when one is due."""
        if tokens is not None:
            self._tokens += tokens
            self._seconds += seconds
        now = time.monotonic()
        if not self._folder.writes or (self._told_at is not None and now - self._told_at < _EVERY_SECONDS):
            return
        append_machine_use(self._folder.path, self._use(step))
        self._told_at = now
        self._tokens = self._seconds = 0.0

    def _use(self, step: int) -> MachineUse:
        gpu_memory = gpu_total = None
        name = str(self._device)
        if self._device.type == "cuda":
            gpu_memory = torch.cuda.memory_reserved(self._device)
            gpu_total = torch.cuda.get_device_properties(self._device).total_memory
            name = f"{self._device} ({torch.cuda.get_device_name(self._device)})"
        return MachineUse(
            time=time.time(),
            step=step,
            device=name,
            memory_bytes=self._process.memory_info().rss,
            cpu_cores=round(self._process.cpu_percent() / 100, 2),
            tokens_per_second=round(self._tokens / self._seconds, 1) if self._seconds else None,
            gpu_memory_bytes=gpu_memory,
            gpu_memory_total_bytes=gpu_total,
        )
