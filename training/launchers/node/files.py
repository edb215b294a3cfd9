"""A job's files on a node: those of a shared folder, or a copy that the store carries."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from training.contract import CANCEL_FILE, LOCK_FILE, OUTPUT_FILE, ContractError
from training.launchers.job_files import CANCELS, JobFile, read_job_file
from training.store import NotInStoreError, Store, StoreError

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
