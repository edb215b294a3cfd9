"""What gunicorn does our way: its lines in the form of all others, and connections spread evenly.

`--logger-class webapp.operations.gunicorn.Lines --worker-class webapp.operations.gunicorn.EvenThreads`
"""

import os
import time
from typing import Any

from gunicorn.glogging import Logger
from gunicorn.workers.gthread import ThreadWorker

from training import log_lines


class Lines(Logger):  # type: ignore[misc]
    """gunicorn's logger, whose formats are its own and no setting."""

    def setup(self, cfg: Any) -> None:
        """As gunicorn sets it up, then with our formatter; its first process loads no settings."""
        super().setup(cfg)
        kind = os.environ.get("RONDO_LOG_FORMAT", "text")
        # The processes that load the settings refuse another form in words, and end gunicorn with it.
        kind = kind if kind in log_lines.FORMATS else "text"
        for log in (self.error_log, self.access_log):
            for handler in log.handlers:
                handler.setFormatter(log_lines.formatter(kind, log_lines.secrets_of_environment()))


_HESITATION_SECONDS = 0.0005
_MOST_HESITATION_SECONDS = 0.0025


class EvenThreads(ThreadWorker):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's threads, where who has fewer connections takes the next one.

    All processes wake for a new connection, and it stays with the first that takes it: by luck six of eight
    people wait behind each other in one process while two have the other to themselves. Here each
    hesitates for as long as it has connections; whoever comes too late finds none and loses nothing.
    """

    def accept(self, server: Any, listener: Any) -> None:
        """Take a connection unless another process was faster."""
        time.sleep(min(self.nr_conns * _HESITATION_SECONDS, _MOST_HESITATION_SECONDS))
        super().accept(server, listener)
