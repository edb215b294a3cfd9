"""Ends of the segments of a completion, by the rules under which spans are rewarded.

Those rules belong to `training`, which this application does not know: `training.apps` registers them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from annotation.choices import Granularity, Polarity

Segments = Sequence[tuple[int, int]]
"""[start, end) in code points."""
StepGranularity = Literal["sub-sentence", "sentence"]
Cut = Callable[[str, StepGranularity], Segments]
_registered: list[Cut] = []


def register(cut: Cut) -> None:
    """Cut texts by these rules from now on: a text and a granularity → its segments."""
    _registered[:] = [cut]


def segments(text: str, granularity: StepGranularity) -> list[tuple[int, int]]:
    """The segments of a text without the white space around them. Raises `LookupError` without rules."""
    if not _registered:
        raise LookupError("no rules for segments are registered; add the app that holds them")
    positions = []
    for start, end in _registered[0](text, granularity):
        quote = text[start:end]
        if core := quote.strip():
            begin = start + len(quote) - len(quote.lstrip())
            positions.append((begin, begin + len(core)))
    return positions


def step_granularity(granularities: Mapping[str, str], polarities: Mapping[str, str]) -> StepGranularity:
    """The finest granularity of a project's error categories: by it, completions are cut into steps.

    Where errors are rewarded over the whole completion alone, or there are no categories, sentences.
    """
    of_errors = {
        granularity
        for key, granularity in granularities.items()
        if polarities.get(key, Polarity.ERROR) == Polarity.ERROR
    }
    return "sub-sentence" if Granularity.SUB_SENTENCE in of_errors else "sentence"
