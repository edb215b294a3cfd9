"""A file to which clients append what they sent and what the server said it stored.

A line is on the disk before the client goes on, so it records what a person saw, whatever dies afterwards.
"""

import json
import os
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PROJECT = "tea"
"""The project in which everybody works."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """A person's answer to one comparison."""

    key: str
    """The idempotency key that the page bore."""
    assignment: int
    choice: str
    """The field of the form: `win:TOKEN` or `win:TOKEN:STRENGTH`."""
    comment: str


class Ledger:
    """Lines of JSON in one file; safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._stream = path.open("a", encoding="utf-8")
        self.path = path
        self.acknowledged = 0
        self.tries = 0

    def sent(self, judgment: Said) -> None:
        """Before it leaves the first time."""
        self._write({"what": "sent", **asdict(judgment)})

    def stored(self, judgment: Said, *, tries: int) -> None:
        """The server has answered that it stored it."""
        self._write({"what": "acknowledged", "tries": tries, **asdict(judgment)})
        self.acknowledged += 1
        self.tries += tries

    def refused(self, judgment: Said, *, status: int) -> None:
        """The server has answered that it did not store it."""
        self._write({"what": "refused", "status": status, **asdict(judgment)})

    def _write(self, line: Mapping[str, Any]) -> None:
        with self._lock:
            self._stream.write(json.dumps(line) + "\n")
            self._stream.flush()
            os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Nothing more is said."""
        self._stream.close()


def faults_in(ledger: Path, stored: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the keys of answers by what is wrong with them in the database; all lists must be empty.

    stored: every judgment with `key`, `assignment`, `choice`, `comment`, `annotator` and `comparison`.
    """
    lines = [json.loads(line) for line in ledger.read_text(encoding="utf-8").splitlines()]
    rows = {row["key"]: row for row in stored}
    places = Counter((row["annotator"], row["comparison"]) for row in stored)
    keys = Counter(row["key"] for row in stored)
    fields = [name for name in Said.__slots__ if name != "key"]
    faults = {
        "lost": [line["key"] for line in lines if line["what"] == "acknowledged" and line["key"] not in rows],
        "refused, yet stored": [
            line["key"] for line in lines if line["what"] == "refused" and line["key"] in rows
        ],
        "stored with another content": [
            line["key"]
            for line in lines
            if line["key"] in rows and any(rows[line["key"]][name] != line[name] for name in fields)
        ],
        "stored twice": [key for key, times in keys.items() if times > 1],
        "said twice by one person": [
            row["key"] for row in stored if places[row["annotator"], row["comparison"]] > 1
        ],
        "never sent": sorted(set(rows) - {line["key"] for line in lines}),
    }
    return {kind: which for kind, which in faults.items() if which}
