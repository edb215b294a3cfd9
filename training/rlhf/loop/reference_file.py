"""A reference's log-probabilities on disk: a file that only grows, one record for each example.

    header    what the numbers were computed with, one line
    record    key (16 bytes), number of answers (4), their log-probabilities (4 each), CRC-32 of that (4)

A record is appended as soon as it is computed, so a killed run has lost nothing; several processes may
append to one file. What follows a record that is cut off or damaged is forgotten.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.rlhf.runtime.run_folder import log

_START = struct.Struct("<16sI")
_END = struct.Struct("<I")


class ReferenceFile:
    """One such file."""

    def __init__(self, path: Path, computed_with: str) -> None:
        """`computed_with`: a word for model, snapshot and machine; a file with another is not read."""
        self._path = path
        self._header = f"rondo reference log-probabilities 1 {computed_with}\n".encode()
        self._broken = False

    def read(self) -> dict[bytes, Tensor]:
        """Return all records, by key; a file with anything but whole records is cut to those before."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            return self._give_up(error)
        if not content.startswith(self._header):
            log.info("%s is damaged or another's; the reference is computed again", self._path)
            self._cut(0)
            return {}
        records, whole = _records(content, len(self._header))
        if whole < len(content):
            log.info("%s is damaged after %d records; the rest is computed again", self._path, len(records))
            self._cut(whole)
        return records

    def append(self, key: bytes, values: Tensor) -> None:
        """Add a record. On a disk without room the run goes on without it."""
        if self._broken:
            return
        numbers = values.detach().cpu().to(torch.float32).numpy().astype("<f4")
        record = _START.pack(key, len(numbers)) + numbers.tobytes()
        record += _END.pack(zlib.crc32(record))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                if os.fstat(handle).st_size == 0:
                    record = self._header + record
                # One call: records of several processes stand one after the other.
                if os.write(handle, record) < len(record):
                    raise OSError("the disk is full")
            finally:
                os.close(handle)
        except OSError as error:
            self._give_up(error)

    def _cut(self, size: int) -> None:
        try:
            os.truncate(self._path, size)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> dict[bytes, Tensor]:
        log.warning("The reference cannot be kept for the next run: %s (%s)", self._path, error)
        self._broken = True
        return {}


def _records(content: bytes, place: int) -> tuple[dict[bytes, Tensor], int]:
    """Return the whole records from `place` on, and where they end."""
    records: dict[bytes, Tensor] = {}
    while place + _START.size + _END.size <= len(content):
        key, count = _START.unpack_from(content, place)
        values = place + _START.size
        end = values + 4 * count
        if end + _END.size > len(content) or _END.unpack_from(content, end)[0] != zlib.crc32(
            content[place:end]
        ):
            break
        records[key] = torch.from_numpy(np.frombuffer(content, "<f4", count, values).copy())
        place = end + _END.size
    return records, place
