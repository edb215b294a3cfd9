"""Compares results for `mathematics.py`: a JSON object a line in, one a line out. Knows nothing of Rondo.

In: `reference`, `answer`, `bare` (the answer is a result and nothing else). Out: `equal`, and
`reason` where the reference cannot be read. Its one argument is the memory it may use, in bytes.
"""

from __future__ import annotations

import contextlib
import json
import re
import resource
import sys
from typing import Any

from math_verify import parse, verify

_ANCHORED = re.compile(r"\$|\\boxed|\\\(|\\\[")
_WORDS = re.compile(r"[A-Za-z]{2,}\s+[A-Za-z]{2,}")


def main() -> None:
    # macOS does not bound the address space; there the clock alone does.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]), resource.RLIM_INFINITY))
    print("ready", flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        print(json.dumps(_compared(question)), flush=True)


def _compared(question: dict[str, Any]) -> dict[str, Any]:
    expected = _read(question["reference"], bare=True)
    if not expected:
        return {"equal": False, "reason": "the reference cannot be read as mathematics"}
    answer = _read(question["answer"], bare=question["bare"])
    # The clock is our caller's.
    return {"equal": bool(answer) and verify(expected, answer, timeout_seconds=None), "reason": ""}


def _read(text: str, *, bare: bool) -> list[Any]:
    """Parse a result. A bare one gets the dollars without which it would not be seen as LaTeX."""
    if bare and not _ANCHORED.search(text) and not _WORDS.search(text):
        text = f"${text.strip()}$"
    parsed: list[Any] = parse(text, parsing_timeout=0)
    return parsed


if __name__ == "__main__":
    main()
