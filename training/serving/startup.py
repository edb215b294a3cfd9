"""From nothing to a loaded model, on a thread of its own, while the server already answers."""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from training.contract import write_atomically
from training.rlhf import starter
from training.serving.catalogue import Catalogue
from training.serving.http import RequestError
from training.serving.options import Limits
from training.store import NotInStoreError, StoreError

if TYPE_CHECKING:
    from training.serving.model import Model

logger = logging.getLogger(__name__)

State = Literal["starting", "fetching", "loading", "ready", "failed", "stopping"]

_LOOK_SECONDS = 0.3
_SECONDS_TO_STOP = 2.0
_RETRY_SECONDS = 60.0
"""After a failed fetch: the network may be back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """State of the model server: the body of /health and of the status file."""

    state: State
    message: str
    """In words for people; for "failed", why, and what to do."""
    progress: float | None = None
    """Share of the fetch that is done, 0 to 1; None when unknown."""
    url: str = ""
    updated_at: float = 0.0
    """Seconds since the epoch."""


class Startup:
    """Fetches and loads the model, and says where it is."""

    def __init__(
        self,
        catalogue: Catalogue,
        *,
        device: str,
        dtype: str,
        limits: Limits,
        url: str,
        status_file: Path | None,
    ) -> None:
        self._catalogue = catalogue
        self._device = device
        self._dtype = dtype
        self._limits = limits
        self._url = url
        self._status_file = status_file
        self._stopping = threading.Event()
        self._model: Model | None = None
        self._status = Status(state="starting", message="The model server is starting", url=url)
        self._thread = threading.Thread(target=self._run, name="startup", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._tell("starting", "The model server is starting")
        self._thread.start()

    def stop(self) -> None:
        """End a fetch that goes on. Loading cannot be ended; its thread dies with the process."""
        self._stopping.set()
        self._tell("stopping", "The model server is stopping")
        self._thread.join(_SECONDS_TO_STOP)

    @property
    def status(self) -> Status:
        """Return the current status."""
        return self._status

    @property
    def loaded_model(self) -> Model | None:
        """Return the model, once it is loaded."""
        return self._model

    @property
    def model(self) -> Model:
        """Return the loaded model. Raises `RequestError` 503 while there is none."""
        if self._model is None:
            status = self._status
            share = f" ({status.progress:.0%})" if status.progress is not None else ""
            raise RequestError(503, f"{status.message}{share}.", code="model_not_ready", retry_after=5)
        return self._model

    def _tell(self, state: State, message: str, progress: float | None = None) -> None:
        if self._stopping.is_set() and state != "stopping":
            return
        self._status = Status(
            state=state, message=message, progress=progress, url=self._url, updated_at=time.time()
        )
        if self._status_file is not None:
            # A full disk must not stop the server from answering.
            with contextlib.suppress(OSError):
                write_atomically(self._status_file, json.dumps(asdict(self._status)) + "\n")

    def _run(self) -> None:
        try:
            while not self._stopping.is_set() and not self._fetch():
                self._stopping.wait(_RETRY_SECONDS)
            if not self._stopping.is_set():
                self._tell("loading", f"Loading {self._catalogue.base_name}")
                self._model = self._load()
                self._tell("ready", f"{self._catalogue.base_name} is ready")
                if self._catalogue.shared is not None:
                    self._catalogue.shared.offer_base(self._catalogue.base_folder)
        except Exception as error:
            logger.exception("The model cannot be loaded")
            self._tell("failed", f"{self._catalogue.base_name} cannot be loaded: {error}")

    def _fetch(self) -> bool:
        """Return whether the base model is there; the starter is fetched, any other base must be brought."""
        folder = self._catalogue.base_folder
        if starter.is_complete(folder) or self._fetch_shared(folder):
            return True
        if folder.name != starter.STARTER_NAME:
            self._tell("failed", f"There is no model in {folder}. Put one there and start again.")
            return False
        self._tell("fetching", f"Fetching {folder.name}")
        # Another process: converting takes a gigabyte, which it gives back when it ends.
        command = [sys.executable, "-m", "training.rlhf.starter", "--into", str(folder.parent)]
        with _fetching(command) as process:
            while process.poll() is None:
                if self._stopping.wait(_LOOK_SECONDS):
                    return False
                self._show_fetch(folder.parent)
        if process.returncode == 0:
            return True
        progress = starter.read_progress(folder.parent)
        reason = progress.error if progress is not None else ""
        self._tell("failed", reason or f"Fetching {folder.name} ended with status {process.returncode}")
        return False

    def _fetch_shared(self, folder: Path) -> bool:
        """Return whether the base model came from the store that machines share."""
        if (shared := self._catalogue.shared) is None:
            return False
        self._tell("fetching", f"Looking for {folder.name} in the store")
        try:
            shared.fetch_base(folder)
        except NotInStoreError:
            return False
        except StoreError as error:
            logger.warning("%s is not fetched from the store: %s", folder.name, error)
            return False
        return starter.is_complete(folder)

    def _show_fetch(self, models_folder: Path) -> None:
        progress = starter.read_progress(models_folder)
        if progress is not None and progress.stage == "fetching":
            share = progress.done / progress.total if progress.total else None
            self._tell("fetching", progress.message, share)

    def _load(self) -> Model:
        # Here, not at the top: torch takes seconds to import, and the server answers before that.
        from training.serving.model import load_model

        return load_model(self._catalogue, device=self._device, dtype=self._dtype, limits=self._limits)


@contextlib.contextmanager
def _fetching(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(_SECONDS_TO_STOP)
