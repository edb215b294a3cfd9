"""HTTP of both servers, of one base and of several: the key, the limit on bodies, refusals."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from training.serving.requests import NEUTRAL_FIELDS, NEUTRAL_MESSAGE_FIELDS

# ── Request errors in OpenAI's format ──


class RequestError(Exception):
    """A request that is not answered, with its HTTP status and the field that is to blame."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        kind = "invalid_request_error" if self.status < 500 and self.status != 429 else "server_error"
        return {
            "error": {"message": self.message, "type": kind, "param": self.param, "code": self.code},
        }

    def response(self) -> JSONResponse:
        """Return the error as an HTTP response."""
        headers = {"Retry-After": str(self.retry_after)} if self.retry_after is not None else {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.body(), status_code=self.status, headers=headers)


def from_validation(error: ValidationError) -> RequestError:
    """Return the first thing that is wrong with a request's body, its field named."""
    first = error.errors(include_url=False, include_context=False)[0]
    param = _path(first["loc"])
    if first["type"] == "json_invalid":
        return RequestError(400, f"The body is not JSON: {first['msg']}", code="invalid_json")
    if first["type"] == "extra_forbidden":
        known = first["loc"][-1] in {*NEUTRAL_FIELDS, *NEUTRAL_MESSAGE_FIELDS}
        reason = "this server cannot do what it asks for" if known else "this server does not know it"
        message = f"Unsupported parameter: '{param}'. Leave it out; {reason}."
        return RequestError(400, message, code="unsupported_parameter", param=param)
    if first["type"] == "missing":
        message = f"Missing required parameter: '{param}'."
        return RequestError(400, message, code="missing_required_parameter", param=param)
    if param is None:
        return RequestError(400, f"Invalid body: {first['msg']}", code="invalid_value")
    message = f"Invalid value for '{param}': {first['msg'].removeprefix('Value error, ')}"
    return RequestError(400, message, code="invalid_value", param=param)


def _path(location: tuple[int | str, ...]) -> str | None:
    """`("messages", 0, "role")` as `messages[0].role`."""
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path or None


# ── Http ──


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
