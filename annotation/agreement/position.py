"""Position bias: wins of completions by their position."""

from collections.abc import Sequence

import numpy as np

from annotation.agreement.bootstrap import RESAMPLES, estimate_of, ratio
from annotation.agreement.estimate import Estimate, Missing, PositionBias, absent
from annotation.agreement.shares import binomial_test, wilson_interval

Outcomes = Sequence[tuple[int, int, int]]
"""(earlier position, later position, 1 earlier won | −1 later won | 0 neither), positions from 0."""


def position_bias(items: Sequence[Outcomes], *, resamples: int = RESAMPLES) -> PositionBias:
    """The bias over all pairs of all items; an item is what one comparison's judgments said."""
    rows = [
        (
            sum(outcome > 0 for _, _, outcome in item),
            sum(outcome != 0 for _, _, outcome in item),
            len(item),
        )
        for item in items
    ]
    wins, decided, pairs = (sum(row[column] for row in rows) for column in range(3))
    if not decided:
        nothing = absent(Missing.NO_DATA if not pairs else Missing.ALL_TIED, items=len(items))
        return PositionBias(wins=0, decided=0, tied=pairs, estimate=nothing, over_items=nothing, p_value=None)
    counted = np.array([row[:2] for row in rows if row[1]], dtype=np.float64)
    low, high = wilson_interval(wins, decided)
    return PositionBias(
        wins=wins,
        decided=decided,
        tied=pairs - decided,
        estimate=Estimate(value=wins / decided, low=low, high=high, items=len(counted)),
        over_items=estimate_of(counted, ratio, resamples=resamples),
        p_value=binomial_test(wins, decided),
    )


def win_share_by_position(items: Sequence[Outcomes], *, resamples: int = RESAMPLES) -> list[Estimate]:
    """By position: the share of its decided pairs that the completion there won; a half without bias."""
    size = 1 + max((later for item in items for _, later, _ in item), default=-1)
    rows = np.zeros((size, len(items), 2))
    for number, item in enumerate(items):
        for earlier, later, outcome in item:
            if outcome:
                rows[[earlier, later], number, 1] += 1
                rows[earlier if outcome > 0 else later, number, 0] += 1
    counted = [place[place[:, 1] > 0] for place in rows]
    return [
        estimate_of(place, ratio, resamples=resamples) if len(place) else absent(Missing.NO_DATA)
        for place in counted
    ]
