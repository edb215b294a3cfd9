"""Krippendorff's α: the published examples, the `krippendorff` package, and a count by hand."""

import random
import time
from itertools import permutations

import krippendorff
import numpy as np
import pytest

from annotation.agreement.coefficients import Level, alpha_of_coincidences, krippendorff_alpha
from annotation.agreement.estimate import Missing
from annotation.agreement.intervals import percentile_interval

# Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability", section D: four observers, twelve units.
NONE = None
OBSERVERS = [
    [1, 2, 3, 3, 2, 1, 4, 1, 2, NONE, NONE, NONE],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NONE, 3],
    [NONE, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NONE],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NONE],
]
EXAMPLE = [[[value for value in unit if value is not NONE]] for unit in zip(*OBSERVERS, strict=True)]
LEVELS: list[Level] = ["nominal", "ordinal", "interval"]


@pytest.mark.parametrize(
    ("level", "published"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)]
)
def test_the_published_example_gives_the_published_values(level: Level, published: float):
    assert krippendorff_alpha(EXAMPLE, level).value == pytest.approx(published, abs=0.0005)


def by_definition(units: list[list[float]], level: Level) -> float:
    """α from its definition: mean distance within units over mean distance between any two values."""
    units = [unit for unit in units if len(unit) > 1]
    pool = [value for unit in units for value in unit]

    def distance(a: float, b: float) -> float:
        if level == "nominal":
            return float(a != b)
        if level == "interval":
            return (a - b) ** 2
        low, high = min(a, b), max(a, b)
        between = sum(low <= value <= high for value in pool) - (pool.count(a) + pool.count(b)) / 2
        return between**2 if a != b else 0.0

    observed = sum(
        sum(distance(a, b) for a, b in permutations(unit, 2)) / (len(unit) - 1) for unit in units
    ) / len(pool)
    expected = sum(distance(a, b) for a, b in permutations(pool, 2)) / (len(pool) * (len(pool) - 1))
    return 1 - observed / expected


def drawn(seed: int, *, people: int = 4, units: int = 15) -> list[list[float]]:
    generator = random.Random(seed)
    values = [-4, -2, -1, 0, 1, 3, 4]
    return [
        [float(generator.choice(values)) for _ in range(generator.randint(0, people))] for _ in range(units)
    ]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("seed", range(8))
def test_alpha_is_that_of_the_package_and_of_the_definition(level: Level, seed: int):
    units = drawn(seed)
    table = np.full((4, len(units)), np.nan)
    for column, unit in enumerate(units):
        table[: len(unit), column] = unit
    ours = krippendorff_alpha([[unit] for unit in units], level).value
    assert ours == pytest.approx(krippendorff.alpha(table, level_of_measurement=level), abs=1e-9)
    assert ours == pytest.approx(by_definition(units, level), abs=1e-9)


@pytest.mark.parametrize("level", LEVELS)
def test_the_formula_behind_the_interval_is_that_of_the_value(level: Level):
    """One resample that holds every item once must give the value itself."""
    units = [unit for unit in drawn(3) if len(unit) > 1]
    domain = np.array(sorted({value for unit in units for value in unit}))
    counts = np.array([[unit.count(value) for value in domain] for unit in units], dtype=float)
    coincidences = sum(
        (np.outer(row, row) - np.diag(row)) / (row.sum() - 1) for row in counts
    )  # Krippendorff's coincidence matrix, unit by unit
    alphas = alpha_of_coincidences(coincidences.reshape(1, -1), domain, level)
    assert alphas[0] == pytest.approx(by_definition(units, level), abs=1e-9)


def test_items_that_hold_several_units_give_the_same_value():
    units = [unit for unit in drawn(5) if len(unit) > 1]
    apart = krippendorff_alpha([[unit] for unit in units], "ordinal")
    together = krippendorff_alpha([units[:4], units[4:]], "ordinal")
    assert together.value == pytest.approx(apart.value, abs=1e-12)
    assert (apart.items, together.items) == (len(units), 2)


def test_the_interval_holds_the_value_and_narrows_with_more_items():
    few = krippendorff_alpha(EXAMPLE, "nominal")
    many = krippendorff_alpha(EXAMPLE * 25, "nominal")
    assert few.low < few.value < few.high
    assert many.high - many.low < (few.high - few.low) / 2.5  # about 1/√25 of it
    assert krippendorff_alpha(EXAMPLE, "nominal") == few


@pytest.mark.parametrize(
    ("items", "missing"),
    [
        ([], Missing.NOBODY_SHARED),
        ([[[1.0]], [[2.0]]], Missing.NOBODY_SHARED),
        ([[[1.0, 1.0]], [[1.0, 1.0, 1.0]], [[2.0]]], Missing.ONE_VALUE),
    ],
)
def test_where_alpha_cannot_be_told_there_is_a_reason_and_no_number(items, missing: Missing):
    alpha = krippendorff_alpha(items, "interval")
    assert (alpha.value, alpha.low, alpha.high, alpha.missing) == (None, None, None, missing)


def test_one_item_has_a_value_and_no_interval():
    alpha = krippendorff_alpha([[[1.0, 1.0], [2.0, 1.0]]], "nominal")
    assert alpha.value is not None
    assert (alpha.low, alpha.high) == (None, None)


def test_the_interval_is_the_one_of_plain_resampling():
    """Drawing distinct rows by how often they occur is drawing items: compared with doing just that."""
    generator = np.random.default_rng(1)
    rows = np.column_stack([generator.integers(0, 3, 300), np.full(300, 2)]).astype(float)
    low, high = percentile_interval(rows, lambda sums: sums[:, 0] / sums[:, 1], resamples=20_000)
    plain = [rows[generator.integers(0, 300, 300)].sum(axis=0) for _ in range(20_000)]
    expected = np.percentile([row[0] / row[1] for row in plain], [2.5, 97.5])
    assert (low, high) == pytest.approx(tuple(expected), abs=0.003)


def test_a_thousand_resamples_of_five_thousand_items_take_a_moment():
    """A fifth of a second on an idle core; ten leave room for a busy one, none for a loop over resamples."""
    generator = np.random.default_rng(6)
    items = [[list(map(float, generator.integers(-4, 5, 3)))] for _ in range(5000)]
    began = time.thread_time()
    assert krippendorff_alpha(items, "interval", resamples=1000).low is not None
    assert time.thread_time() - began < 10
