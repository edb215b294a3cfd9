"""Numbers of waiting messages by queue, for any broker."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from celery import current_app
from kombu import Connection


@contextmanager
def open_broker(seconds: float) -> Iterator[Connection]:
    """Open a connection to the broker within `seconds`. Raise `OSError` or an error of the transport."""
    options = {
        **current_app.conf.broker_transport_options,
        "socket_connect_timeout": seconds,
        "socket_timeout": seconds,
        "max_retries": 0,
    }
    connection: Connection = current_app.connection_for_read(
        connect_timeout=seconds, transport_options=options
    )
    try:
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=math.ceil(seconds))
        # Redis connects only on the first command.
        connection.default_channel  # noqa: B018
        yield connection
    finally:
        connection.release()


def known_queues() -> set[str]:
    """Return the queues in this installation's settings."""
    routes = (current_app.conf.task_routes or {}).values()
    return set(current_app.amqp.queues) | {str(route["queue"]) for route in routes}


def depths(names: set[str], *, seconds: float) -> dict[str, int]:
    """Return waiting messages by queue; 0 for a queue that the broker does not know."""
    counts = {}
    with open_broker(seconds) as connection:
        for name in sorted(names):
            # Channels share an interface that kombu's types do not declare.
            channel: Any = connection.channel()
            try:
                counts[name] = int(channel.queue_declare(name, passive=True).message_count)
            except _errors_of_channel(connection):
                # AMQP has closed the channel.
                counts[name] = 0
            else:
                channel.close()
    return counts


def _errors_of_channel(connection: Connection) -> tuple[type[Exception], ...]:
    return cast(tuple[type[Exception], ...], connection.channel_errors)
