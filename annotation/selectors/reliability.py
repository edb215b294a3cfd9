"""Reliability of a project's annotators, and the weights of their judgments.

Snapshots import this in web workers, too, so NumPy and SciPy come with the first call and not before.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from annotation.agreement.records import Judged
from annotation.models import Project
from annotation.selectors.judged import judged_in
from annotation.selectors.membership import groups_of_annotators

if TYPE_CHECKING:
    from annotation.agreement.reliability import Reliability


def project_reliability(
    judged: Iterable[Judged], groups: Mapping[int, str] = MappingProxyType({})
) -> "dict[int, Reliability]":
    """Return η of every annotator, by their id, from their preferences between all pairs in real work.

    groups: group by annotator; η within a group counts where it is higher.
    """
    from annotation.agreement.reliability import Preference, reliability_in_groups

    preferences = [
        Preference(
            item=judgment.comparison, annotator=judgment.annotator, left=left, right=right, outcome=outcome
        )
        for judgment in judged
        if judgment.is_first_work
        for left, right, outcome in judgment.outcomes()
    ]
    reliabilities = reliability_in_groups(preferences, dict(groups.items()))
    return {int(str(annotator)): reliability for annotator, reliability in reliabilities.items()}


def reliability_weights(project: Project, rounds: Sequence[int] | None = None) -> dict[int, float]:
    """Return the weight of each annotator's judgments of those rounds (all for None), by id.

    The weight is max(0, 2 η − 1): the share of judgments that carry the texts' quality rather than a
    tossed coin. 1 for who is never off, 0 for who answers at random or against everyone. Who shared
    no pair with anyone weighs as a newcomer does, 0.6. Everyone who judged a pair is in it. A group of
    annotators that is consistent with itself keeps its weight where it disagrees with the majority.
    """
    judged = list(judged_in(project, rounds))
    groups = groups_of_annotators(project, {judgment.annotator for judgment in judged})
    reliabilities = project_reliability(judged, groups)
    return {
        annotator: max(0.0, 2 * reliability.value - 1) for annotator, reliability in reliabilities.items()
    }
