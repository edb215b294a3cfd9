"""Waiting for a model server that is down, loads, or does not know a checkpoint yet."""

import time
from collections.abc import Callable
from typing import TypeVar

from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.services.jobs.running import call_with_heartbeat
from training.engine import EngineError, EngineUnavailableError, EngineUnknownModelError

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 10.0
_KNOWN_WITHIN_SECONDS = 60.0

Result = TypeVar("Result")
Tell = Callable[[str], object]
"""Called while one waits, with what for; raises to stop."""


class Patience:
    """Longer and longer pauses while a model server is away; `reset` once it answered."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self.reset()

    def reset(self) -> None:
        """Make the next pause short again, after a response."""
        self._pause = _FIRST_PAUSE_SECONDS
        self._unknown_since: float | None = None

    def wait(self, trouble: EngineError) -> None:
        """Pause before asking again. Refuses once a checkpoint has been unknown for a minute."""
        now = time.monotonic()
        if isinstance(trouble, EngineUnknownModelError):
            self._unknown_since = self._unknown_since or now
            if now - self._unknown_since > _KNOWN_WITHIN_SECONDS:
                raise Refusal(
                    "model_server_lacks_checkpoint",
                    _(
                        "The model server does not know the checkpoint: %(trouble)s Look into "
                        "its log, then start again."
                    ),
                    trouble=trouble,
                )
        message = f"waiting for the model server: {trouble}"
        self._tell(message)
        until = now + self._pause
        self._pause = min(self._pause * 2, _LONGEST_PAUSE_SECONDS)
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.25))
            self._tell(message)


def retry_until_available(
    ask: Callable[[], Result], *, message: str, tell: Tell, unknown_may_pass: bool = True
) -> Result:
    """Return the result of one request to a model server, asked again while the server is away.

    `tell` is called with `message` while it is computed: a heartbeat goes on meanwhile. Raises
    `EngineError` where the server refuses for good; where it does not know what is asked for, at once
    unless that `unknown_may_pass`.
    """
    patience = Patience(tell)
    while True:
        try:
            return call_with_heartbeat(ask, lambda: tell(message))
        except (EngineUnavailableError, EngineUnknownModelError) as trouble:
            if isinstance(trouble, EngineUnknownModelError) and not unknown_may_pass:
                raise
            patience.wait(trouble)
