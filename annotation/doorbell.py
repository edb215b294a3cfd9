"""Tells workers to look. What they find stands in the database, so a lost message costs a few seconds."""

import logging

from celery import current_app
from kombu.exceptions import KombuError, OperationalError

logger = logging.getLogger(__name__)

DO_IMPORT = "annotation.tasks.do_import"
DELIVER_WEBHOOKS = "annotation.tasks.deliver_webhooks"


def send(task: str, *args: object) -> None:
    """Tell a worker of a task. A broker that is down is no failure: the sweep finds the row."""
    try:
        current_app.send_task(task, args=list(args))
    except (OperationalError, KombuError, OSError) as error:
        logger.warning("%s%s: no message to the workers (%s); a sweep rings again.", task, args, error)
