"""Requests to an OpenAI-compatible server, sent again while it is busy or silent."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import httpx

_AGAIN = frozenset({408, 409, 429, 500, 502, 503, 504})


class ServerError(Exception):
    """The server gave no answer. The message is for people."""

    def __init__(self, message: str, *, status: int | None = None, param: str | None = None) -> None:
        """status: that of a refusal; None where the server was silent. param: the field that it blames."""
        super().__init__(message)
        self.status = status
        self.param = param


class CompatibleServer:
    """One server; safe to use from several threads, to be closed after use."""

    def __init__(
        self,
        *,
        name: str,
        url: str,
        key: str,
        timeout: float,
        attempts: int,
        pause: float,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """name: what messages call it, "the judge". url: without `/v1`. timeout: seconds for one answer.

        attempts: how often a request is sent in all, after `pause` seconds, then twice that and so on.
        """
        self._name, self._attempts, self._pause = name, attempts, pause
        self._aborted = threading.Event()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._client = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(timeout, connect=10.0),
            transport=transport,
        )

    def close(self) -> None:
        """Give the connections back."""
        self._client.close()

    def abort(self) -> None:
        """End the requests of other threads at once; they and all later ones raise `ServerError`."""
        self._aborted.set()
        with self._lock:
            for connection in self._sockets:
                # To close it would leave who reads from it waiting.
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def post(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        """Return the server's answer, which is a success. Raises `ServerError`."""
        problem, status, param = f"the request to {self._name} was broken off", None, None
        for attempt in range(self._attempts):
            if self._aborted.wait(self._pause * 2 ** (attempt - 1) if attempt else 0):
                break
            try:
                response = self._client.post(path, json=body, extensions={"trace": self._note_socket})
            except httpx.HTTPError as error:
                problem = f"{self._name} at {self._client.base_url} does not answer ({type(error).__name__})"
                status, param = None, None
                continue
            if response.is_success:
                return response
            message, param = _error_of(response)
            status = response.status_code
            problem = f"{self._name} answered with status {status}{f': {message}' if message else ''}"
            if status not in _AGAIN:
                break
        raise ServerError(problem, status=status, param=param)

    def _note_socket(self, event: str, info: Mapping[str, Any]) -> None:
        """Keep the socket of each connection, which httpx hands over when it is made (its `trace`)."""
        if event not in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            return
        connection = info["return_value"].get_extra_info("socket")
        with self._lock:
            self._sockets = {known for known in self._sockets if known.fileno() >= 0} | {connection}
        if self._aborted.is_set():
            self.abort()


def _error_of(response: httpx.Response) -> tuple[str, str | None]:
    """Return the server's message in OpenAI's format, empty without one, and the field that it blames."""
    try:
        error = response.json()["error"]
        message, param = error["message"], error.get("param")
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", None
    return (message if isinstance(message, str) else ""), (param if isinstance(param, str) else None)
