"""Reliability of a project's annotators, and the weights of their judgments.

Snapshots import this in web workers, too, so NumPy and SciPy come with the first call and not before.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from annotation.agreement.records import Judged
from annotation.models import Project
from annotation.selectors.judged import judged_in

if TYPE_CHECKING:
    from annotation.agreement.reliability import Reliability


def project_reliability(judged: Iterable[Judged]) -> "dict[int, Reliability]":
    """η of every annotator, by their id, from what was said of every pair in real work."""
    from annotation.agreement.reliability import Preference, annotator_reliability

    preferences = [
        Preference(item=one.comparison, annotator=one.annotator, left=left, right=right, outcome=outcome)
        for one in judged
        if one.is_first_work
        for left, right, outcome in one.outcomes()
    ]
    found = annotator_reliability(preferences)
    return {int(str(annotator)): reliability for annotator, reliability in found.items()}


def reliability_weights(project: Project, rounds: Sequence[int] | None = None) -> dict[int, float]:
    """Return the weight of each annotator's judgments of those rounds (all for None), by id.

    The weight is max(0, 2 η − 1): the share of judgments that carry the texts' quality rather than a
    tossed coin. 1 for who is never off, 0 for who answers at random or against everyone. Who shared
    no pair with anyone weighs as a newcomer does, 0.6. Everyone who judged a pair is in it.
    """
    found = project_reliability(judged_in(project, rounds))
    return {annotator: max(0.0, 2 * reliability.value - 1) for annotator, reliability in found.items()}
