"""The output of `manage.py up`: one line per step, rewritten in place."""

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

_NAME_WIDTH = 15
# Seconds between lines of progress where they cannot be rewritten (a log file, CI).
_SECONDS_BETWEEN_PLAIN_LINES = 5.0


class StepScreen:
    """One line per step. On a terminal a step's line is rewritten until the step is done."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._rewrites = self._stream.isatty()
        self._open: tuple[str, str] | None = None
        self._last_plain = 0.0

    def progress(self, name: str, text: str, *, announce: bool = False) -> None:
        """Report the progress of a step. On a terminal this replaces the step's line.

        Elsewhere a line is written every few seconds, and with `announce` also at once when the words change
        and not only the figures.
        """
        if self._open == (name, text):
            return
        is_new = self._open is None or self._open[0] != name
        has_new_words = is_new or self._open is None or _words(self._open[1]) != _words(text)
        is_due = not is_new and time.monotonic() - self._last_plain >= _SECONDS_BETWEEN_PLAIN_LINES
        if self._rewrites:
            self._write(("\n" if is_new and self._open else "") + f"\r\033[K{_line(name, text)}")
        elif is_due or (announce and has_new_words):
            self._write(f"{_line(name, text)}\n")
        if is_due or is_new or has_new_words:
            self._last_plain = time.monotonic()
        self._open = (name, text)
        self._flush()

    def done(self, name: str, text: str) -> None:
        """Close a step's line with its result."""
        if self._rewrites and self._open:
            self._write("\r\033[K" if self._open[0] == name else "\n")
        self._write(f"{_line(name, text)}\n")
        self._open = None
        self._flush()

    def text(self, text: str = "") -> None:
        """Print lines that belong to no step."""
        if self._rewrites and self._open:
            self._write("\n")
        self._open = None
        self._write(f"{text}\n")
        self._flush()

    def _write(self, text: str) -> None:
        # Where the output is a file on a full disk, a line is lost and no process.
        with suppress(OSError):
            self._stream.write(text)

    def _flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    @contextmanager
    def step(self, name: str, while_at_it: str) -> Iterator[list[str]]:
        """Show a step while it runs; the caller appends its result to the list."""
        outcome: list[str] = []
        self.progress(name, while_at_it)
        yield outcome
        self.done(name, outcome[-1] if outcome else "done")


def _line(name: str, text: str) -> str:
    return f"  {name:<{_NAME_WIDTH}} {text}"


def _words(text: str) -> str:
    return re.sub(r"\d+", "", text)
