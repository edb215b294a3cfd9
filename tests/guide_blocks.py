"""The code blocks of the guide and the README, each with the page that it stands on."""

import re
from dataclasses import dataclass
from textwrap import dedent

from tests.architecture.test_house import ROOT

GUIDE = ROOT / "webapp" / "guide"
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```\n", flags=re.M | re.S)
_INDENTED = re.compile(r"(?:^ {4,}\S.*\n(?:\s*\n(?= {4,}))?)+", flags=re.M)


@dataclass(frozen=True, kw_only=True)
class Block:
    """One code block."""

    page: str
    """Path below the guide; README.md for that of the repository."""
    text: str

    @property
    def lines(self) -> list[str]:
        """Its lines without empty ones; those that a backslash continues are one."""
        return [line for line in self.text.replace("\\\n", " ").splitlines() if line.strip()]

    def __str__(self) -> str:
        """Name it in the list of tests."""
        return f"{self.page}: {self.text.splitlines()[0].strip()[:40]}"


def blocks() -> list[Block]:
    """Every code block, in the order of pages."""
    fenced = []
    for path in [*sorted(GUIDE.rglob("*.md")), ROOT / "README.md"]:
        page = path.relative_to(GUIDE if path.is_relative_to(GUIDE) else ROOT).as_posix()
        text = path.read_text(encoding="utf-8")
        fenced += [Block(page=page, text=code) for _language, code in _FENCED.findall(text)]
        fenced += [Block(page=page, text=dedent(code)) for code in _INDENTED.findall(_FENCED.sub("\n", text))]
    return fenced


def block(page: str, beginning: str) -> str:
    """The text of the one block of a page that begins so."""
    (text,) = [
        code_block.text
        for code_block in blocks()
        if code_block.page == page and code_block.text.startswith(beginning)
    ]
    return text
