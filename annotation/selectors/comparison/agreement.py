"""Agreement of the annotators of one comparison. Plain Python: it loads no NumPy."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from django.db.models import Q
from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from annotation.agreement.readings import Units, by_comparison, pair_units
from annotation.choices import Purpose
from annotation.models import Comparison
from annotation.selectors.judged import judged_in


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonAgreement:
    """Percent agreement on one comparison: current first annotations of people, retests aside."""

    annotators: int
    share: float | None
    """Mean over pairs of responses of the share of pairs of annotators who agree; None for nothing shared."""
    pairs: int
    """Pairs of responses on which two annotators gave a preference."""
    winners: Mapping[int | None, int]
    """Of a comparison of two: completion → how many prefer it; None counts those who prefer neither."""


def agreement_on(comparison: Comparison) -> ComparisonAgreement | None:
    """Return the agreement on a comparison; None where it is no work, as for gold items. Two queries."""
    if comparison.purpose != Purpose.WORK:
        return None
    narrowed = Q(comparison=comparison)
    judged = judged_in(comparison.project, [comparison.round_number], narrowed=narrowed)
    item = by_comparison(judged).get(comparison.pk, [])
    units = pair_units(item)
    shared = [unit for unit in units if len(unit) > 1]
    winners: Counter[int | None] = Counter()
    if comparison.size == 2:
        for judgment in item:
            winners.update(
                left if outcome > 0 else right if outcome < 0 else None
                for left, right, outcome in judgment.outcomes()
            )
    return ComparisonAgreement(
        annotators=len({reading.annotator for reading in item}),
        share=_share(shared),
        pairs=len(shared),
        winners=winners,
    )


def in_a_sentence(agreement: ComparisonAgreement, numbers: Mapping[int, int]) -> str:
    """Return the agreement in words; `numbers` are those of the responses."""
    if agreement.annotators < 2:
        return ngettext(
            "%(count)s annotation: agreement needs two annotators.",
            "%(count)s annotations: agreement needs two annotators.",
            agreement.annotators,
        ) % {"count": agreement.annotators}
    if agreement.share is None:
        return _("No two annotators gave a preference on the same pair of responses.")
    percent = number_format(round(100 * agreement.share)) + "\N{NO-BREAK SPACE}%"
    text = ngettext(
        "%(people)s annotators agree %(percent)s on %(pairs)s pair of responses.",
        "%(people)s annotators agree %(percent)s on %(pairs)s pairs of responses.",
        agreement.pairs,
    ) % {"people": agreement.annotators, "percent": percent, "pairs": agreement.pairs}
    return " ".join([text, *_preferences(agreement, numbers)])


def _preferences(agreement: ComparisonAgreement, numbers: Mapping[int, int]) -> list[str]:
    sentences = [
        ngettext("%(count)s prefers response %(number)s.", "%(count)s prefer response %(number)s.", count)
        % {"count": count, "number": numbers[winner]}
        for winner, count in sorted(agreement.winners.items(), key=lambda pair: numbers.get(pair[0] or 0, 0))
        if winner is not None
    ]
    if neither := agreement.winners.get(None, 0):
        text = ngettext("%(count)s prefers neither.", "%(count)s prefer neither.", neither)
        sentences.append(text % {"count": neither})
    return sentences


def _share(shared: Units) -> float | None:
    if not shared:
        return None
    shares = []
    for unit in shared:
        people = len(unit)
        alike = sum(count * (count - 1) for count in Counter(unit.values()).values())
        shares.append(alike / (people * (people - 1)))
    return sum(shares) / len(shares)
