"""A run's files between machines: what its trainer needs comes here, what it saves goes to the store."""

import dataclasses
import logging
import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.conf import settings
from django.utils.translation import gettext as _

from annotation.services.jobs.running import call_with_heartbeat, result_with_heartbeat
from training.contract import CHECKPOINT_FOLDER, STATE_FOLDER, RunSpec
from training.files import shared as shared_files
from training.files.run_folders import OWN_FILES, bring_run
from training.models import Run
from training.services.jobs.step_heartbeat import StepHeartbeat, StopAskedError

logger = logging.getLogger(__name__)

_SEND_EVERY_SECONDS = 10.0
_WAITS = (1.0, 3.0)
"""Seconds before what the store did not take at the end of a run is sent again."""


def gather(run: Run, heartbeat: StepHeartbeat) -> None:
    """Have here all that the run's trainer reads: its folder as saved, snapshot, base, other checkpoints.

    Without a store it is here already. Raises `StoreRefusal`.
    """
    if shared_files.shared() is None:
        return
    # Read before the thread begins: it has no connection to the database.
    base = Path(spec_here(run).base_model)
    checkpoints = checkpoints_of_run(run)
    snapshot = run.snapshot.path

    def bring() -> None:
        bring_run(run.path)
        shared_files.fetched(snapshot)
        shared_files.both_have(base)
        for folder in checkpoints:
            bring_checkpoint(Path(os.path.normpath(folder)))

    call_with_heartbeat(bring, lambda: heartbeat(message="fetching what the run needs"))


def checkpoints_of_run(run: Run) -> list[Path]:
    """Return the folders of the checkpoints that a run's trainer reads: parent, rewards, reference."""
    checkpoints = [run.path / place for place in _checkpoints_in(run.spec.get("settings", {}))]
    return [*checkpoints, run.parent.path] if run.parent else checkpoints


def bring_checkpoint(folder: Path) -> Path:
    """Return a checkpoint's folder, of the collection or of its run, after fetching it."""
    home = Path(settings.RONDO_HOME)
    if not folder.is_relative_to(home):
        return folder
    if folder.is_relative_to(settings.RONDO_RUNS):
        if not folder.exists():
            bring_run(folder.parent, but=(STATE_FOLDER,))
        return folder
    return shared_files.fetched(folder)


def _checkpoints_in(values: Any) -> Iterator[str]:
    """Yield the folders that the rewards and the reference of a run's settings name, at any depth."""
    if isinstance(values, Mapping):
        if values.get("reference_digest"):
            yield str(values["reference"])
        # A served one is a name on the model server.
        if isinstance(place := values.get("checkpoint"), str) and values.get("kind") != "served":
            yield place
        values = list(values.values())
    if isinstance(values, list | tuple):
        for value in values:
            yield from _checkpoints_in(value)


def spec_here(run: Run) -> RunSpec:
    """Return the run's spec with the local paths of the base and the parent."""
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
        if shared_files.shared() is None or (self._going and not self._going.done()):
            return
        self._note_how_it_went()
        if time.monotonic() - self._last >= _SEND_EVERY_SECONDS:
            self._last = time.monotonic()
            self._going = self._pool.submit(self._send)

    def finish(self, heartbeat: StepHeartbeat) -> None:
        """Send the folder as it is at the end, and stay until that is done.

        Raises `StoreRefusal`; where the store is away, after some tries.
        """
        if shared_files.shared() is None:
            return

        def beat() -> None:
            # What was saved because a person stopped it is sent before the step hears of that again.
            with suppress(StopAskedError):
                heartbeat(message="sending the files to the store")

        for wait in (*_WAITS, None):
            try:
                return result_with_heartbeat(self._pool.submit(self._send), beat)
            except shared_files.StoreAway:
                if wait is None:
                    raise
                time.sleep(wait)

    def _send(self) -> None:
        shared_files.publish(self._run.path, left_out=OWN_FILES, still_ours=self._refuse_when_over)

    def _refuse_when_over(self) -> None:
        if self._is_over:
            raise shared_files.StoreAway(
                "run_held_elsewhere", _("%(run)s: this worker no longer holds it."), run=self._run
            )

    def _note_how_it_went(self) -> None:
        """Log a failed upload; the next save sends it, because training does not wait for a store."""
        if self._going and (error := self._going.exception()):
            logger.warning("%s is not in the store yet: %s", self._run, error)
        self._going = None


def of_finished(run: Run) -> Path:
    """Return the checkpoint folder of a finished run, fetched if another machine trained it."""
    return bring_checkpoint(run.path / CHECKPOINT_FOLDER)
