"""The server of one base: a process that is started, watched and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from training.serving.router.memory import resident_bytes

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
