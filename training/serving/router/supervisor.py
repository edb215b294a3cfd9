"""Servers of bases: started on demand, put to sleep when idle or when memory is short."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import json
import logging
import math
import os
import shutil
import struct
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from training.contract import ContractError, read_manifest
from training.contract.checkpoint import CHECKPOINT_NAME
from training.rlhf import starter
from training.serving.catalogue import Catalogue, model_entry, unknown_model
from training.serving.http import RequestError

# ── The base models that can be served, and the base that each model stands on ──


@dataclass(frozen=True, slots=True)
class Bases:
    """All models by name. A folder that appears whole in the models folder is a base at once."""

    models_folder: Path
    catalogue: Catalogue
    """Of the default base; it knows the checkpoints of all."""

    @property
    def default(self) -> str:
        """Return the base that is served first."""
        return self.catalogue.base_name

    def names(self) -> list[str]:
        """Names of all bases, the default first."""
        try:
            folders = sorted(self.models_folder.iterdir())
        except OSError:
            folders = []
        here = {
            folder.name
            for folder in folders
            if CHECKPOINT_NAME.fullmatch(folder.name) and starter.is_complete(folder)
        }
        shared = self.catalogue.shared
        others = here | (shared.bases() if shared else frozenset())
        return [self.default, *sorted(others - {self.default})]

    def folder(self, base: str) -> Path:
        """Return a base's folder."""
        return self.models_folder / base

    def base_of(self, model: str) -> str:
        """Return the base that a model stands on.

        Raises `RequestError`: 404 where there is no such model, 409 where its base is not here.
        """
        names = self.names()
        if model in names:
            return model
        base = self._base_of_checkpoint(model)
        if base in names:
            return base
        if len(names) == 1:
            # The folder of the base may bear another name: its server compares digests.
            return self.default
        message = f"Checkpoint '{model}' stands on base '{base}', which is not here. Add that base model."
        raise RequestError(409, message, code="base_missing", param="model")

    def _base_of_checkpoint(self, model: str) -> str:
        shared = self.catalogue.shared
        if not CHECKPOINT_NAME.fullmatch(model):
            raise unknown_model(model)
        if shared and not (self.catalogue.checkpoints_folder / model).exists():
            if model not in shared.checkpoints():
                raise unknown_model(model)
            return shared.base(model) or self.default
        try:
            return read_manifest(self.catalogue.folder(model)).base_model
        except ContractError:
            # The server of the default base says what is wrong with it.
            return self.default

    def entries(self) -> list[dict[str, Any]]:
        """Return all models as OpenAI's `/v1/models` lists them, each with its base."""
        bases = self.names()
        checkpoints = [name for name in self.catalogue.names()[1:] if name not in bases]
        return [self.entry(name) for name in (*bases, *checkpoints)]

    def entry(self, name: str) -> dict[str, Any]:
        """Return one model. Raises `RequestError` 404 where there is none."""
        if name in self.names():
            return model_entry(name, self.folder(name) / "config.json", kind="starter") | {"base": name}
        return self.catalogue.entry(name) | {"base": self._base_of_checkpoint(name)}


# ── Memory of base models: what one needs, what is free, and on which GPU ──


_PROCESS_BYTES = 700 * 1024**2
"""Python, torch and its libraries."""
_NVIDIA = ("nvidia-smi", "--query-gpu=index,memory.free,memory.total", "--format=csv,noheader,nounits")
_WEIGHT_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """Memory of one device, in bytes."""

    gpu: int | None
    """The GPU's number; None for the processor's memory."""
    free: int
    total: int


def rooms(device: str) -> list[Room]:
    """Return the devices that bases can be placed on: the GPUs where there are any, else the memory."""
    gpus = _gpus() if device in ("auto", "cuda") else []
    if gpus:
        return gpus
    memory = psutil.virtual_memory()
    return [Room(gpu=None, free=memory.available, total=memory.total)]


def _gpus() -> list[Room]:
    program = shutil.which(_NVIDIA[0])
    if program is None:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        output = subprocess.run(
            [program, *_NVIDIA[1:]], capture_output=True, text=True, timeout=5, check=True
        ).stdout
        gpus = [
            Room(gpu=int(index), free=int(free) << 20, total=int(total) << 20)
            for index, free, total in csv.reader(output.splitlines(), skipinitialspace=True)
        ]
    except (OSError, subprocess.SubprocessError, ValueError):
        return []
    if visible is None:
        return gpus
    return [room for room in gpus if str(room.gpu) in [name.strip() for name in visible.split(",")]]


def needed_bytes(folder: Path, *, places: int, dtype: str, on_gpu: bool) -> int:
    """Return the memory that serving the base in `folder` takes: weights, keys and values, the process.

    places: tokens whose keys and values are kept. 0 for a base whose files are not here yet.
    """
    size = _WEIGHT_BYTES.get(dtype, 2 if on_gpu else 4)
    parameters = _parameters_in(folder)
    if not parameters:
        return 0
    process = 0 if on_gpu else _PROCESS_BYTES
    return (parameters + places * _per_place(folder)) * size + process


