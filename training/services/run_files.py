"""A run's files between machines: what its trainer needs comes here, what it saves goes to the store."""

import dataclasses
import logging
import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError
from pathlib import Path
from typing import Any

from django.conf import settings

from training import files
from training.contract import CHECKPOINT_FOLDER, STATE_FOLDER, RunSpec
from training.models import Run
from training.run_folders import OWN_FILES, bring_run
from training.services.claims import Pulse, StopAskedError

logger = logging.getLogger(__name__)

_SEND_EVERY_SECONDS = 10.0
_WAITS = (1.0, 3.0)
"""Seconds before what the store did not take at the end of a run is sent again."""
_POLL_SECONDS = 0.5


def gather(run: Run, pulse: Pulse) -> None:
    """Have here all that the run's trainer reads: its folder as saved, snapshot, base, other checkpoints.

    Without a store it is here already. Raises `StoreRefusal`.
    """
    if files.shared() is None:
        return
    # Read before the thread begins: it has no connection to the database.
    base = Path(spec_here(run).base_model)
    checkpoints = [run.path / place for place in _checkpoints_in(run.spec.get("settings", {}))]
    checkpoints += [run.parent.path] if run.parent else []
    snapshot = run.snapshot.path

    def bring() -> None:
        bring_run(run.path)
        files.fetched(snapshot)
        files.both_have(base)
        for folder in checkpoints:
            bring_checkpoint(Path(os.path.normpath(folder)))

    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gather")
    try:
        _while_it_goes_on(pool.submit(bring), pulse, "fetching what the run needs")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def bring_checkpoint(folder: Path) -> Path:
    """A checkpoint's folder in the collection, or the one that a run has just written; brought here."""
    home = Path(settings.RONDO_HOME)
    if not folder.is_relative_to(home):
        return folder
    if folder.is_relative_to(settings.RONDO_RUNS):
        if not folder.exists():
            bring_run(folder.parent, but=(STATE_FOLDER,))
        return folder
    return files.fetched(folder)


def _checkpoints_in(values: Any) -> Iterator[str]:
    """The folders that rewards and reference of a run's settings name, wherever they stand in them."""
    if isinstance(values, Mapping):
        if values.get("reference_digest"):
            yield str(values["reference"])
        if isinstance(place := values.get("checkpoint"), str):
            yield place
        values = list(values.values())
    if isinstance(values, list | tuple):
        for value in values:
            yield from _checkpoints_in(value)


def spec_here(run: Run) -> RunSpec:
    """What the trainer is told, with the base and the parent where they lie on this machine."""
    spec = RunSpec.from_json(run.spec)
    base = Path(settings.RONDO_MODELS) / Path(spec.base_model).name
    parent = str(run.parent.path) if run.parent else spec.parent
    return dataclasses.replace(spec, base_model=str(base), parent=parent)


class Sender:
    """Sends a run's folder to the store while its trainer writes it, never in the way of the heartbeat.

    Without a store it does nothing. Leaving the context ends it: what was not whole by then is not seen.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sender")
        self._going: Future[None] | None = None
        self._last = time.monotonic()
        self._is_over = False

    def __enter__(self) -> "Sender":
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def offer(self) -> None:
        """Send what is new, unless that was done a moment ago or goes on."""
        if files.shared() is None or (self._going and not self._going.done()):
            return
        self._note_how_it_went()
        if time.monotonic() - self._last >= _SEND_EVERY_SECONDS:
            self._last = time.monotonic()
            self._going = self._pool.submit(self._send)

    def finish(self, pulse: Pulse) -> None:
        """Send the folder as it is at the end, and stay until that is done.

        Raises `StoreRefusal`; where the store is away, after some tries.
        """
        if files.shared() is None:
            return
        for wait in (*_WAITS, None):
            try:
                _while_it_goes_on(
                    self._pool.submit(self._send), pulse, "sending the files to the store", to_its_end=True
                )
                return
            except files.StoreAway:
                if wait is None:
                    raise
                time.sleep(wait)

    def _send(self) -> None:
        files.publish(self._run.path, left_out=OWN_FILES, still_ours=self._refuse_when_over)

    def _refuse_when_over(self) -> None:
        if self._is_over:
            raise files.StoreAway(f"{self._run}: this worker no longer holds it.")

    def _note_how_it_went(self) -> None:
        """What could not be sent now is sent with the next save: training does not wait for a store."""
        if self._going and (error := self._going.exception()):
            logger.warning("%s is not in the store yet: %s", self._run, error)
        self._going = None


def _while_it_goes_on(
    future: "Future[None]", pulse: Pulse, message: str, *, to_its_end: bool = False
) -> None:
    while True:
        try:
            pulse(message=message)
        except StopAskedError:
            # What was saved because a person stopped it is sent before the step hears of that again.
            if not to_its_end:
                raise
        try:
            return future.result(timeout=_POLL_SECONDS)
        except NotYetError:
            continue


def of_finished(run: Run) -> Path:
    """The checkpoint that a finished run wrote, brought here where another machine trained it."""
    return bring_checkpoint(run.path / CHECKPOINT_FOLDER)
