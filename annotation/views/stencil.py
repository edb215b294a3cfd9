"""A stencil: the HTML of a template, rendered once, with gaps for what differs from page to page.

A gap is rendered like any other value, as a number that nobody can guess, and then cut out. A
number passes through every filter, address and attribute as it is; what fills the gap later is
escaped then.
"""

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.utils.html import conditional_escape
from django.utils.safestring import SafeString, mark_safe

# Drawn by each process for itself and never sent: no text of a project can hold it.
_SECRET = "".join(secrets.choice("123456789") for _ in range(24))
_GAP = re.compile(_SECRET + r"(\d{3})")


class Gaps:
    """Hands out the gaps of one stencil."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, name: str) -> str:
        """What stands in the template for the value of this name; the same name may be given again."""
        if name not in self.names:
            self.names.append(name)
        return f"{_SECRET}{self.names.index(name):03}"


@dataclass(frozen=True, slots=True)
class Stencil:
    """HTML between gaps, and the name of each gap."""

    texts: tuple[str, ...]
    """One more than there are gaps."""
    names: tuple[str, ...]

    @classmethod
    def cut(cls, markup: str, gaps: Gaps) -> "Stencil":
        """The stencil of what was rendered with these gaps."""
        texts = _GAP.split(markup)
        return cls(tuple(texts[::2]), tuple(gaps.names[int(number)] for number in texts[1::2]))

    def filled(self, value: Callable[[str], Any]) -> SafeString:
        """The page: `value(name)` in every gap, asked once per name, escaped unless it is safe already."""
        values = {name: conditional_escape(value(name)) for name in dict.fromkeys(self.names)}
        filled = [self.texts[0]]
        for name, text in zip(self.names, self.texts[1:], strict=True):
            filled += (values[name], text)
        return mark_safe("".join(filled))  # noqa: S308 - a template's own output, and what was escaped
