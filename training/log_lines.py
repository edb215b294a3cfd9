"""What a line of a log looks like, and what never stands in one. On the standard library alone.

Web, workers and the model server all write lines of this form: as text for people, or as one JSON object
per line for programs (RONDO_LOG_FORMAT). Each line bears what it belongs to: the request, the person by
number, the route, the job. Passwords, keys, tokens and cookies are blotted out on the way, wherever they
stand.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import MappingProxyType
from typing import Any

FORMATS = ("text", "json")
BLOT = "[secret]"
TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{7,63}")

Field = str | int | Callable[[], str | int | None] | None
"""A value, or what tells it when a line is written: who asks is not known when a request begins."""
Fields = Mapping[str, Field]

_NONE: Fields = MappingProxyType({})
_fields: ContextVar[Fields] = ContextVar("rondo_log_fields", default=_NONE)


# ── What a line belongs to ────────────────────────────────────────────────────────────


def enter(fields: Fields) -> Token[Fields]:
    """From here on lines of this thread bear these fields beside those that they bore; see `leave`."""
    return _fields.set({**_fields.get(), **fields})


def leave(token: Token[Fields]) -> None:
    """Undo an `enter`."""
    _fields.reset(token)


def forget() -> None:
    """From here on lines of this thread bear nothing."""
    _fields.set(_NONE)


@contextmanager
def bearing(**fields: Field) -> Iterator[None]:
    """Lines that are written inside bear these fields too."""
    token = enter(fields)
    try:
        yield
    finally:
        leave(token)


def fields_now() -> dict[str, str | int]:
    """The fields that a line would bear now; empty ones are left out."""
    found = ((name, value() if callable(value) else value) for name, value in _fields.get().items())
    return {name: value for name, value in found if value not in (None, "")}


def new_request_id() -> str:
    """An id that no other request has: 16 hexadecimal digits."""
    return secrets.token_hex(8)


def is_request_id(text: str) -> bool:
    """Whether an id from elsewhere is one: 8 to 64 letters, digits, dots, underscores and hyphens."""
    return _REQUEST_ID.fullmatch(text) is not None


# ── What never stands in a line ───────────────────────────────────────────────────────

_HIDDEN_NAME = (
    r"[\w.-]*(?:passw(?:or)?d|passphrase|pwd|secret|token(?!s|_count|_id|i[sz])|api[_-]?key|access[_-]?key|private[_-]?key|"
    r"session_?id|csrf\w*|credential)[\w-]*"
)
_KEY_VARIABLE = r"(?:[A-Z0-9_]*_)?KEY(?:_[A-Z0-9_]+)?"
_QUOTE = r"""(?:\\?["'])?"""
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # Whole headers first: what a cookie or an authorization holds ends with the line or its quote.
    (
        re.compile(
            rf"(?i)({_QUOTE}(?:HTTP_)?(?:proxy-)?(?:authorization|(?:set-)?cookie)(?:{_QUOTE}\s*[:=]\s*|[\"']\s*,\s*b?))"
            r"""(?:"[^"\n]*"|'[^'\n]*'|[^\n"'}\])]+)"""
        ),
        rf"\1{BLOT}",
    ),
    (re.compile(r"(?i)\b(bearer|basic|digest)\s+[A-Za-z0-9._~+/=:-]{6,}"), rf"\1 {BLOT}"),
    # scheme://name:password@host, also without a name (Redis).
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://[^\s/:@\"']*):[^\s/\"']+@"), rf"\1:{BLOT}@"),
    # scheme://token@host, as git and hubs write it.
    (re.compile(r"(?i)\b((?:https?|git)://)[^\s/:@\"']{16,}@"), rf"\1{BLOT}@"),
    # name=value, "name": "value", name: value.
    (
        re.compile(
            rf"(?<![\w.-])((?:(?i:{_HIDDEN_NAME})|{_KEY_VARIABLE}){_QUOTE}\s*(?:=>|[:=])\s*)"
            r"""(?:\\?"(?:[^"\\\n]|\\.)*\\?"|\\?'(?:[^'\\\n]|\\.)*\\?'|[^\s,;&"')}\]]+)"""
        ),
        rf"\1{BLOT}",
    ),
    # Tokens that say by their first letters what they are.
    (
        re.compile(
            r"\b(?:rondo_(?=[\w-]{32})|sk-|sk_live_|hf_|gh[opsur]_|github_pat_|glpat-|whsec_|xox[abpr]-|AKIA|ASIA|AIza)"
            r"[A-Za-z0-9_+/=-]{12,}"
        ),
        BLOT,
    ),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"), BLOT),
    # Whoever has the address of an invitation may join by it.
    (re.compile(r"(/invitations/)(?!\d+/)[\w-]{8,}"), rf"\1{BLOT}"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S), BLOT),
)
_SHORTEST_KNOWN = 6
_LONGEST = 32_768
"""Characters of a message or a traceback; the search for secrets takes its time over what is longer."""


