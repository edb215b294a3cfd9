"""Declaration of the broker's queues before a process uses them."""

from django.conf import settings
from kombu.exceptions import KombuError

from webapp.celery import app
from webapp.supervision.preflight import PreflightError


def declare_queues() -> None:
    """Declare the queues of tasks. Raise `PreflightError` if the broker cannot be reached.

    Web server and worker declare them too, but at the same moment: on a first start in a folder one of them
    can read the other's half-written table.
    """
    connection = app.connection_for_write()
    try:
        with connection:
            connection.ensure_connection(max_retries=1, timeout=5)
            for queue in app.amqp.queues.values():
                queue.bind(connection.default_channel).declare()
    except (KombuError, OSError) as error:
        raise PreflightError(
            f"The message broker does not answer at {connection.as_uri()}: {error}. "
            "Check RONDO_BROKER_URL and that the broker runs"
            + (f", or that {settings.RONDO_HOME / 'broker'} can be written." if _in_a_folder() else ".")
        ) from error


def _in_a_folder() -> bool:
    return str(settings.CELERY_BROKER_URL).startswith("filesystem:")
