"""The arithmetic of an evaluation: win rates, gains and ratios with their intervals. Knows no database.

A prompt is the unit: several votes on one prompt are no independent evidence, so prompts are resampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

# Figures are computed by a worker, and seldom: a web process that shows them loads no NumPy.
if TYPE_CHECKING:
    from annotation.agreement.bootstrap import Floats

WIN, TIE, LOSS = 1.0, 0.5, 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One measured figure with its 95 % interval; no bounds where too few prompts carry one."""

    value: float
    low: float | None
    high: float | None
    prompts: int
    """How many prompts it rests on."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any] | None) -> Self | None:
        """The figure that `to_json` wrote; None for null."""
        return None if values is None else cls(**values)

    def to_json(self) -> dict[str, Any]:
        """The figure as decoded JSON."""
        return asdict(self)


def outcome_of(old: float, new: float) -> float:
    """What a higher score of the new answer makes: 1 a win, a half a tie, 0 a loss."""
    return TIE if new == old else WIN if new > old else LOSS


def win_rate(outcomes: Sequence[Sequence[float]]) -> Figure | None:
    """The mean outcome of all votes, given by prompt; None without any.

    The interval is that of the bootstrap over prompts. Where every vote says the same, resampling
    knows no other outcome and would be sure of anything; then it is Wilson's of so many prompts.
    """
    import numpy as np

    from annotation.agreement.shares import wilson_interval

    rows = np.array([(sum(votes), len(votes)) for votes in outcomes if votes], dtype=np.float64)
    if not len(rows):
        return None
    value = float(rows[:, 0].sum() / rows[:, 1].sum())
    if value in (LOSS, WIN):
        low, high = wilson_interval(len(rows) if value == WIN else 0, len(rows))
        return Figure(value=value, low=low, high=high, prompts=len(rows))
    return _resampled(rows, value)


def mean_of(values: Sequence[float]) -> Figure | None:
    """The mean of one value for each prompt; None without any."""
    import numpy as np

    rows = np.array([(value, 1.0) for value in values], dtype=np.float64)
    return _resampled(rows, float(rows[:, 0].mean())) if len(rows) else None


def ratio_of(above: Sequence[float], below: Sequence[float]) -> Figure | None:
    """The sum of one column over that of another, one row for each prompt; None where it is undefined."""
    import numpy as np

    rows = np.array(list(zip(above, below, strict=True)), dtype=np.float64)
    if not len(rows) or not rows[:, 1].sum():
        return None
    return _resampled(rows, float(rows[:, 0].sum() / rows[:, 1].sum()))


def _resampled(rows: Floats, value: float) -> Figure:
    from annotation.agreement.bootstrap import percentile_interval, ratio

    low, high = percentile_interval(rows, ratio)
    return Figure(value=value, low=low, high=high, prompts=len(rows))


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What was found of both answers to one prompt. Pairs are (parent, new)."""

    texts: tuple[str, str]
    reward: tuple[float, float] | None = None
    heads: Mapping[str, tuple[float, float]]
    kl: float | None = None
    """Nats by which the new policy is from its base, over the whole of its answer."""
    rules: Mapping[str, tuple[float | None, float | None]]

    @property
    def same(self) -> bool:
        """Whether both said the same: no judge can tell the two apart."""
        return self.texts[0] == self.texts[1]


def figures_of(found: Sequence[Found]) -> dict[str, Any]:
    """All figures of an evaluation as decoded JSON, format 1.

    `win_rate` and `reward` by the reward model, `heads` by name of the head, `rules` by name of the rule:
    each with the means of both and the gain; `kl`, `length_ratio`; null where nothing was measured.
    """
    rewards = [one.reward for one in found if one.reward is not None]
    kls = [one.kl for one in found if one.kl is not None]
    lengths = [(len(one.texts[0]), len(one.texts[1])) for one in found]
    return {
        "prompts": len(found),
        "same": sum(one.same for one in found),
        "win_rate": _json(win_rate([[outcome_of(*pair)] for pair in rewards])),
        "reward": _compared(rewards),
        "heads": {
            name: _compared([one.heads[name] for one in found if name in one.heads])
            for name in sorted({name for one in found for name in one.heads})
        },
        "kl": _json(mean_of(kls)),
        "length_ratio": _json(ratio_of([new for _, new in lengths], [old for old, _ in lengths])),
        "rules": {
            name: _ruled([one.rules[name] for one in found if name in one.rules])
            for name in sorted({name for one in found for name in one.rules})
        },
    }


def _compared(pairs: Sequence[tuple[float, float]]) -> dict[str, Any] | None:
    if not pairs:
        return None
    return {
        "parent": _json(mean_of([old for old, _ in pairs])),
        "checkpoint": _json(mean_of([new for _, new in pairs])),
        "gain": _json(mean_of([new - old for old, new in pairs])),
        "win_rate": _json(win_rate([[outcome_of(*pair)] for pair in pairs])),
    }


def _ruled(pairs: Sequence[tuple[float | None, float | None]]) -> dict[str, Any] | None:
    """As `_compared`, of the prompts where the rule has a verdict on both texts."""
    return _compared([(old, new) for old, new in pairs if old is not None and new is not None])


def _json(figure: Figure | None) -> dict[str, Any] | None:
    return None if figure is None else figure.to_json()
