"""Requests to an OpenAI-compatible server, sent again while it is busy or silent."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import httpx

_AGAIN = frozenset({408, 409, 429, 500, 502, 503, 504})


class ServerError(Exception):
    """The server gave no answer. The message is for people."""


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
        self._client = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(timeout, connect=10.0),
            transport=transport,
        )

    def close(self) -> None:
        """Give the connections back."""
        self._client.close()

    def post(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        """Return the server's answer, which is a success. Raises `ServerError`."""
        problem = ""
        for attempt in range(self._attempts):
            time.sleep(self._pause * 2 ** (attempt - 1) if attempt else 0.0)
            try:
                response = self._client.post(path, json=body)
            except httpx.HTTPError as error:
                problem = f"{self._name} at {self._client.base_url} does not answer ({type(error).__name__})"
                continue
            if response.is_success:
                return response
            problem = f"{self._name} answered with status {response.status_code}{_reason(response)}"
            if response.status_code not in _AGAIN:
                break
        raise ServerError(problem)


def _reason(response: httpx.Response) -> str:
    """Return the server's error message in OpenAI's format; empty without one."""
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return ""
    return f": {message}" if isinstance(message, str) and message else ""
