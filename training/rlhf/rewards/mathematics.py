"""Reward for mathematics: the completion's result equals the reference as mathematics, not as text.

`math-verify` reads both (LaTeX, `\\boxed{}`, plain expressions, sets, intervals) and compares them with
SymPy. That can take for ever, or all memory, on what a model writes (`9^{9^{9^{9}}}`), and its
own time limit is a signal, which works in the main thread alone and stops no long computation in
C. So it runs in a process of its own, which is killed and replaced when it overruns.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Self

from training.rlhf.rewards.protocol import Chat, NoReferenceError, Reference, Score, text_reference
from training.rlhf.rewards.rules import answer_of

_WORKER = Path(__file__).with_name("mathematics_worker.py")
_START_SECONDS = 120.0
"""For the import of SymPy on a busy machine."""


class Mathematics:
    """1 where the result equals the reference, 0 where it does not or there is none.

    The completion's result is the last that it states, one in `\\boxed{}` before others. A
    reference that cannot be read, and a comparison that overruns its time, cannot be scored.
    Close it after use: it keeps a process.
    """

    def __init__(
        self, *, in_answer_tags: bool = False, seconds: float = 5.0, memory_bytes: int = 2 * 1024**3
    ) -> None:
        """`in_answer_tags`: read only what stands in `<answer>` (see `rules.answer_of`), else 0.

        `seconds` and `memory_bytes` bound the comparison of one completion.
        """
        if seconds <= 0:
            raise ValueError(f"seconds {seconds} must be positive")
        self._in_answer_tags = in_answer_tags
        self._seconds = seconds
        self._memory_bytes = memory_bytes
        self._process: subprocess.Popen[bytes] | None = None
        # One conversation with the process at a time.
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process; a later call starts another."""
        with self._lock:
            self._stop()

    def __call__(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> list[Score]:
        return [self._score(c, r) for c, r in zip(completions, references, strict=True)]

    def _score(self, completion: str, reference: Reference) -> Score:
        try:
            expected = str(reference) if type(reference) in (int, float) else text_reference(reference)
        except NoReferenceError as error:
            return Score.cannot(str(error))
        answer = answer_of(completion) if self._in_answer_tags else completion
        if answer is None:
            return Score(0.0)
        question = {"reference": expected, "answer": answer, "bare": self._in_answer_tags}
        try:
            with self._lock:
                reply = json.loads(self._ask(json.dumps(question)))
        except TimeoutError:
            return Score.cannot(f"the comparison took more than {self._seconds} s")
        except EOFError:
            return Score.cannot("the comparison took too much memory")
        return Score.cannot(reply["reason"]) if reply["reason"] else Score(float(reply["equal"]))

    def _ask(self, question: str) -> bytes:
        process = self._started()
        try:
            os.write(_descriptor(process.stdin), question.encode() + b"\n")
            return _line(process, self._seconds)
        except (TimeoutError, EOFError, BrokenPipeError) as error:
            self._stop()
            raise error if isinstance(error, TimeoutError) else EOFError from None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._process = subprocess.Popen(
            # -P: the worker's neighbours must not stand in for modules of the same name.
            [sys.executable, "-P", str(_WORKER), str(self._memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        _line(self._process, _START_SECONDS)
        return self._process

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _descriptor(pipe: IO[bytes] | None) -> int:
    if pipe is None:
        raise EOFError
    return pipe.fileno()


def _line(process: subprocess.Popen[bytes], seconds: float) -> bytes:
    """Return one line from the process. Raises `TimeoutError`, or `EOFError` where it has ended."""
    deadline = time.monotonic() + seconds
    read = b""
    with selectors.DefaultSelector() as ready:
        ready.register(_descriptor(process.stdout), selectors.EVENT_READ)
        while not read.endswith(b"\n"):
            if not ready.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            part = os.read(_descriptor(process.stdout), 65536)
            if not part:
                raise EOFError
            read += part
    return read
