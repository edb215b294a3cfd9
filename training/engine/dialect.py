"""How servers that speak OpenAI's interface differ in what they know of a request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from training.engine.errors import EngineError

_CAN_BE_LEFT_OUT = ("top_k", "seed", "stream_options", "max_tokens", "temperature", "top_p")
"""Fields that a server may not know. OpenAI's newer models call `max_tokens` otherwise, and some of them
sample at one temperature alone."""

_RENAMED = {"max_tokens": "max_completion_tokens"}
_ASKED_WRONGLY = (400, 422)


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """What a server is taken to know."""

    extensions: bool
    """Whether it is our own: it knows every field, so whatever it refuses is the caller's fault."""

    def body(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """The body of a request; without what asks for nothing and only some servers know."""
        body = dict(wanted)
        if not self.extensions and not body.get("top_k"):
            # OpenAI's interface has no such field, and servers that have it differ in how it is turned off.
            body.pop("top_k", None)
        return body

    def without(self, body: Mapping[str, Any], refused: frozenset[str]) -> dict[str, Any]:
        """The body without what the server refused, or with the name that it knows it by."""
        left = {name: value for name, value in body.items() if name not in refused}
        return left | {_RENAMED[name]: body[name] for name in refused & body.keys() & _RENAMED.keys()}

    def blamed(self, error: EngineError, body: Mapping[str, Any], refused: frozenset[str]) -> str | None:
        """The field that a server refuses as one it does not know; None where it has another reason."""
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
    """Whether a message says that a field is not known, and not that its value is wrong."""
    return _UNKNOWN.search(message) is not None


RONDO = Dialect(extensions=True)
OPENAI = Dialect(extensions=False)
