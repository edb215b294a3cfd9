"""Redaction: what a project's patterns match never reaches the database. Time is bounded for any pattern."""

import time
from collections.abc import Sequence

import regex
from django.utils.translation import gettext as _

from annotation.errors import Refusal

REPLACEMENT = "[redacted]"
SECONDS = 1.0
"""For all texts of one request. What takes longer is not stored."""
MOST_PATTERNS = 50
LONGEST_PATTERN = 500
SUGGESTED = (r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+", r"\+?\d[\d ()/-]{6,}\d")
"""E-mail addresses, and telephone or account numbers."""

_PROBE_SECONDS = 0.2
_PROBES = (*(character * 3_000 + "\n!" for character in "a0 .-@"), "a1 @." * 1_000)
"""Texts on which patterns with nested or overlapping repetition take exponential time."""


class TooSlowError(Exception):
    """The patterns took longer than a request may."""


class Redactor:
    """The patterns of a project, for the texts of one request. `count` is how often they matched."""

    def __init__(self, patterns: Sequence[str], *, seconds: float = SECONDS) -> None:
        self._patterns = [regex.compile(pattern) for pattern in patterns]
        self._until = time.monotonic() + seconds
        self.count = 0

    def __call__(self, text: str) -> str:
        """Return the text with every match replaced. Raises `TooSlowError` when time is up."""
        for pattern in self._patterns:
            left = self._until - time.monotonic()
            if left <= 0:
                raise TooSlowError
            try:
                # Other threads answer requests meanwhile.
                text, matches = pattern.subn(REPLACEMENT, text, timeout=left, concurrent=True)
            except TimeoutError as error:
                raise TooSlowError from error
            self.count += matches
        return text


def checked_patterns(lines: Sequence[str]) -> list[str]:
    """Return patterns without blank lines. Refuses what does not compile, matches nothing, or is slow."""
    patterns = [line.strip() for line in lines if line.strip()]
    if len(patterns) > MOST_PATTERNS:
        raise Refusal(
            "too_many_patterns", _("Enter at most %(most)d patterns."), field="patterns", most=MOST_PATTERNS
        )
    for number, pattern in enumerate(patterns, start=1):
        if fault := _fault(pattern):
            raise Refusal(
                "invalid_pattern",
                _("Pattern %(number)d: %(fault)s"),
                field="patterns",
                number=number,
                fault=fault,
            )
    return patterns


def _fault(pattern: str) -> str:
    if len(pattern) > LONGEST_PATTERN or "\x00" in pattern:
        return _("it has more than %(most)d characters.") % {"most": LONGEST_PATTERN}
    try:
        compiled = regex.compile(pattern)
    except (regex.error, ValueError, OverflowError, RecursionError) as error:
        return _("it is no regular expression (%(why)s).") % {"why": error}
    try:
        if compiled.search("", timeout=_PROBE_SECONDS):
            return _("it matches an empty text, so it would match everywhere.")
        for probe in _PROBES:
            compiled.subn(REPLACEMENT, probe, timeout=_PROBE_SECONDS)
    except TimeoutError:
        return _("it takes too long on some texts. Avoid repetition within repetition.")
    return ""
