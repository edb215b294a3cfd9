"""How soon a connection over which nothing comes is known to be dead.

A server that is cut off answers nothing, not even that it is gone, and TCP by itself waits for a quarter of
an hour. What waits for one gives up well within RONDO_STALE_SECONDS, so that a worker knows before others do
that it has lost its work; and a broker that is cut off holds nobody who rings.
"""

import socket
from typing import Any


def keep_alive(*, idle: int, interval: int, count: int) -> dict[int, int]:
    """Options of a TCP socket: after `idle` seconds of silence ask `count` times, each `interval` seconds."""
    wanted = {
        # Linux and macOS call the first of them differently.
        getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE", None): idle,
        getattr(socket, "TCP_KEEPINTVL", None): interval,
        getattr(socket, "TCP_KEEPCNT", None): count,
    }
    return {option: value for option, value in wanted.items() if option is not None}


OF_POSTGRESQL: dict[str, Any] = {
    "connect_timeout": 3,
    "tcp_user_timeout": 8_000,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 2,
}
"""Parameters of libpq, in seconds but for the second, which is in milliseconds."""

OF_REDIS: dict[str, Any] = {
    "socket_connect_timeout": 3,
    "socket_timeout": 10,
    "socket_keepalive": True,
    "socket_keepalive_options": keep_alive(idle=5, interval=2, count=2),
    "health_check_interval": 10,
}
"""Options of kombu's transport, in seconds."""
