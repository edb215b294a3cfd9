"""An environment variable: its type, its default, its limits."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

WEB = ("http", "https")


class Kind(Enum):
    """Types of variables."""

    TEXT = auto()
    NAMES = auto()
    """A list, separated by commas."""
    WHOLE_NUMBER = auto()
    NUMBER = auto()
    BOOLEAN = auto()
    CHOICE = auto()
    TIME_ZONE = auto()
    ADDRESS = auto()
    """A URL; `choices` are its schemes, any if empty."""


@dataclass(frozen=True, slots=True)
class Setting:
    """An environment variable."""

    name: str
    kind: Kind
    help: str
    """Description in Markdown, for the guide."""
    default: Any = ""
    """Value if unset; None if `webapp.settings` computes it."""
    low: float = 0
    high: float = 0
    choices: tuple[str, ...] = ()
    default_note: str = ""
    """Description of the default, if its value would say less."""
    is_secret: bool = False
    """Hide the value in messages."""

    @property
    def documented_default(self) -> str:
        """The default in the spelling of the variable; empty without one."""
        if isinstance(self.default, bool):
            return str(self.default).lower()
        if self.default is None or self.default_note or isinstance(self.default, tuple):
            return ""
        return str(self.default)
