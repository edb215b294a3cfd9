"""Estimates: a value with its interval, or the reason for its absence."""

from dataclasses import dataclass
from enum import StrEnum


class Missing(StrEnum):
    """Reasons for an absent value. A page says them in words; it never shows "not a number"."""

    NO_DATA = "no-data"
    NOBODY_SHARED = "nobody-shared"
    ONE_VALUE = "one-value"
    NO_MARKS = "no-marks"
    NO_MATCHES = "no-matches"
    ALL_TIED = "all-tied"
    TOO_FEW = "too-few"


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """One statistic. `value` is None exactly where `missing` says why.

    `low` and `high` bound the 95 % interval; None where too few items carry one.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    items: int = 0
    """Number of items measured."""
    missing: Missing | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PositionBias:
    """The share of decided pairs that was won by the completion shown earlier. Without bias it is a half.

    `estimate` has Wilson's interval, which takes pairs for independent, as does `p_value` (exact binomial
    test). `over_items` resamples whole items: the one to trust where items are rankings of more than two.
    """

    wins: int
    decided: int
    tied: int
    estimate: Estimate
    over_items: Estimate
    p_value: float | None


def absent(missing: Missing, *, items: int = 0) -> Estimate:
    """Return an estimate without a value, with the reason."""
    return Estimate(missing=missing, items=items)
