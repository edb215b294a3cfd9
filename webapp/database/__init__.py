"""Detection of dead connections by TCP keepalive.

A server that is cut off does not answer, and TCP alone waits for a quarter of an hour. Database clients give
up well within RONDO_STALE_SECONDS, so that a worker notices before others that it has lost its job; senders
do not hang on a broker that is cut off.
"""

import socket
from typing import Any


def keep_alive(*, idle: int, interval: int, count: int) -> dict[int, int]:
    """Return TCP socket options: after `idle` seconds send `count` probes, `interval` seconds apart."""
    options = {
        # Linux and macOS name the first one differently.
        getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE", None): idle,
        getattr(socket, "TCP_KEEPINTVL", None): interval,
        getattr(socket, "TCP_KEEPCNT", None): count,
    }
    return {option: value for option, value in options.items() if option is not None}


OF_POSTGRESQL: dict[str, Any] = {
    "connect_timeout": 3,
    "tcp_user_timeout": 8_000,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 2,
}
"""Parameters of libpq, in seconds except tcp_user_timeout, in milliseconds."""

OF_REDIS: dict[str, Any] = {
    "socket_connect_timeout": 3,
    "socket_timeout": 10,
    "socket_keepalive": True,
    "socket_keepalive_options": keep_alive(idle=5, interval=2, count=2),
    "health_check_interval": 10,
}
"""Options of kombu's transport, in seconds."""
