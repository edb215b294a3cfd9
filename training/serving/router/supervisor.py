"""Servers of bases: started on demand, put to sleep when idle or when memory is short."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from training.serving.errors import RequestError
from training.serving.router.bases import Bases
from training.serving.router.memory import Room
from training.serving.router.process import BaseProcess

logger = logging.getLogger("training.serving")

_POLL_SECONDS = 0.05
_TICK_SECONDS = 1.0
_SHORT_SHARE = 0.05
"""Free share of the memory below which idle bases are put to sleep."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
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
        policy: Policy,
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
        """Return the process of a base."""
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
