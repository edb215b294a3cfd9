"""Messages that wake workers. The work stands in the database, so a lost message costs a few seconds."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from amqp.exceptions import AMQPError
from celery import current_app
from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from kombu.exceptions import KombuError, OperationalError

from annotation.models.jobs import Claimable
from annotation.services.jobs.claims import claimable

logger = logging.getLogger(__name__)

_QUIET_SECONDS = 5.0
"""After a broker did not answer, no message is sent for so long: a request must not wait for it each time."""
_quiet_until = 0.0
_SWEEPS_BEFORE_EXPIRY = 3
"""A message of a sweep that no worker took by then is dropped: later sweeps have sent others."""
_withheld = False


@contextmanager
def no_messages() -> Iterator[None]:
    """Send nothing from this process meanwhile: it does all the work on its rows by itself."""
    global _withheld
    before, _withheld = _withheld, True
    try:
        yield
    finally:
        _withheld = before


def send(task: str, *args: object, expires: float | None = None) -> bool:
    """Send a task to the workers, and return True if the broker took it.

    A broker that is down is no failure: the sweep finds the row. expires: seconds after which a message that
    no worker took is dropped.
    """
    global _quiet_until
    if _withheld or time.monotonic() < _quiet_until:
        return False
    try:
        current_app.send_task(str(task), args=list(args), expires=expires)
    except (OperationalError, KombuError, AMQPError, OSError) as error:
        _quiet_until = time.monotonic() + _QUIET_SECONDS
        logger.warning("%s%s: no message to the workers (%s); a sweep sends it again.", task, args, error)
        return False
    return True


def send_after_commit(task: str, *args: object) -> None:
    """Send a task once this transaction is committed."""
    transaction.on_commit(lambda: send(task, *args))


def sweep(jobs: "QuerySet[Claimable]", task: str, *args: object) -> None:
    """Send a task for each of `jobs` that nobody works on: a message was lost, or a worker died."""
    for pk in claimable(jobs).values_list("pk", flat=True):
        send(task, *args, pk, expires=settings.RONDO_SWEEP_SECONDS * _SWEEPS_BEFORE_EXPIRY)
