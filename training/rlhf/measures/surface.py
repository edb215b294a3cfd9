"""Surface features of a completion, which can be counted without understanding it, and dependence on them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

import numpy as np

from training.contract import SnapshotRow
from training.rlhf.measures.calibration import Floats, cosine

SURFACE_FEATURES = (
    "words",
    "log_words",
    "list_items",
    "overlap_prompt",
    "overlap_context",
    "refusal",
    "truncated",
)
"""Names of the features, in the order of the columns."""

TEXT_FEATURES = ("words", "log_words", "list_items", "overlap_prompt", "refusal", "truncated", "repeated")
"""Those that a reward model can read from a text and its prompt alone, in the order of the columns."""
LENGTH = TEXT_FEATURES.index("log_words")
_REPEATED_WORDS = 3

_WORD = re.compile(r"\w+(?:['’]\w+)*")
_ITEM = re.compile(r"^[ \t]*(?:[-*•+]|\d{1,3}[.)])[ \t]+\S", re.MULTILINE)
_REFUSAL = re.compile(
    r"""\b(?:
        i(?:['’]m|\ am)\ (?:very\ |so\ |really\ )?sorry | i\ apologi[sz]e
      | i\ (?:can(?:['’]t|not|\ not)|could\ not|couldn['’]t|won['’]t|will\ not)
      | i(?:['’]m|\ am)\ (?:not\ (?:able|sure|comfortable|going)|unable)
      | i\ (?:do\ not|don['’]t)\ (?:know|think\ i|feel\ comfortable|have\ (?:access|enough))
      | as\ an\ ai | (?:it|that)\ (?:would\ be|is|['’]s)\ (?:illegal|unethical|wrong)
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)
_END = re.compile(r"""(?:[.!?…:;。！？]|```|[)\]}|*_~])["'”’»)\]*_]*\s*$|^\s*$""")
_WHOLE_WITHOUT_END = 8
"""Completions of fewer words, such as a name or a number, need no full stop."""


def words(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return [word.lower() for word in _WORD.findall(text)]


def surface_features(row: SnapshotRow, completions: Iterable[str]) -> Floats:
    """Return the features of completions of one judgment, (completions, features).

    words and their logarithm (of one more); items of lists; share of the words that the prompt has, and that
    the context passages have; 1 for a phrase of refusal or apology; 1 for a text that ends amid a sentence.
    """
    prompt = {word for message in row.messages for word in words(message.content)}
    passages = (part for passage in row.context for part in (passage.title, *passage.sentences))
    context = {word for part in passages for word in words(part)}
    texts = {completion.id: completion.text for completion in row.completions}
    return np.array([_of_text(texts[name], prompt, context) for name in completions], dtype=np.float64)


def _of_text(text: str, prompt: set[str], context: set[str]) -> list[float]:
    text_words = words(text)
    count = len(text_words)

    def share(known: set[str]) -> float:
        return sum(word in known for word in text_words) / count if count else 0.0

    return [
        float(count),
        math.log1p(count),
        float(len(_ITEM.findall(text))),
        share(prompt),
        share(context),
        float(bool(_REFUSAL.search(text))),
        float(count >= _WHOLE_WITHOUT_END and not _END.search(text)),
    ]


def text_features(prompt: str, completion: str) -> list[float]:
    """Return the features of one completion, as `TEXT_FEATURES` names them.

    repeated: share of its runs of three words that stand in it before.
    """
    named = dict(zip(SURFACE_FEATURES, _of_text(completion, set(words(prompt)), set()), strict=True))
    said = words(completion)
    runs = [tuple(said[place : place + _REPEATED_WORDS]) for place in range(len(said) - _REPEATED_WORDS + 1)]
    named["repeated"] = 1 - len(set(runs)) / len(runs) if runs else 0.0
    return [named[name] for name in TEXT_FEATURES]


# ── Dependence of a reward model on surface features: their score differences beside its own ──


def length_controlled_accuracy(margins: Floats, longer: Floats, share: Floats) -> float | None:
    """Return the mean of two accuracies: where the longer completion was chosen, and where the shorter was.

    Length alone has ½. margins, longer, share: (pairs,), `longer` the length of the chosen less the rejected.
    None where one of the two kinds has no pair.
    """
    right = (np.sign(margins) + 1) / 2
    parts = [kind for kind in (longer > 0, longer < 0) if kind.any()]
    if len(parts) < 2:
        return None
    return float(np.mean([np.average(right[part], weights=share[part]) for part in parts]))


def correlations(margins: Floats, features: Mapping[str, Floats]) -> dict[str, float]:
    """Return the correlation of score differences with each feature's differences over pairs.

    Every pair counts in both orders, so both means are 0 (see `calibration.length_bias`). Features that never
    differ, and all where no scores differ, are left out.
    """
    if not margins.any():
        return {}
    return {name: cosine(margins, values) for name, values in features.items() if values.any()}
