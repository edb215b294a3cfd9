"""One node of a job, from the fetching of files to the last heartbeat."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from types import FrameType

from training.contract import (
    CANCEL_FILE,
    EXIT_FAILED,
    EXIT_FINISHED,
    EXIT_STOPPED,
    ContractError,
    RunStatus,
    read_status,
)
from training.launchers.job_files import BEAT_SECONDS, Beat, JobFile, write_beat
from training.launchers.node.files import Files

_POLL_SECONDS = 0.2
_LOCK_WAIT_SECONDS = 300
_LEAVE_SECONDS = 180.0


class NodeRun:
    """The trainers of one node. On the first node it writes the heartbeat, and sends files to the store."""

    def __init__(
        self,
        files: Files,
        *,
        nodes: int,
        rank: int,
        processes: int,
        master: str,
        stop_with_parent: bool = False,
    ) -> None:
        self._files = files
        self._nodes = nodes
        self._rank = rank
        self._processes = processes
        self._master = master
        self._stop_with_parent = stop_with_parent
        self._started_at = time.time()
        self._number = 0
        self._ended = threading.Event()
        self._stops = False

    def run(self) -> int:
        """Run to the end; the exit status. Raises `ContractError` and `StoreError`."""
        signal.signal(signal.SIGTERM, self._on_signal)
        if self._stop_with_parent:
            threading.Thread(target=self._wait_for_end_of_input, name="parent", daemon=True).start()
        job = self._files.bring_run()
        if self._files.is_first:
            (self._files.folder / CANCEL_FILE).unlink(missing_ok=True)
        beats = threading.Thread(target=self._give_signs_of_life, name="heartbeat", daemon=True)
        beats.start()
        try:
            self._files.bring_needs(job)
            code = self._train(job)
        finally:
            self._ended.set()
            beats.join()
        if not self._files.is_first:
            return EXIT_FINISHED if code == 0 else EXIT_STOPPED
        code = self._code(code)
        self._beat(code)
        self._files.finish()
        return code if code >= 0 else EXIT_FAILED

    def _train(self, job: JobFile) -> int:
        """Start the trainers and stay until they have ended; the exit status, negative for a signal."""
        process = subprocess.Popen(
            self._command(job),
            stdin=subprocess.DEVNULL,
            # Threads that wait sleep instead of spinning.
            env={"OMP_WAIT_POLICY": "PASSIVE", **os.environ},
            start_new_session=True,
        )
        try:
            return self._watch(process)
        finally:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def _watch(self, process: subprocess.Popen[bytes]) -> int:
        """Pass a cancel on until the trainers have ended; those that do not hear it are killed."""
        stopped_at: float | None = None
        while (code := process.poll()) is None:
            now = time.monotonic()
            if self._stops or self._files.is_cancelled(now):
                # Between two steps the trainers of all nodes agree on it.
                (self._files.folder / CANCEL_FILE).touch()
                stopped_at = stopped_at or now
            if stopped_at is not None and now - stopped_at > _LEAVE_SECONDS:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_POLL_SECONDS)
        return code

    def _command(self, job: JobFile) -> list[str]:
        trainer = [*(job.trainer or (sys.executable, "-m", "training.rlhf"))]
        arguments = [str(self._files.folder), f"--wait-for-lock={_LOCK_WAIT_SECONDS}"]
        if self._nodes * self._processes == 1:
            return [*trainer, *arguments]
        host, _, port = self._master.rpartition(":")
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--no-python"]
        torchrun += ["--nnodes", str(self._nodes), "--node-rank", str(self._rank)]
        torchrun += ["--nproc-per-node", str(self._processes), "--max-restarts", "0"]
        torchrun += ["--master-addr", host, "--master-port", port]
        return [*torchrun, *trainer, *arguments]

    def _code(self, code: int) -> int:
        """Return the exit status of the run: torchrun returns 1 for every end but the good one."""
        status = self._status()
        if code == 0 or status is None:
            return code
        if status.state == "failed":
            return EXIT_FAILED
        if status.state == "stopped":
            return EXIT_STOPPED
        return code if code < 0 else -signal.SIGKILL

    def _status(self) -> RunStatus | None:
        try:
            status = read_status(self._files.folder)
        except ContractError:
            return None
        return status if status is not None and status.updated_at >= self._started_at else None

    def _give_signs_of_life(self) -> None:
        """Write heartbeats, and send what the trainer writes, until the trainers have ended."""
        while self._files.is_first:
            with suppress(OSError, ContractError):
                self._beat()
            self._files.offer(time.monotonic())
            if self._ended.wait(BEAT_SECONDS):
                return

    def _beat(self, code: int | None = None) -> None:
        """Replace the heartbeat, unless a newer job has the folder: its worker reads that one's alone."""
        if not self._files.are_of_this_job():
            return
        self._number += 1
        write_beat(
            self._files.folder,
            Beat(
                job=self._files.job,
                number=self._number,
                host=socket.gethostname(),
                started_at=self._started_at,
                code=code,
            ),
        )

    def _wait_for_end_of_input(self) -> None:
        # os.read, not sys.stdin: a thread inside a buffered reader breaks the interpreter's shutdown.
        while os.read(0, 4096):
            pass
        self._stops = True

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stops = True
