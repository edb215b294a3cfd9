"""Files of a run: between machines, as ZIP streams, as TensorBoard events, as downloads."""

from __future__ import annotations

import dataclasses
import io
import logging
import math
import os
import stat
import struct
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from django.conf import settings
from django.utils.translation import gettext as _

from annotation.services.job_runs import call_with_heartbeat, result_with_heartbeat
from annotation.services.jobs import Heartbeat
from training.contract.run import CANCEL_FILE, CHECKPOINT_FOLDER, STATE_FOLDER, RunSpec
from training.figures.curves import standing_rows
from training.files import shared as shared_files
from training.files.shared import OWN_FILES, bring_run, folder_of
from training.models import Run
from training.selectors.runs import folded_of
from training.services.jobs import StopAskedError

# ── Files between machines ──


logger = logging.getLogger(__name__)

_SEND_EVERY_SECONDS = 10.0
_WAITS = (1.0, 3.0)
"""Seconds before what the store did not take at the end of a run is sent again."""


def gather(run: Run, heartbeat: Heartbeat) -> None:
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

    def __enter__(self) -> Sender:
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

    def finish(self, heartbeat: Heartbeat) -> None:
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


# ── Folders as ZIP streams ──
#
# No symbolic link is followed, and the secrets of this installation are struck out of every text file.


_PIECE = 1 << 18
_TEXT = (".txt", ".json", ".jsonl", ".md")
_STRUCK_OUT = b"[struck out]"
_SHORTEST_SECRET = 8
_SECRET_ENDINGS = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")


def secrets_in(environment: dict[str, str], *, known_secrets: Sequence[str] = ()) -> list[bytes]:
    """Return values that must leave no machine: of variables named like secrets, and `known_secrets`."""
    values = {value for name, value in environment.items() if name.endswith(_SECRET_ENDINGS)}
    values |= set(known_secrets)
    # The longest first: one may be the beginning of another.
    secrets = sorted((value for value in values if len(value) >= _SHORTEST_SECRET), key=len, reverse=True)
    return [secret.encode() for secret in secrets]


class _Sink(io.RawIOBase):
    """Buffer that `zipfile` writes to, emptied by its reader."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._pieces.append(piece)
        return len(piece)

    def drain(self) -> bytes:
        content = b"".join(self._pieces)
        self._pieces.clear()
        return content


def zip_of_folder(
    folder: Path, *, name: str, secrets: Sequence[bytes] = (), left_out: Sequence[str] = ()
) -> Iterator[bytes]:
    """Yield the bytes of an archive whose one folder `name` holds the regular files of `folder`.

    left_out: names, of files or folders directly in `folder`, that are not taken; hidden ones never are.
    A file that vanishes or grows meanwhile is taken as far as it goes: a run may be under way.
    """
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED, compresslevel=1, allowZip64=True) as archive:
        for path, place in _files(folder, left_out):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError:
                continue
            with os.fdopen(descriptor, "rb") as stream:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    continue
                entry = zipfile.ZipInfo(f"{name}/{place}", date_time=time.localtime(status.st_mtime)[:6])
                entry.compress_type = (
                    zipfile.ZIP_STORED if path.suffix == ".safetensors" else zipfile.ZIP_DEFLATED
                )
                with archive.open(
                    entry, "w", force_zip64=status.st_size > zipfile.ZIP64_LIMIT // 2
                ) as target:
                    for piece in _pieces(stream, secrets if path.suffix in _TEXT else ()):
                        target.write(piece)
                        yield sink.drain()
    yield sink.drain()


def _files(folder: Path, left_out: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """Regular files with their place below `folder`, in the order of names."""
    for parent, folders, files in os.walk(folder, followlinks=False):
        at = Path(parent)
        skipped = set(left_out) if at == folder else set()
        folders[:] = sorted(
            folder_name
            for folder_name in folders
            if not folder_name.startswith(".") and folder_name not in skipped
        )
        for name in sorted(files):
            path = at / name
            if not name.startswith(".") and name not in skipped and not path.is_symlink():
                yield path, path.relative_to(folder).as_posix()


def _pieces(stream: BinaryIO, secrets: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the file in pieces; with secrets line by line, each removed."""
    if not secrets:
        while piece := stream.read(_PIECE):
            yield piece
        return
    gathered: list[bytes] = []
    size = 0
    for line in stream:
        for secret in secrets:
            if secret in line:
                line = line.replace(secret, _STRUCK_OUT)
        gathered.append(line)
        size += len(line)
        if size >= _PIECE:
            yield b"".join(gathered)
            gathered, size = [], 0
    if gathered:
        yield b"".join(gathered)


