"""Differences between servers that speak OpenAI's interface."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from training.engine.errors import EngineError

_CAN_BE_LEFT_OUT = ("top_k", "seed", "stream_options", "max_tokens", "temperature", "top_p")
"""Fields that a server may not know. OpenAI's newer models rename `max_tokens`, and some of them sample at
one temperature alone."""

_RENAMED = {"max_tokens": "max_completion_tokens"}
_ASKED_WRONGLY = (400, 422)


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """The request fields that a server is assumed to know."""

    extensions: bool
    """True for Rondo's server: it knows every field, so a refusal is the caller's fault."""

    def body(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body of a request, without optional fields at their neutral value."""
        body = dict(fields)
        if not self.extensions and not body.get("top_k"):
            # OpenAI's interface has no such field, and servers that have it differ in how it is turned off.
            body.pop("top_k", None)
        return body

    def without(self, body: Mapping[str, Any], refused: frozenset[str]) -> dict[str, Any]:
        """Return the body without the refused field, or with the server's name for it."""
        left = {name: value for name, value in body.items() if name not in refused}
        return left | {_RENAMED[name]: body[name] for name in refused & body.keys() & _RENAMED.keys()}

    def blamed(self, error: EngineError, body: Mapping[str, Any], refused: frozenset[str]) -> str | None:
        """Return the field that a server does not know; None if it has another reason."""
        if self.extensions or error.status not in _ASKED_WRONGLY:
            return None
        for name in _CAN_BE_LEFT_OUT:
            named = error.param == name or re.search(rf"\b{name}\b", str(error))
            if named and name in body and name not in refused and _is_unknown(str(error)):
                return name
        return None


_UNKNOWN = re.compile(
    r"unsupported|not supported|unrecognized|unknown|unexpected|not permitted|extra inputs|forbidden"
    r"|does not support|use 'max_completion_tokens'",
    re.IGNORECASE,
)


def _is_unknown(message: str) -> bool:
    """Return whether a message means an unknown field, not a wrong value."""
    return _UNKNOWN.search(message) is not None


RONDO = Dialect(extensions=True)
OPENAI = Dialect(extensions=False)
