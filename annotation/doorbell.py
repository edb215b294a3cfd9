"""Tells workers to look. What they find stands in the database, so a lost message costs a few seconds."""

import logging
import time

from amqp.exceptions import AMQPError
from celery import current_app
from kombu.exceptions import KombuError, OperationalError

logger = logging.getLogger(__name__)

DO_IMPORT = "annotation.tasks.do_import"
DELIVER_WEBHOOKS = "annotation.tasks.deliver_webhooks"

_QUIET_SECONDS = 5.0
"""After a broker did not answer nobody rings for so long: whoever submits must not wait for it each time."""
_quiet_until = 0.0


def send(task: str, *args: object) -> None:
    """Tell a worker of a task. A broker that is down is no failure: the sweep finds the row."""
    global _quiet_until
    if time.monotonic() < _quiet_until:
        return
    try:
        current_app.send_task(task, args=list(args))
    except (OperationalError, KombuError, AMQPError, OSError) as error:
        _quiet_until = time.monotonic() + _QUIET_SECONDS
        logger.warning("%s%s: no message to the workers (%s); a sweep rings again.", task, args, error)
