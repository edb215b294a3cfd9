"""Questions to ask once before an annotation is stored: the person decides. Nothing here writes.

static/js/label-answers.js has the same rules, so that the browser asks before it shows the next item.
The server decides: it asks whatever the page did not confirm.
"""

import string
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations

from django.utils.translation import gettext as _

from annotation.agreement.records import outcome_between
from annotation.choices import Polarity, Verdict
from annotation.models import Assignment, Category
from annotation.record.judgment import JudgmentRecord
from annotation.selectors.configuration import configuration_of
from annotation.services.judgments.checks import dense_ranks

_WEIGHT = {Polarity.ERROR: 1, Polarity.NEUTRAL: 0, Polarity.MERIT: -1}


@dataclass(frozen=True, slots=True)
class Doubt:
    """One question about an answer. `key` names it: the same key was asked before and is not asked again."""

    key: str
    message: str


def doubts_of(answer: JudgmentRecord, assignment: Assignment) -> tuple[Doubt, ...]:
    """Return the questions that an annotation raises, in the letters of the page on which it was made.

    - A ranking of three or more, of all of them, that is exactly the order shown.
    - A winner with more or more severe error spans than the loser: spans count by their severity (1
      where there is none), errors for and merits against. Of several such pairs the one with the
      largest difference, the first in displayed order among equals.
    - No rating at all, where the project has criteria and the responses could be judged.
    """
    configured = configuration_of(assignment.comparison.project)
    categories = {category.key: category for category in configured.categories}
    unrated = (
        bool(configured.asked_criteria) and not answer.ratings and answer.verdict != Verdict.CANNOT_JUDGE
    )
    doubts = (Doubt("unrated", _("No response is rated.")),) if unrated else ()
    if answer.verdict != Verdict.RANKED or len(assignment.display_order) < 2:
        return doubts
    ranks = dense_ranks({int(pk): rank for pk, rank in answer.ranks.items()}, assignment.display_order)
    return (
        *_as_shown(ranks, assignment),
        *_against_marks(answer, ranks, assignment, categories),
        *doubts,
    )


def _as_shown(ranks: Mapping[int, int], assignment: Assignment) -> tuple[Doubt, ...]:
    shown = [ranks.get(pk) for pk in assignment.display_order]
    if len(shown) < 3 or shown != list(range(1, len(shown) + 1)):
        return ()
    return (Doubt("as-shown", _("This is exactly the order shown.")),)


def _against_marks(
    answer: JudgmentRecord,
    ranks: Mapping[int, int],
    assignment: Assignment,
    categories: Mapping[str, Category],
) -> tuple[Doubt, ...]:
    badness = dict.fromkeys(assignment.display_order, 0)
    for span in answer.spans:
        polarity = Polarity(categories[span.category].polarity)
        badness[int(span.completion)] += _WEIGHT[polarity] * (span.severity or 1)
    against = [
        (badness[better] - badness[worse], better, worse)
        for better, worse in permutations(assignment.display_order, 2)
        if badness[better] > badness[worse] and outcome_between(ranks, better, worse) == 1
    ]
    if not against:
        return ()
    _difference, better, worse = max(against, key=lambda pair: pair[0])
    letters = dict(zip(assignment.display_order, string.ascii_uppercase, strict=False))
    winner, loser = letters[better], letters[worse]
    message = _("%(winner)s is ranked above %(loser)s, but has more or more severe error spans.") % {
        "winner": winner,
        "loser": loser,
    }
    return (Doubt(f"against-marks-{winner}-{loser}", message),)
