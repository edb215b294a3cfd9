"""Launchers that are asked over HTTP: errors in plain words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import httpx

from training.launchers.protocol import LauncherError, LauncherUnreachableError

_SECONDS = 15.0
_MOST_CHARACTERS = 400


class Api:
    """A server's API. `transport` replaces the network in tests."""

    def __init__(
        self,
        launcher: str,
        url: str,
        *,
        token: Callable[[], str] = lambda: "",
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._launcher = launcher
        self._url = url.rstrip("/")
        self._token = token
        self._transport = transport

    def ask(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        query: Mapping[str, str] | None = None,
        tolerate: tuple[int, ...] = (),
    ) -> httpx.Response | None:
        """Return the response; None for a status that is tolerated.

        Raises `LauncherUnreachableError` for a server that does not answer or is out of order, and
        `LauncherError` for one that refuses.
        """
        token = self._token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            with httpx.Client(timeout=_SECONDS, transport=self._transport, trust_env=False) as client:
                response = client.request(
                    method, f"{self._url}{path}", json=json, params=query, headers=headers
                )
        except httpx.HTTPError as error:
            raise LauncherUnreachableError(
                f"{self._launcher} does not answer at {self._url} ({type(error).__name__}); it is tried again"
            ) from error
        if response.status_code in tolerate:
            return None
        if response.status_code in (502, 503, 504, 429):
            raise LauncherUnreachableError(
                f"{self._launcher} at {self._url} is out of order (status {response.status_code}); it is "
                "tried again"
            )
        if response.status_code in (401, 403):
            raise LauncherError(
                f"{self._launcher} at {self._url} lets nobody in with this token (status "
                f"{response.status_code}: {_error_text(response)}); set another one"
            )
        if response.is_error:
            raise LauncherError(f"{self._launcher} refused: {_error_text(response)}")
        return response

    def json(self, method: str, path: str, **more: Any) -> Any:
        """Return the decoded response; None for a status that is tolerated."""
        response = self.ask(method, path, **more)
        if response is None:
            return None
        try:
            return response.json()
        except ValueError:
            raise LauncherError(
                f"{self._launcher} at {self._url} answers with something else than JSON: "
                f"{_error_text(response)}"
            ) from None


def _error_text(response: httpx.Response) -> str:
    """Return the error that a response holds, in one short line."""
    try:
        body = response.json()
        text = str(body.get("message") or body) if isinstance(body, dict) else str(body)
    except ValueError:
        text = response.text
    return " ".join(text.split())[-_MOST_CHARACTERS:] or f"status {response.status_code}"
