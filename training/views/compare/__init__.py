"""Checkpoints beside each other: asking, showing, voting. Every page works without JavaScript."""

from training.views.compare.asking import compare, compare_answer, compare_continue
from training.views.compare.showing import compare_reveal, compare_shown, compare_vote, compare_write

__all__ = [
    "compare",
    "compare_answer",
    "compare_continue",
    "compare_reveal",
    "compare_shown",
    "compare_vote",
    "compare_write",
]
