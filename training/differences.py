"""Where two texts differ, word by word."""

import difflib
import re
from dataclasses import dataclass

_WORDS = re.compile(r"\s+|\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of one text: common to both, or only here."""

    text: str
    common: bool


def differences(left: str, right: str) -> tuple[list[Stretch], list[Stretch]]:
    """Both texts cut into stretches; joined again they give the texts to the letter."""
    left_words, right_words = _WORDS.findall(left), _WORDS.findall(right)
    # White space alone is no common ground: it would cut a changed sentence into confetti.
    matcher = difflib.SequenceMatcher(isjunk=str.isspace, a=left_words, b=right_words, autojunk=False)
    on_left: list[Stretch] = []
    on_right: list[Stretch] = []
    for kind, a, b, c, d in matcher.get_opcodes():
        common = kind == "equal"
        if b > a:
            on_left.append(Stretch("".join(left_words[a:b]), common))
        if d > c:
            on_right.append(Stretch("".join(right_words[c:d]), common))
    return on_left, on_right
