"""gunicorn's log lines in Rondo's format: `--logger-class webapp.operations.gunicorn.Lines`."""

import os
from typing import Any

from gunicorn.glogging import Logger

from training.contract import log_lines


class Lines(Logger):  # type: ignore[misc]
    """gunicorn's logger, whose formats cannot be configured."""

    def setup(self, cfg: Any) -> None:
        """Set up gunicorn's logger, then set our formatter. The first process loads no settings."""
        super().setup(cfg)
        kind = os.environ.get("RONDO_LOG_FORMAT", "text")
        # The processes that load the settings report an unknown format and end gunicorn.
        kind = kind if kind in log_lines.FORMATS else "text"
        for log in (self.error_log, self.access_log):
            for handler in log.handlers:
                handler.setFormatter(log_lines.formatter(kind, log_lines.secrets_of_environment()))
