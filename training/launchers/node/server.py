"""Keep a rollout server running beside a job: `python -m training.launchers.node.server -- COMMAND…`.

Starts the command, and restarts it whenever it ends, until standard input ends: the pipe's other end
closes with the process that wants the server, however that ends. Nothing of the server is left then.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
"""Seconds before a server that ended is started again; twice as many after each end."""
_LASTED = 120.0
"""Seconds after which a server counts as having worked: the next pause is the first one again."""
_LEAVE_SECONDS = 20.0


def keep_running(command: list[str], over: threading.Event) -> None:
    """Run `command` again and again until `over` is set, and end it then."""
    pause = _FIRST_PAUSE
    while not over.is_set():
        began = time.monotonic()
        # A group of its own: servers start processes that a signal to the first one does not reach.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        while process.poll() is None and not over.wait(0.2):
            continue
        code = process.poll()
        _end(process)
        if code is None:
            return
        pause = _FIRST_PAUSE if time.monotonic() - began > _LASTED else pause
        print(f"the rollout server ended with {code}; started again in {pause:.0f} s", flush=True)
        over.wait(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a server and all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LEAVE_SECONDS)


def main() -> int:
    """Run until standard input ends."""
    if len(sys.argv) < 3 or sys.argv[1] != "--":
        sys.stderr.write(f"{__doc__}\n")
        return 2
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())

    def wait_for_end() -> None:
        while os.read(sys.stdin.fileno(), 1024):
            continue
        over.set()

    threading.Thread(target=wait_for_end, name="stdin", daemon=True).start()
    keep_running(sys.argv[2:], over)
    return 0


if __name__ == "__main__":
    sys.exit(main())
