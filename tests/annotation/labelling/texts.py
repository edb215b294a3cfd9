"""Hard texts: what makes browser and Python disagree about where a span is."""

import random

FAMILY = "👨\u200d👩\u200d👧"  # man, ZWJ, woman, ZWJ, girl: 5 code points, 8 UTF-16 units
FLAG = "🇩🇪"  # two regional indicators: 2 code points, 4 units

PIECES = [
    FAMILY, FLAG, "🏴\U000e0067\U000e0062\U000e0077\U000e006c\U000e0073\U000e007f", "👍🏽", "❤\ufe0f",
    "1\ufe0f\u20e3", "שלום", "مرحبا", "\u202eabc\u202c", "\u2067نص\u2069", "\u200f", "e\u0301", "ñ",
    "a\u0308\u0323", "각", "\u1100\u1161\u11a8", "नमस्ते", "ไทย", "\r\n", "\r", "\n", "\n\n", "\r\n\r\n", "\t",
    "  ", "   ", "\u00a0", "\u2003", "\u3000", "\ufeff", "\u200b", "\u00ad", "\u2028", "\u0085", "\x0b",
    "\x0c", "𝔘", "𠮷", "\uffff", "\ufffd", "\U00010000", "\U0010ffff", "中文", "a", "be", "word", "1.5",
    "&", "<", ">", "\"", "'", "",
]  # fmt: skip
"""Stretches that count differently, vanish, join, turn around or look like a space."""

MARKDOWN = [
    "**", "*", "_", "`", "``", "```\n", "~~~\n", "# ", "\n## ", "\n- ", "\n1. ", "\n> ", "\n    ", "  \n",
    "\\\n", "\\*", "&amp;", "&nbsp;", "&#128512;", "<b>", "</b>", "[", "](http://a.b)", "[t](http://u)",
    "<http://x.y>", "\n|a|b|\n|-|-|\n|", "|", "\n---\n", "$x$", "$😀_1$", r"\(a<b\)", "$$\ny^2\n$$\n",
    "\n\n$$a+b$$\n\n", "$5 ", "$", r"\[ \frac{1}{2} \]",
]  # fmt: skip
"""Texts of which Markdown and LaTeX take away, add or move something."""


def plain_text(draw: random.Random) -> str:
    """A short text of hard pieces."""
    return "".join(draw.choices(PIECES, k=draw.randrange(1, 9)))


def markdown_text(draw: random.Random) -> str:
    """A short answer that mixes hard pieces with Markdown and formulas."""
    weights = [2] * len(PIECES) + [1] * len(MARKDOWN)
    return "".join(draw.choices([*PIECES, *MARKDOWN], weights, k=draw.randrange(2, 14)))
