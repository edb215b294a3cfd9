"""What one look at Rondo finds: how it stands, in a sentence, with a remedy and the place to go to."""

from dataclasses import dataclass
from enum import IntEnum

from django.utils.functional import Promise

Text = str | Promise


class Level(IntEnum):
    """How bad a finding is."""

    FINE = 0
    ATTENTION = 1
    """Nothing is broken, but somebody should know."""
    WRONG = 2
    """Something does not work, or will not for long."""

    @property
    def called(self) -> str:
        """As programs call it."""
        return self.name.lower()


LEVELS = tuple((level.called, level.called) for level in Level)
"""As choices of the API."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One finding. `remedy` is empty where all is well."""

    subject: str
    """What it is about, as programs call it: `database`, `broker`, …"""
    level: Level
    says: Text
    remedy: Text = ""
    link: str = ""
    """The address of the page where one sees more."""

    @property
    def is_wrong(self) -> bool:
        """Whether something does not work."""
        return self.level is Level.WRONG


def fine(subject: str, says: Text, *, link: str = "") -> Finding:
    """All is well."""
    return Finding(subject=subject, level=Level.FINE, says=says, link=link)


def attention(subject: str, says: Text, remedy: Text, *, link: str = "") -> Finding:
    """Somebody should know."""
    return Finding(subject=subject, level=Level.ATTENTION, says=says, remedy=remedy, link=link)


def wrong(subject: str, says: Text, remedy: Text, *, link: str = "") -> Finding:
    """Something does not work."""
    return Finding(subject=subject, level=Level.WRONG, says=says, remedy=remedy, link=link)
