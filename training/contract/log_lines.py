"""Log lines: their form, their fields, and the removal of secrets. On the standard library alone.

Web, workers and the model server write the same lines: text for people, or a JSON object per line for
programs (RONDO_LOG_FORMAT). Each line has the fields of its context: request, user number, route, job.
Passwords, keys, tokens and cookies are removed wherever they occur.
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
from pathlib import Path
from types import MappingProxyType
from typing import Any

FORMATS = ("text", "json")
BLOT = "[secret]"
TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{7,63}")

Field = str | int | Callable[[], str | int | None] | None
"""A value, or a function called when a line is written: the user is unknown when a request begins."""
Fields = Mapping[str, Field]

_NONE: Fields = MappingProxyType({})
_fields: ContextVar[Fields] = ContextVar("rondo_log_fields", default=_NONE)


# ── Fields of a line ──────────────────────────────────────────────────────────────────


def enter(fields: Fields) -> Token[Fields]:
    """Add fields to the following log lines of this thread, until `leave`."""
    return _fields.set({**_fields.get(), **fields})


def leave(token: Token[Fields]) -> None:
    """Undo an `enter`."""
    _fields.reset(token)


def forget() -> None:
    """Remove all fields from the following log lines of this thread."""
    _fields.set(_NONE)


@contextmanager
def bearing(**fields: Field) -> Iterator[None]:
    """Add fields to the log lines written inside the block."""
    token = enter(fields)
    try:
        yield
    finally:
        leave(token)


def fields_now() -> dict[str, str | int]:
    """Return the current fields of a log line, without empty ones."""
    values = ((name, value() if callable(value) else value) for name, value in _fields.get().items())
    return {name: value for name, value in values if value not in (None, "")}


def new_request_id() -> str:
    """Return a unique request id: 16 hexadecimal digits."""
    return secrets.token_hex(8)


def is_request_id(text: str) -> bool:
    """Return whether an id is valid: 8 to 64 letters, digits, dots, underscores and hyphens."""
    return _REQUEST_ID.fullmatch(text) is not None


# ── Secrets ──────────────────────────────────────────────────────────────────────────

_HIDDEN_NAME = (
    r"[\w.-]*(?:passw(?:or)?d|passphrase|pwd|secret|token(?!s|_count|_id|i[sz])|api[_-]?key|access[_-]?key|private[_-]?key|"
    r"session_?id|csrf\w*|credential)[\w-]*"
)
_KEY_VARIABLE = r"(?:[A-Z0-9_]*_)?KEY(?:_[A-Z0-9_]+)?"
_QUOTE = r"""(?:\\?["'])?"""
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # Whole headers first: the value of a cookie or an authorization ends with the line or its quote.
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
    # Tokens with a known prefix.
    (
        re.compile(
            r"\b(?:rondo_(?=[\w-]{32})|sk-|sk_live_|hf_|gh[opsur]_|github_pat_|glpat-|whsec_|xox[abpr]-|AKIA|ASIA|AIza)"
            r"[A-Za-z0-9_+/=-]{12,}"
        ),
        BLOT,
    ),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"), BLOT),
    # The address of an invitation is a secret: it lets its reader join.
    (re.compile(r"(/invitations/)(?!\d+/)[\w-]{8,}"), rf"\1{BLOT}"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S), BLOT),
)
_SHORTEST_KNOWN = 6
_LONGEST = 32_768
"""Characters of a message or a traceback that are searched for secrets; the search is slow on more."""


class Blotter:
    """Remover of secrets from texts: known values, and all that look like a secret."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        """Take as `known` values that are secret in any context; those under six characters are ignored."""
        longest_first = sorted(
            {value for value in known if len(value) >= _SHORTEST_KNOWN}, key=len, reverse=True
        )
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def __call__(self, text: str) -> str:
        """Return the text with every secret replaced by `BLOT`."""
        if len(text) > _LONGEST:
            text = f"{text[:_LONGEST]} … ({len(text)} characters)"
        if self._known is not None:
            text = self._known.sub(BLOT, text)
        for pattern, instead in _PATTERNS:
            text = pattern.sub(instead, text)
        return text


# ── The two forms ─────────────────────────────────────────────────────────────────────


class TextLines(logging.Formatter):
    """A line for people, with its fields in brackets at the end."""

    def __init__(self, blot: Blotter) -> None:
        super().__init__(TEXT_FORMAT)
        self._blot = blot

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """Return the line without a traceback. Line breaks are escaped: they would forge a line."""
        line = super().formatMessage(record).replace("\r", "\\r").replace("\n", "\\n")
        fields = " ".join(f"{name}={value}" for name, value in fields_now().items())
        return f"{line} [{fields}]" if fields else line

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, followed by its traceback."""
        return self._blot(super().format(record))


class JsonLines(logging.Formatter):
    """A JSON object per line: time (UTC), level, logger, message, process, fields, exception."""

    def __init__(self, blot: Blotter) -> None:
        super().__init__()
        self._blot = blot

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
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
    """Return the formatter `text` or `json`. Raises `ValueError` for any other."""
    if kind not in FORMATS:
        raise ValueError(f"RONDO_LOG_FORMAT is {kind!r}; it may be {' or '.join(FORMATS)}.")
    blot = Blotter(known)
    return JsonLines(blot) if kind == "json" else TextLines(blot)


_HIDDEN_VARIABLE = re.compile(r"(?:KEYS?|SECRET|TOKEN|PASSWORD)(?:_|$)")


def secrets_of_environment(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the values of variables whose names mark a secret, and passwords inside addresses."""
    hidden = [value for name, value in environment.items() if _HIDDEN_VARIABLE.search(name.upper())]
    values = [part.strip() for value in hidden for part in value.split(",")]
    for name in ("DATABASE_URL", "RONDO_BROKER_URL", "RONDO_EMAIL_URL"):
        if password := re.match(r"[^:/]+://[^:/@]*:(.+)@", environment.get(name, "")):
            values.append(password[1])
    return values


def log_to_stderr(level: int = logging.INFO) -> None:
    """Send the logs of a program without Django to stderr in the format RONDO_LOG_FORMAT."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(os.environ.get("RONDO_LOG_FORMAT", "text"), secrets_of_environment()))
    logging.basicConfig(level=level, handlers=[handler])


def tail(path: Path, *, lines: int, most_bytes: int = 16_384) -> str:
    """Return the last lines of a text file; empty if it is missing."""
    if not path.is_file():
        return ""
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - most_bytes))
        text = stream.read().decode("utf-8", errors="replace")
    return "\n".join(text.strip().splitlines()[-lines:])


def search_lines(path: Path, text: str, *, most_bytes: int) -> tuple[list[str], bool]:
    """Return the lines of a text file that contain `text` in any case; search its last `most_bytes`.

    The second value is true if its beginning was left out.
    """
    if not path.is_file():
        return [], False
    folded_text = text.casefold()
    with path.open("rb") as stream:
        start = max(0, path.stat().st_size - most_bytes)
        stream.seek(start)
        lines = stream.read(most_bytes).decode("utf-8", errors="replace").splitlines()
    # The first line is a part of one where the beginning is left out.
    return [line for line in lines[1 if start else 0 :] if folded_text in line.casefold()], start > 0


@contextmanager
def errors_alone() -> Iterator[None]:
    """Log nothing below an error inside this block, for commands whose screen shows only their own lines."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)
