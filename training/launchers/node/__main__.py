"""Run a run's trainer as one node of a job: `python -m training.launchers.node RUN_DIR --job NAME`.

Ray and command templates start this, once on each node. It needs neither the database nor a connection to the
web. Exit status: that of the trainer on the first node, 0 or 3 on the others.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

from training.contract import ContractError
from training.contract.run import (
    CANCEL_FILE,
    EXIT_FAILED,
    EXIT_FINISHED,
    EXIT_STOPPED,
    LOCK_FILE,
    OUTPUT_FILE,
    RunStatus,
    read_status,
)
from training.launchers import BEAT_SECONDS, CANCELS, Beat, JobFile, read_job_file, write_beat
from training.store import NotInStoreError, Store, StoreError

# ── A job's files on a node: those of a shared folder, or a copy that the store carries ──


STORE_VARIABLE = "RONDO_STORE_URL"
_LOCAL = (LOCK_FILE, CANCEL_FILE, OUTPUT_FILE, "cache")
"""Files of a run's folder that stay on the node."""
_SEND_EVERY_SECONDS = 10.0
_LOOK_EVERY_SECONDS = 3.0


class Files:
    """The run's folder and what its trainer reads. Without a store all of it is there already."""

    def __init__(self, folder: Path, *, job: str, is_first: bool) -> None:
        self.folder = folder
        self.job = job
        self.is_first = is_first
        url = os.environ.get(STORE_VARIABLE, "")
        self._store = Store(url) if url else None
        self._key = f"{folder.parent.name}/{folder.name}"
        self._next_send = self._next_look = 0.0
        self._thread: threading.Thread | None = None

    def bring_run(self) -> JobFile:
        """Have the run's folder here; return the job's file. Raises `ContractError` for that of another."""
        if self._store is not None:
            self._store.refresh(self._key, self.folder, local=_LOCAL, wait=True)
        job = read_job_file(self.folder)
        if job.job != self.job:
            raise ContractError(
                f"{self.folder}: the folder waits for job {job.job}, and this is {self.job}; a newer one was "
                "submitted, so this one has nothing to do"
            )
        return job

    def are_of_this_job(self) -> bool:
        """Return whether no newer job was submitted into the folder."""
        return read_job_file(self.folder).job == self.job

    def bring_needs(self, job: JobFile) -> None:
        """Have here what the trainer reads besides the run's folder."""
        if self._store is not None:
            for need in job.needs:
                self._bring_one(self._store, need)

    def _bring_one(self, store: Store, need: str) -> None:
        into = self.folder.parents[1] / need
        try:
            if need.startswith(f"{self.folder.parent.name}/"):
                store.refresh(need, into, left_out=("state",), local=_LOCAL, wait=True)
            else:
                store.fetch(need, into)
        except NotInStoreError:
            raise ContractError(f"{need} is not in the store; send it there: manage.py share_files") from None

    def offer(self, now: float) -> None:
        """Send what is new, on a thread, unless that was done a moment ago or goes on."""
        if self._store is None or not self.is_first or now < self._next_send:
            return
        if self._thread is None or not self._thread.is_alive():
            self._next_send = now + _SEND_EVERY_SECONDS
            self._thread = threading.Thread(target=self._send_or_say, name="sender", daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Send the folder as it is at the end. Raises `StoreError`."""
        if self._store is None or not self.is_first:
            return
        if self._thread is not None:
            self._thread.join()
        self._store.publish(self._key, self.folder, left_out=_LOCAL)

    def is_cancelled(self, now: float) -> bool:
        """Return whether the job is asked to save and stop by an entry in the store."""
        if self._store is None or not self.is_first or now < self._next_look:
            return False
        self._next_look = now + _LOOK_EVERY_SECONDS
        try:
            return self._store.listing(f"{CANCELS}/{self.job}") is not None
        except StoreError as error:
            sys.stderr.write(f"{error}\n")
            return False

    def _send_or_say(self) -> None:
        assert self._store is not None  # noqa: S101 - asked for by `offer`
        try:
            self._store.publish(self._key, self.folder, left_out=_LOCAL)
        except StoreError as error:
            # Training does not wait for a store; the next save sends it.
            sys.stderr.write(f"{error}\n")


# ── Run ──


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


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        prog="python -m training.launchers.node", description="Run one node of a training job."
    )
    parser.add_argument("run_folder", type=Path, metavar="RUN_DIR", help="folder of the run on this node")
    parser.add_argument("--job", required=True, help="name of the job, as in job.json")
    parser.add_argument("--nodes", type=int, default=1, help="nodes of the job (default: 1)")
    parser.add_argument("--processes", type=int, default=1, help="trainers on each node (default: 1)")
    parser.add_argument("--rank", type=int, default=0, help="number of this node, from 0")
    parser.add_argument(
        "--rank-from", metavar="VARIABLE", help="environment variable that holds the number of this node"
    )
    parser.add_argument(
        "--master", default="127.0.0.1:29400", metavar="HOST:PORT", help="where the first node is reached"
    )
    parser.add_argument(
        "--stop-with-parent", action="store_true", help="save and stop when standard input ends"
    )
    arguments = parser.parse_args()
    rank = arguments.rank
    if arguments.rank_from:
        text = os.environ.get(arguments.rank_from, "")
        if not text.isdecimal():
            parser.error(f"{arguments.rank_from} is {text!r}; it must hold the number of this node")
        rank = int(text)
    try:
        files = Files(arguments.run_folder.absolute(), job=arguments.job, is_first=rank == 0)
        return NodeRun(
            files,
            nodes=arguments.nodes,
            rank=rank,
            processes=arguments.processes,
            master=arguments.master,
            stop_with_parent=arguments.stop_with_parent,
        ).run()
    except (ContractError, StoreError) as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
