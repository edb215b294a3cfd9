"""Request errors in OpenAI's format."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from starlette.responses import JSONResponse

from training.serving.requests import NEUTRAL_FIELDS, NEUTRAL_MESSAGE_FIELDS


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
