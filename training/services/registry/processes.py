"""Child processes of a job: run to their end with heartbeats, killed where a heartbeat raises."""

import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from django.conf import settings

_POLL_SECONDS = 0.5
_MOST_CHARACTERS = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A process that has ended."""

    code: int
    output: str
    last_line: str
    """The last line that it wrote to stderr, shortened; empty where it wrote none."""


def run_process(
    command: Sequence[str], *, environment: Mapping[str, str], beat: Callable[[], object]
) -> Ended:
    """Run a command; `beat` is called until it ends, and may raise, which kills it."""
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
        try:
            while True:
                beat()
                try:
                    process.wait(timeout=_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    continue
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        output.seek(0)
        errors.seek(0)
        error_text = errors.read().decode("utf-8", errors="replace").strip()
        return Ended(
            code=process.returncode,
            output=output.read().decode("utf-8", errors="replace"),
            last_line=error_text.splitlines()[-1].strip()[:_MOST_CHARACTERS] if error_text else "",
        )