def _parameters_in(folder: Path) -> int:
    try:
        return sum(_parameter_count(file) for file in folder.glob("*.safetensors"))
    except (OSError, ValueError, KeyError, struct.error):
        return 0


def _parameter_count(file: Path) -> int:
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")


def _per_place(folder: Path) -> int:
    """Return the numbers that the keys and values of one token are."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        heads = int(config["num_attention_heads"])
        size = int(config.get("head_dim") or int(config["hidden_size"]) // heads)
        return 2 * int(config["num_hidden_layers"]) * int(config.get("num_key_value_heads") or heads) * size
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0


def resident_bytes(pid: int) -> int:
    """Return the memory that a process holds of the machine; 0 for one that has ended."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


# ── The server of one base: a process that is started, watched and stopped ──


logger = logging.getLogger("training.serving")

ASLEEP = "asleep"
_SECONDS_TO_STOP = 12.0


@dataclass(slots=True, eq=False)
class BaseProcess:
    """One base and its server. For one event loop."""

    name: str
    command: Sequence[str]
    status_file: Path
    in_flight: int = 0
    """Requests that it answers or that wait for it: it is not stopped meanwhile."""
    needed: int = 0
    """Bytes that its start reckoned with."""
    gpu: int | None = None
    used_at: float = field(default_factory=time.time)
    problem: str = ""
    """Why it ended by itself, the last time."""
    _process: asyncio.subprocess.Process | None = None

    @property
    def is_running(self) -> bool:
        """Return whether its process runs, ready or not."""
        return self._process is not None and self._process.returncode is None

    @property
    def status(self) -> dict[str, Any]:
        """Return state, message, progress and address as the server says them; `asleep` without a process."""
        if not self.is_running:
            message = self.problem or f"{self.name} is asleep; the next request wakes it"
            return {"state": "failed" if self.problem else ASLEEP, "message": message, "progress": None}
        try:
            status: dict[str, Any] = json.loads(self.status_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {"state": "starting", "message": f"{self.name} is starting", "progress": None}
        return status

    @property
    def memory_bytes(self) -> int:
        """Return the memory that its process holds of the machine."""
        return resident_bytes(self._process.pid) if self._process and self.is_running else 0

    async def start(self, gpu: int | None) -> None:
        """Start the server; it answers before its model is loaded."""
        self.status_file.unlink(missing_ok=True)
        self.problem, self.gpu, self.used_at = "", gpu, time.time()
        environment = {**os.environ, **({} if gpu is None else {"CUDA_VISIBLE_DEVICES": str(gpu)})}
        logger.info("Starting the server of %s%s", self.name, "" if gpu is None else f" on GPU {gpu}")
        self._process = await asyncio.create_subprocess_exec(
            *self.command, env=environment, stdin=asyncio.subprocess.PIPE
        )

    def note_end(self) -> None:
        """Write down that the process ended by itself."""
        if self._process is not None and self._process.returncode is not None:
            code = self._process.returncode
            self.problem = f"The server of {self.name} ended with status {code}; its log says why"
            logger.error("%s", self.problem)
            self._process = None

    async def stop(self) -> None:
        """End the server: by SIGTERM, and by SIGKILL where it does not end in time."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        logger.info("Stopping the server of %s", self.name)
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _SECONDS_TO_STOP)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


# ── Supervisor ──


_POLL_SECONDS = 0.05
_TICK_SECONDS = 1.0
_SHORT_SHARE = 0.05
"""Free share of the memory below which idle bases are put to sleep."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SleepPolicy:
    """Rules for when a base sleeps."""

    idle_seconds: float = 900.0
    """Seconds without a request after which a base sleeps; the one used last stays awake."""
    memory_bytes: int | None = None
    """Most memory for all bases together; None is what the device has."""
    wait_seconds: float = 60.0
    """Seconds that a request waits for its base to wake."""


class Supervisor:
    """Knows the process of each base. For one event loop."""

    def __init__(
        self,
        bases: Bases,
        policy: SleepPolicy,
        *,
        command: Callable[[str, Path], list[str]],
        needed: Callable[[str], int],
        rooms: Callable[[], list[Room]],
        folder: Path,
    ) -> None:
        """command: of the server of a base, given a status file. needed: bytes that a base takes. rooms: the
        devices as they are now. folder: for status files."""
        self._bases, self._policy = bases, policy
        self._command, self._needed, self._rooms, self._folder = command, needed, rooms, folder
        self._processes: dict[str, BaseProcess] = {}
        self._placing = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None

    @property
    def processes(self) -> list[BaseProcess]:
        """Return the process of each base that is here, the default first."""
        return [self.process(name) for name in self._bases.names()]

    def process(self, name: str) -> BaseProcess:
        if name not in self._processes:
            status = self._folder / f"{name}.json"
            self._processes[name] = BaseProcess(name, self._command(name, status), status)
        return self._processes[name]

    async def start(self) -> None:
        """Wake the default base, and begin to watch."""
        self._watch = asyncio.create_task(self._go_on())
        with contextlib.suppress(RequestError):
            await self._wake(self.process(self._bases.default))

    async def stop(self) -> None:
        """Stop all of them."""
        if self._watch is not None:
            self._watch.cancel()
        await asyncio.gather(*(process.stop() for process in self._processes.values()))

    @contextlib.asynccontextmanager
    async def using(self, name: str) -> AsyncIterator[str]:
        """Inside, the base is awake; yields the address of its server.

        Raises `RequestError` 503 where it is not ready in time, failed, or finds no room.
        """
        process = self.process(name)
        process.in_flight += 1
        try:
            await self._wake(process)
            yield await self._ready(process)
        finally:
            process.in_flight -= 1
            process.used_at = time.time()

    async def _ready(self, process: BaseProcess) -> str:
        deadline = time.monotonic() + self._policy.wait_seconds
        while True:
            status = process.status
            if status["state"] == "ready":
                return str(status["url"])
            if status["state"] in ("failed", "fetching", "stopping") or not process.is_running:
                break
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(_POLL_SECONDS)
        share = f" ({status['progress']:.0%})" if status.get("progress") is not None else ""
        raise RequestError(503, f"{status['message']}{share}.", code="model_not_ready", retry_after=5)

    async def _wake(self, process: BaseProcess) -> None:
        if process.is_running:
            return
        async with self._placing:
            process.note_end()
            if not process.is_running:
                process.needed = await asyncio.to_thread(self._needed, process.name)
                await process.start(await self._make_room(process))

    async def _make_room(self, process: BaseProcess) -> int | None:
        """Return the GPU for a base, after the least recently used ones went to sleep where memory is short.

        None is the processor's memory.
        """
        while True:
            rooms = [self._within_limit(room) for room in await asyncio.to_thread(self._rooms)]
            best = max(rooms, key=lambda room: room.free)
            if process.needed <= best.free:
                return best.gpu
            awake = [other for other in self._processes.values() if other.is_running]
            if process.needed > max(room.total for room in rooms):
                raise _too_large(process, max(room.total for room in rooms))
            if not awake:
                # Other programs hold the memory: the system decides.
                return best.gpu
            idle = [other for other in awake if not other.in_flight]
            if not idle:
                raise RequestError(
                    503,
                    f"There is no memory for {process.name} beside "
                    f"{', '.join(other.name for other in awake)}, which are in use. "
                    "Ask again when they are idle.",
                    code="no_room",
                    retry_after=5,
                )
            await min(idle, key=lambda other: other.used_at).stop()

    def _within_limit(self, room: Room) -> Room:
        limit = self._policy.memory_bytes
        if limit is None:
            return room
        held = sum(
            max(process.needed, process.memory_bytes)
            for process in self._processes.values()
            if process.is_running
        )
        return Room(gpu=room.gpu, free=min(room.free, limit - held), total=min(room.total, limit))

    async def _go_on(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            try:
                await self._tick()
            except Exception:
                logger.exception("Watching the servers of bases failed")

    async def _tick(self) -> None:
        """Note those that ended; put to sleep what is idle, or least recently used if memory is short."""
        names = await asyncio.to_thread(self._bases.names)
        for process in list(self._processes.values()):
            process.note_end()
            if process.name not in names and not process.in_flight:
                # The base model was removed.
                await process.stop()
                del self._processes[process.name]
        async with self._placing:
            awake = sorted((other for other in self._processes.values() if other.is_running), key=_used_at)
            short = len(awake) > 1 and await self._is_short()
            # The one that was used last stays, whatever it holds.
            for process in awake[:-1]:
                if process.in_flight:
                    continue
                if short or time.time() - process.used_at > self._policy.idle_seconds:
                    short = False
                    await process.stop()

    async def _is_short(self) -> bool:
        rooms = [self._within_limit(room) for room in await asyncio.to_thread(self._rooms)]
        return any(room.free < room.total * _SHORT_SHARE for room in rooms)


def _used_at(process: BaseProcess) -> float:
    return process.used_at


def _too_large(process: BaseProcess, total: int) -> RequestError:
    # No 503: asking again would not help.
    return RequestError(
        422,
        f"{process.name} needs about {process.needed / 2**30:.1f} GiB, and bases may take "
        f"{total / 2**30:.1f} here. Lower --cache-tokens, raise --memory-gib, or use a larger machine.",
        code="too_large",
    )