# ── Metrics as an event file that TensorBoard reads ──
#
# The format is a sequence of TFRecords (length, its masked CRC-32C, data, its masked CRC-32C), each of them
# a protocol buffer of type `Event`: tensorflow/core/lib/io/record_writer.h and
# tensorflow/core/util/event.proto. Written here, in few lines, because the packages that write it bring
# torch or a copy of TensorBoard into the web process.


_POLYNOMIAL = 0x82F63B78
"""Castagnoli's, reversed."""
_MASK = 0xA282EAD8
_EVENT_TIME = b"\x09"  # field 1, a double
_EVENT_STEP = b"\x10"  # field 2, a varint
_EVENT_VERSION = b"\x1a"  # field 3, a string
_EVENT_SUMMARY = b"\x2a"  # field 5, a message
_SUMMARY_VALUE = b"\x0a"  # field 1, a message
_VALUE_TAG = b"\x0a"  # field 1, a string
_VALUE_NUMBER = b"\x15"  # field 2, a float


def event_file(rows: Iterable[Mapping[str, Any]], *, started_at: float) -> Iterator[bytes]:
    """Return an event file with the numbers of `rows`, one event for each row.

    started_at: seconds since the epoch. The wall time of an event is that and the seconds that the rows so
    far took by their own telling.
    """
    yield _record(_EVENT_TIME + struct.pack("<d", started_at) + _sized(_EVENT_VERSION, b"brain.Event:2"))
    now = started_at
    for row in rows:
        seconds = row.get("seconds")
        now += seconds if isinstance(seconds, int | float) and math.isfinite(seconds) else 0.0
        summary = b"".join(
            _sized(
                _SUMMARY_VALUE,
                _sized(_VALUE_TAG, name.encode()) + _VALUE_NUMBER + struct.pack("<f", _single(value)),
            )
            for name, value in row.items()
            if name != "step" and type(value) in (int, float) and math.isfinite(value)
        )
        yield _record(
            _EVENT_TIME
            + struct.pack("<d", now)
            + _EVENT_STEP
            + _varint(int(row["step"]))
            + _sized(_EVENT_SUMMARY, summary)
        )


def _single(value: float) -> float:
    """Return the value, clamped to the range of a 32-bit float."""
    greatest = 3.4028234663852886e38
    return max(-greatest, min(greatest, value))


def _sized(key: bytes, data: bytes) -> bytes:
    return key + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    """Seven bits a byte, the low ones first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


def _masked(data: bytes) -> int:
    checksum = crc32c(data)
    return ((checksum >> 15 | checksum << 17) + _MASK) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of some bytes."""
    checksum = 0xFFFFFFFF
    for byte in data:
        checksum = _TABLE[(checksum ^ byte) & 0xFF] ^ checksum >> 8
    return checksum ^ 0xFFFFFFFF


def _table() -> list[int]:
    entries = []
    for number in range(256):
        for _bit in range(8):
            number = number >> 1 ^ (_POLYNOMIAL if number & 1 else 0)
        entries.append(number)
    return entries


_TABLE = _table()


# ── Downloads ──


_LEFT_OUT = (CANCEL_FILE, "lock", "cache")
"""Of a run's folder: marks between processes, and what can be computed again."""


def archive_of(run: Run) -> tuple[str, Iterator[bytes]]:
    """Everything in a run's folder as a ZIP archive, without secrets: its name, and its bytes."""
    secrets = secrets_in(
        dict(os.environ), known_secrets=[settings.SECRET_KEY, settings.RONDO_MODEL_SERVER_KEY]
    )
    folder = folder_of(run, whole=True)
    return f"{run.name}.zip", zip_of_folder(folder, name=run.name, secrets=secrets, left_out=_LEFT_OUT)


def events_of(run: Run) -> tuple[str, Iterator[bytes]]:
    """Return a run's metrics as an event file for TensorBoard: its name, and its bytes."""
    started_at = (run.started_at or run.created_at).timestamp()
    rows = standing_rows(folder_of(run), folded_of(run, most_seconds=math.inf))
    name = f"events.out.tfevents.{int(started_at)}.{run.name}"
    return name, event_file(rows, started_at=started_at)
