"""Ways in which a trainer is asked to save its state and stop. No torch, as `--status` needs none."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import FrameType

from training.contract.run import CANCEL_FILE


class StoppedError(Exception):
    """The run was asked to stop; its state is saved and it can be started again."""


class StopRequest:
    """Reasons to stop: a `cancel` file in the run's folder, a signal, or the end of the parent."""

    def __init__(self, folder: Path) -> None:
        self._cancel = folder / CANCEL_FILE
        self._reason = ""

    @property
    def reason(self) -> str:
        """Return the reason to stop; empty without one."""
        if not self._reason and self._cancel.exists():
            self._reason = "cancelled"
        return self._reason

    def check(self) -> None:
        """Raise `StoppedError` once somebody has asked to stop."""
        if self.reason:
            raise StoppedError(self.reason)

    def honoured(self) -> None:
        """Take the `cancel` file away: it asked for this stop, not for that of the next start."""
        self._cancel.unlink(missing_ok=True)

    def listen_to_signals(self) -> None:
        """SIGTERM and Ctrl-C ask to stop instead of ending the process where it stands."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._reason = f"stopped by {signal.Signals(number).name}"

    def listen_to_parent(self) -> None:
        """The end of standard input asks to stop: the parent holds the other end of that pipe.

        A parent that is killed cannot say goodbye, but its pipe closes.
        """
        threading.Thread(target=self._wait_for_end_of_input, name="parent", daemon=True).start()

    def _wait_for_end_of_input(self) -> None:
        # os.read, not sys.stdin: a thread inside a buffered reader breaks the interpreter's shutdown.
        while os.read(0, 4096):
            pass
        self._reason = self._reason or "the process that started the trainer has ended"
