"""HTTP of both servers, of one base and of several: the key, the limit on bodies, refusals."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from training.serving.errors import RequestError


@dataclass(frozen=True)
class Keys:
    """Keys that open a server; the first is the web application's."""

    values: tuple[str, ...]

    def number_of(self, request: Request) -> int | None:
        """Return the position of the request's key among `values`, or None where it has none of them."""
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        # In constant time, and all of them: how long a refusal takes tells nothing of the keys.
        matches = [hmac.compare_digest(credentials.strip().encode(), key.encode()) for key in self.values]
        return matches.index(True) if scheme.lower() == "bearer" and any(matches) else None

    def require(self, request: Request) -> int:
        """Return the position of the request's key; raise `RequestError` with status 401 without one."""
        number = self.number_of(request)
        if number is None:
            message = "Wrong or missing key. Send 'Authorization: Bearer' with the key of this server."
            raise RequestError(401, message, code="invalid_api_key")
        return number


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Return the request's body; raise `RequestError` with status 413 as soon as it is too large."""
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > max_bytes:
            message = f"The body is larger than {max_bytes} bytes. Send less."
            raise RequestError(413, message, code="body_too_large")
    return bytes(content)


async def wait_for_disconnect(request: Request) -> None:
    """Return when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def exception_handlers() -> dict[Any, Callable[[Request, Exception], Response]]:
    """Return handlers that give every failure the shape of the OpenAI API's errors."""
    return dict.fromkeys((RequestError, HTTPException, ClientDisconnect, Exception), _refuse)


def _refuse(_request: Request, error: Exception) -> Response:
    if isinstance(error, RequestError):
        return error.response()
    if isinstance(error, HTTPException):
        return RequestError(error.status_code, f"{error.detail}.", code="http_error").response()
    if isinstance(error, ClientDisconnect):
        # Nobody reads this; the log does, and 499 is what servers write there.
        return Response(status_code=499)
    return RequestError(
        500, "The model server failed on this request; its log says why.", code="internal_error"
    ).response()
