"""A run's metrics as an event file that TensorBoard reads.

The format is a sequence of TFRecords (length, its masked CRC-32C, data, its masked CRC-32C), each of them a
protocol buffer of type `Event`: tensorflow/core/lib/io/record_writer.h and tensorflow/core/util/event.proto.
Written here, in few lines, because the packages that write it bring torch or a copy of TensorBoard into the
web process.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

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
        for _ in range(8):
            number = number >> 1 ^ (_POLYNOMIAL if number & 1 else 0)
        entries.append(number)
    return entries


_TABLE = _table()
