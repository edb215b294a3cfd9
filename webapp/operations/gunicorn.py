"""gunicorn's own lines in the form of all others: `--logger-class webapp.operations.gunicorn.Lines`."""

import os
from typing import Any

from gunicorn.glogging import Logger

from training import log_lines


class Lines(Logger):  # type: ignore[misc]
    """gunicorn's logger, whose formats are its own and no setting."""

    def setup(self, cfg: Any) -> None:
        """As gunicorn sets it up, then with our formatter; its first process loads no settings."""
        super().setup(cfg)
        kind = os.environ.get("RONDO_LOG_FORMAT", "text")
        for log in (self.error_log, self.access_log):
            for handler in log.handlers:
                handler.setFormatter(log_lines.formatter(kind, log_lines.secrets_of_environment()))
