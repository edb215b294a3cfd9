"""Child processes of a job: run to their end with heartbeats, killed where a heartbeat raises."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from django.conf import settings
from django.utils.translation import gettext as _

from annotation.errors import Refusal

_POLL_SECONDS = 0.5
_MOST_CHARACTERS = 2000
_MOST_BYTES = 64 * 1024**2
TIMED_OUT = 124
"""The code of a process that was killed because it took too long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A process that has ended."""

    code: int
    output: str
    last_line: str
    """The last line that it wrote to stderr, shortened; empty where it wrote none."""


def run_process(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    beat: Callable[[], object],
    seconds: float | None = None,
) -> Ended:
    """Run a command; `beat` is called until it ends, and may raise, which kills it and what it started.

    With `seconds` a process that takes longer is killed, too: it ends with `TIMED_OUT` and says so. Of the
    output a bounded part is read.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            cwd=settings.BASE_DIR,
            env=dict(environment),
            start_new_session=True,
        )
        deadline = None if seconds is None else time.monotonic() + seconds
        try:
            while True:
                beat()
                if deadline is not None and time.monotonic() > deadline:
                    return Ended(
                        code=TIMED_OUT, output="", last_line=f"it took more than {seconds:.0f} seconds"
                    )
                try:
                    process.wait(timeout=_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    continue
        finally:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        errors.seek(0)
        error_text = errors.read(_MOST_BYTES).decode("utf-8", errors="replace").strip()
        return Ended(
            code=process.returncode,
            output=output.read(_MOST_BYTES).decode("utf-8", errors="replace"),
            last_line=error_text.splitlines()[-1].strip()[:_MOST_CHARACTERS] if error_text else "",
        )


def refuse_failed(status: int, output: str) -> None:
    """Refuse what a process that ended with this status should do, with the last line that it wrote."""
    if status == 0:
        return
    if lines := output.strip().splitlines():
        raise Refusal("process_failed", f"{lines[-1][:1].upper()}{lines[-1][1:]}")
    raise Refusal("process_failed", _("The process ended with status %(status)d."), status=status)