class Blotter:
    """Takes secrets out of texts: those that it is given, and all that look like one."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        """known: values that are secret whatever stands around them; ones under six characters are not."""
        longest_first = sorted({one for one in known if len(one) >= _SHORTEST_KNOWN}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def __call__(self, text: str) -> str:
        """The text with every secret replaced by `BLOT`."""
        if len(text) > _LONGEST:
            text = f"{text[:_LONGEST]} … ({len(text)} characters)"
        if self._known is not None:
            text = self._known.sub(BLOT, text)
        for pattern, instead in _PATTERNS:
            text = pattern.sub(instead, text)
        return text


# ── The two forms ─────────────────────────────────────────────────────────────────────


class TextLines(logging.Formatter):
    """One line for people; what it belongs to stands in brackets at its end."""

    def __init__(self, blot: Blotter) -> None:
        super().__init__(TEXT_FORMAT)
        self._blot = blot

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """The line without a traceback. A line break in a message would forge a line of its own."""
        line = super().formatMessage(record).replace("\r", "\\r").replace("\n", "\\n")
        fields = " ".join(f"{name}={value}" for name, value in fields_now().items())
        return f"{line} [{fields}]" if fields else line

    def format(self, record: logging.LogRecord) -> str:
        """The line, and a traceback below it where there is one."""
        return self._blot(super().format(record))


class JsonLines(logging.Formatter):
    """A JSON object per line: time (UTC), level, logger, message, process, what it belongs to, exception."""

    def __init__(self, blot: Blotter) -> None:
        super().__init__()
        self._blot = blot

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{whole}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": self._blot(record.getMessage()),
            "process": record.process,
        }
        line |= {
            name: self._blot(value) if isinstance(value, str) else value
            for name, value in fields_now().items()
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self._blot(self.formatException(record.exc_info))
        if record.stack_info:
            line["stack"] = self._blot(self.formatStack(record.stack_info))
        return json.dumps(line, ensure_ascii=False, default=str)


def formatter(kind: str, known: Iterable[str] = ()) -> logging.Formatter:
    """The formatter of a form, `text` or `json`. Raises `ValueError` for any other."""
    if kind not in FORMATS:
        raise ValueError(f"RONDO_LOG_FORMAT is {kind!r}; it may be {' or '.join(FORMATS)}.")
    blot = Blotter(known)
    return JsonLines(blot) if kind == "json" else TextLines(blot)


_HIDDEN_VARIABLE = re.compile(r"(?:KEYS?|SECRET|TOKEN|PASSWORD)(?:_|$)")


def secrets_of_environment(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Values of variables that hold a secret by their name, and passwords inside addresses."""
    hidden = [value for name, value in environment.items() if _HIDDEN_VARIABLE.search(name.upper())]
    found = [one.strip() for value in hidden for one in value.split(",")]
    for name in ("DATABASE_URL", "RONDO_BROKER_URL"):
        if held := re.match(r"[^:/]+://[^:/@]*:(.+)@", environment.get(name, "")):
            found.append(held[1])
    return found


def log_to_stderr(level: int = logging.INFO) -> None:
    """Have a program without Django write its lines as RONDO_LOG_FORMAT says."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(os.environ.get("RONDO_LOG_FORMAT", "text"), secrets_of_environment()))
    logging.basicConfig(level=level, handlers=[handler])
