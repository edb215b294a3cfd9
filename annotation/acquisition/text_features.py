"""Features of a completion that need no model: counts, and words by signed hashing. NumPy alone.

They are there the moment a completion is, whatever wrote it, and cost a fraction of a millisecond. On
published judgments word n-grams know about as much of a preference as a small model does, see
tests/benchmarks/quality.md.
"""

from __future__ import annotations

import itertools
import math
import re
import zlib

import numpy as np
from numpy.typing import NDArray

SPACE = "text-1"
"""Name of these features: another name where they mean something else."""

SURFACE = (
    *("words", "log_words", "lines", "item_share", "sentence_words", "word_letters", "variety"),
    *("overlap_prompt", "digits", "capitals", "questions", "exclamations", "ends"),
    *("code", "emphasis", "refusal"),
)
"""Names of the first columns."""
HASHED = 80
"""Columns that words and pairs of words are hashed into."""
DIMENSIONS = len(SURFACE) + HASHED

_WORD = re.compile(r"\w+(?:['’]\w+)*")
_ITEM = re.compile(r"^[ \t]*(?:[-*•+]|\d{1,3}[.)])[ \t]+\S")
_REFUSAL = re.compile(
    r"\b(?:i(?:['’]m| am) (?:very |so |really )?sorry|i apologi[sz]e|i (?:can(?:['’]t|not)|won['’]t)"
    r"|i am unable|as an ai)\b",
    re.IGNORECASE,
)
_ENDS = tuple(".!?…:;)\"'”’`")


def features_of(prompt: str, text: str) -> NDArray[np.float32]:
    """Return the features of a completion of a prompt, (DIMENSIONS,)."""
    words = _WORD.findall(text.lower())
    values = np.zeros(DIMENSIONS, dtype=np.float32)
    values[: len(SURFACE)] = _surface(prompt, text, words)
    if words:
        scale = 1 / math.sqrt(len(words))
        for token in (*words, *map(" ".join, itertools.pairwise(words))):
            code = zlib.crc32(token.encode())
            values[len(SURFACE) + (code >> 1) % HASHED] += scale if code & 1 else -scale
    return values


def _surface(prompt: str, text: str, words: list[str]) -> list[float]:
    count = len(words)
    per_word = 1 / max(1, count)
    lines = [line for line in text.splitlines() if line.strip()]
    sentences = max(1, sum(text.count(sign) for sign in ".!?"))
    prompt_words = set(_WORD.findall(prompt.lower()))
    letters = max(1, len(text))
    return [
        min(count, 500) / 100,
        math.log1p(count),
        math.log1p(len(lines)),
        sum(bool(_ITEM.match(line)) for line in lines) / max(1, len(lines)),
        min(count / sentences, 60) / 20,
        sum(map(len, words)) * per_word,
        len(set(words)) * per_word,
        # Of what the prompt says, the share that is taken up.
        len(prompt_words.intersection(words)) / max(1, len(prompt_words)),
        10 * sum(map(str.isdigit, text)) / letters,
        10 * sum(map(str.isupper, text)) / letters,
        math.log1p(text.count("?")),
        math.log1p(text.count("!")),
        float(text.rstrip().endswith(_ENDS)),
        float("```" in text),
        math.log1p(text.count("**") / 2),
        float(bool(_REFUSAL.search(text))),
    ]
