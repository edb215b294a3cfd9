"""From nothing to a loaded model, on a thread of its own, while the server already answers."""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import json
import logging
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from training.contract.files import write_atomically
from training.contract.log_lines import log_to_stderr
from training.rlhf import starter
from training.rlhf.starter import STARTER_NAME
from training.serving.catalogue import Catalogue
from training.serving.http import RequestError
from training.store import NotInStoreError, StoreError

if TYPE_CHECKING:
    from training.serving.model import Model


# Command line, keys and socket of the model server, for one base and for several. Imports no torch.

# ── Capacity limits of the model server. Imports no torch ──


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerLimits:
    """Bounds that the command line sets."""

    max_adapters: int = 8
    """Checkpoints in memory besides the base."""
    max_rows: int = 32
    """Answers that are written at a time; the others wait."""
    cache_tokens: int = 32768
    """Places for keys and values of prompts and answers, each as long as the longest running with it may
    become; the context's length at least. A place of SmolLM2-135M takes 46 KB in float32."""
    kept_tokens: int = 16384
    """Further places for what was read and written before, so that the next turn of a conversation reads
    only what is new."""
    queue: int = 32
    """Requests that may wait."""
    per_key: int = 64
    """Requests with one key that may wait and run."""
    seconds_per_request: float = 600.0
    """Default time limit of a request; it can ask for less, not for more."""


# ── Options ──


KEY_VARIABLE = "RONDO_MODEL_SERVER_KEY"
MORE_KEYS_VARIABLE = "RONDO_MODEL_SERVER_MORE_KEYS"
"""Further keys, a comma between them: one for each program that the bound per key is to count by itself."""
STORE_VARIABLE = "RONDO_STORE_URL"

logger = logging.getLogger("training.serving")


def keys_of_environment() -> list[str]:
    """Return the keys that clients may send, the web application's first; none where that is not set."""
    key = os.environ.get(KEY_VARIABLE, "")
    more = [other.strip() for other in os.environ.get(MORE_KEYS_VARIABLE, "").split(",")]
    return [key, *filter(None, more)] if key else []


def socket_url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def build_parser(
    *, prog: str = "python -m training.serving", description: str = "Rondo's model server."
) -> argparse.ArgumentParser:
    """Return the command line that the server of one base and the router share."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    add = parser.add_argument
    add("--models", type=Path, required=True, help="models folder; the starter model is fetched into it")
    add("--checkpoints", type=Path, required=True, help="folder of checkpoint folders")
    add("--base", default=STARTER_NAME, help="base model: a folder in the models folder")
    add(
        "--store",
        default=os.environ.get(STORE_VARIABLE, "").rstrip("/"),
        metavar="URL",
        help=f"store that machines share, to fetch models from (default: {STORE_VARIABLE})",
    )
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--port", type=int, default=8001, help="port to listen on; 0 takes a free one")
    add("--status", type=Path, help="file that always says what /health says")
    add("--device", default="auto", choices=["auto", "cpu", "cuda", "mps"])
    add("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    limits = ServerLimits()
    # fmt: off
    add("--max-adapters", type=_count, default=limits.max_adapters,
        help="checkpoints held in memory; those in use and the last used stay")
    add("--max-rows", type=_count, default=limits.max_rows, help="answers written at a time")
    add("--cache-tokens", type=_count, default=limits.cache_tokens,
        help="places for keys and values of prompts and answers; what does not fit waits")
    add("--kept-tokens", type=_count_or_none, default=limits.kept_tokens,
        help="places for earlier turns of conversations, which are then not read again; 0 keeps none")
    add("--queue", type=_count, default=limits.queue,
        help="requests that may wait; more are told to come back")
    add("--requests-per-key", type=_count, default=limits.per_key,
        help="requests of one key that may wait and run; more are told to come back")
    add("--seconds-per-request", type=_seconds, default=limits.seconds_per_request,
        help="what a request gets that asks for no less")
    # fmt: on
    add("--max-body-bytes", type=int, default=1024 * 1024)
    add("--seconds-to-stop", type=int, default=7, help="what running requests get to end in, after SIGTERM")
    add("--until-stdin-ends", action="store_true", help="stop when standard input ends, as its parent dies")
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _count_or_none(text: str) -> int:
    return 0 if int(text) == 0 else _count(text)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError("must be a number above 0")
    return value


def listen(host: str, port: int) -> socket.socket:
    """Return a socket bound before anything else begins, so that a taken port is the first thing said."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        if not ipaddress.ip_address(address[0]).is_loopback:
            logger.warning("Listening on %s: other machines can reach this server, with the key", host)
    except OSError:
        listening.close()
        raise
    return listening


def run_server(
    options: argparse.Namespace, serve: Callable[[argparse.Namespace, list[str], socket.socket], None]
) -> int:
    """Serve until a signal; return 0 after a graceful stop, 2 when the server cannot start."""
    log_to_stderr(logging.INFO)
    keys = keys_of_environment()
    if not keys:
        print(f"{KEY_VARIABLE} is not set. Set it to the key that clients must send.", file=sys.stderr)
        return 2
    try:
        listening = listen(options.host, options.port)
    except OSError as error:
        print(
            f"Cannot listen on {options.host} port {options.port}: {error.strerror or error}. "
            "Stop the program that holds the port, or choose another with --port.",
            file=sys.stderr,
        )
        return 2
    try:
        serve(options, keys, listening)
    except StoreError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


# ── Startup ──

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
        limits: ServerLimits,
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
