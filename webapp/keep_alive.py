"""How soon a connection over which nothing comes is known to be dead."""

import socket

# Linux and macOS call the first of them differently, and each value has a number of its own everywhere.
_IDLE = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE", None)


def keep_alive(*, idle: int, interval: int, count: int) -> dict[int, int]:
    """Options of a TCP socket: after `idle` seconds of silence ask `count` times, each `interval` seconds."""
    wanted = {
        _IDLE: idle,
        getattr(socket, "TCP_KEEPINTVL", None): interval,
        getattr(socket, "TCP_KEEPCNT", None): count,
    }
    return {option: value for option, value in wanted.items() if option is not None}
