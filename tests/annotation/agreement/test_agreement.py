"""Agreement of pairs and rankings, position, circles: by hand, by brute force, against SciPy."""

import math
import random
from itertools import combinations, permutations

import numpy as np
import pytest
from scipy import stats

from annotation.agreement.coefficients import (
    cohen_kappa,
    fleiss_kappa,
    kendall_tau_b,
    mean_tau_b,
    percent_agreement,
    position_bias,
    win_share_by_position,
)
from annotation.agreement.estimate import Missing
from annotation.agreement.intervals import binomial_test, share_of, share_of_independent, wilson_interval
from annotation.agreement.records import circles_among

# ── pairs ─────────────────────────────────────────────────────────────────────────────


def test_percent_agreement_counts_agreeing_pairs_of_people():
    """
    a a a: 3 of 3 pairs agree. a a b: 1 of 3. a tie: 0 of 1. b alone: nobody to agree with.
    Mean of 1, 1/3 and 0: 4/9.
    """
    items = [
        [{1: "a", 2: "a", 3: "a"}],
        [{1: "a", 2: "a", 3: "b"}],
        [{1: "a", 2: "tie"}],
        [{1: "b"}],
    ]
    agreement = percent_agreement(items)
    assert agreement.value == pytest.approx(4 / 9, abs=1e-12)
    assert agreement.items == 3


def test_fleiss_kappa_gives_the_value_of_his_own_kind_of_table():
    """
    Ten subjects, fourteen raters, five categories (the worked example in Wikipedia, "Fleiss' kappa"):
    P̄ = 0.378, P̄_e = 0.213, κ = 0.210.
    """
    table = [
        [0, 0, 0, 0, 14],
        [0, 2, 6, 4, 2],
        [0, 0, 3, 5, 6],
        [0, 3, 9, 2, 0],
        [2, 2, 8, 1, 1],
        [7, 7, 0, 0, 0],
        [3, 2, 6, 3, 0],
        [2, 5, 3, 2, 2],
        [6, 5, 2, 1, 0],
        [0, 2, 2, 3, 7],
    ]
    items = []
    for row in table:
        ratings = [category for category, number in enumerate(row) for _ in range(number)]
        items.append([dict(enumerate(ratings))])
    assert percent_agreement(items).value == pytest.approx(0.378, abs=0.0005)
    assert fleiss_kappa(items).value == pytest.approx(0.210, abs=0.0005)


def test_fleiss_kappa_with_differing_numbers_of_people_by_hand():
    """
    Units: {a, a}, {a, b, b}, {b, b}. p_a = (1 + 1/3 + 1) / 3 = 7/9.
    Shares of a: 1, 1/3, 0, mean 4/9; of b: 5/9. p_e = 16/81 + 25/81 = 41/81.
    κ = (63/81 − 41/81) / (40/81) = 22/40 = 0.55.
    """
    items = [[{1: "a", 2: "a"}], [{1: "a", 2: "b", 3: "b"}], [{2: "b", 3: "b"}]]
    assert fleiss_kappa(items).value == pytest.approx(0.55, abs=1e-12)


def test_cohens_kappa_of_his_kind_of_table():
    """
    Fifty proposals (Wikipedia, "Cohen's kappa"): both yes 20, both no 15, A alone 5, B alone 10.
    p_o = 0.7, p_e = 0.5 · 0.6 + 0.5 · 0.4 = 0.5, κ = 0.4.
    """
    label_pairs = [("y", "y")] * 20 + [("n", "n")] * 15 + [("y", "n")] * 5 + [("n", "y")] * 10
    kappa = cohen_kappa([[{1: a, 2: b, 3: "y"}] for a, b in label_pairs], 1, 2)
    assert kappa.value == pytest.approx(0.4, abs=1e-12)
    assert kappa.low < 0.4 < kappa.high
    assert kappa.items == 50


@pytest.mark.parametrize("statistic", [percent_agreement, fleiss_kappa])
def test_pairs_that_nobody_shared_have_no_agreement(statistic):
    assert statistic([[{1: "a"}], [{2: "b"}]]).missing == Missing.NOBODY_SHARED
    assert cohen_kappa([[{1: "a"}], [{2: "b"}]], 1, 2).missing == Missing.NOBODY_SHARED


def test_where_everyone_always_says_the_same_chance_cannot_be_told_from_agreement():
    items = [[{1: "a", 2: "a"}]] * 5
    assert percent_agreement(items).value == 1
    assert fleiss_kappa(items).missing == Missing.ONE_VALUE
    assert cohen_kappa(items, 1, 2).missing == Missing.ONE_VALUE


# ── rankings ──────────────────────────────────────────────────────────────────────────


def tau_by_counting(first: list[int], second: list[int]) -> float:
    same = opposite = tied_first = tied_second = 0
    for i, j in combinations(range(len(first)), 2):
        a, b = first[i] - first[j], second[i] - second[j]
        if a * b > 0:
            same += 1
        elif a * b < 0:
            opposite += 1
        elif a == 0 and b != 0:
            tied_first += 1
        elif b == 0 and a != 0:
            tied_second += 1
    whole = same + opposite
    return (same - opposite) / math.sqrt((whole + tied_first) * (whole + tied_second))


@pytest.mark.parametrize("seed", range(30))
def test_tau_b_is_that_of_scipy_and_of_counting(seed: int):
    generator = random.Random(seed)
    size = generator.randint(3, 9)
    first = [generator.randint(1, 4) for _ in range(size)]
    second = [generator.randint(1, 4) for _ in range(size)]
    tau = kendall_tau_b(first, second)
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert tau is None
    else:
        assert tau == pytest.approx(stats.kendalltau(first, second, variant="b").statistic, abs=1e-12)
        assert tau == pytest.approx(tau_by_counting(first, second), abs=1e-12)


def test_tau_b_is_averaged_over_pairs_of_people_and_then_over_items():
    """
    Item 1: 123, 123, 321: 1, −1 and −1, mean −1/3. Item 2: 123 and 132: 2 of 3 pairs agree, 1/3.
    Item 3: all tied with 123: left out. Mean: 0.
    """
    items = [[[1, 2, 3], [1, 2, 3], [3, 2, 1]], [[1, 2, 3], [1, 3, 2]], [[1, 1, 1], [1, 2, 3]]]
    tau = mean_tau_b(items)
    assert tau.value == pytest.approx(0, abs=1e-12)
    assert tau.items == 2
    assert mean_tau_b([[[1, 1, 1], [1, 2, 3]]]).missing == Missing.ALL_TIED
    assert mean_tau_b([[[1, 2, 3]]]).missing == Missing.NOBODY_SHARED


# ── shares and position ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("hits", "total"), [(0, 1), (1, 1), (3, 10), (60, 100), (1144, 1840), (5, 10)])
def test_wilson_and_the_binomial_test_are_those_of_scipy(hits: int, total: int):
    oracle = stats.binomtest(hits, total)
    interval = oracle.proportion_ci(method="wilson")
    assert wilson_interval(hits, total) == pytest.approx((interval.low, interval.high), abs=1e-12)
    assert binomial_test(hits, total) == pytest.approx(oracle.pvalue, rel=1e-9)


def test_position_bias_counts_decided_pairs_alone():
    """Item 1: the first wins, item 2: a tie, item 3: a ranking, wins 2 of 3 and ties none. 3 of 4."""
    items = [[(0, 1, 1)], [(0, 1, 0)], [(0, 1, 1), (0, 2, 1), (1, 2, -1)]]
    bias = position_bias(items)
    assert (bias.wins, bias.decided, bias.tied) == (3, 4, 1)
    assert bias.estimate.value == 0.75
    # Four coins, three or more alike: 2 · (4 + 1) / 16.
    assert bias.p_value == pytest.approx(10 / 16)
    assert bias.over_items.value == 0.75
    # Position 0 won 3 of 3, position 1 won 0 of 3, position 2 won 1 of 2.
    assert [place.value for place in win_share_by_position(items)] == [1.0, 0.0, 0.5]


def test_without_a_decided_pair_there_is_no_position_bias():
    assert position_bias([]).estimate.missing == Missing.NO_DATA
    assert position_bias([[(0, 1, 0)]]).estimate.missing == Missing.ALL_TIED
    assert win_share_by_position([]) == []


def test_an_interval_over_items_keeps_what_hangs_together():
    """Twenty items, each ten times right or ten times wrong: as wide as twenty answers, not as 200."""
    results = [(10.0 * (number % 2), 10.0) for number in range(20)]
    together = share_of(results)
    apart = share_of([(float(number % 2), 1.0) for number in range(200)])
    assert together.value == apart.value == 0.5
    assert together.high - together.low > 2.5 * (apart.high - apart.low)
    assert share_of([]).missing == share_of([(0, 0)]).missing == Missing.NO_DATA
    assert share_of_independent([]).missing == Missing.NO_DATA
    assert share_of_independent([True, False]).value == 0.5


def test_circles_are_found_by_looking_at_every_triple():
    generator = random.Random(2)
    for _ in range(40):
        names = list("abcde")
        wins = {
            pair: generator.choice([-1, 0, 1]) for pair in combinations(names, 2) if generator.random() < 0.9
        }

        def beats(left, right, wins=wins):
            return wins.get((left, right), 0) == 1 or wins.get((right, left), 0) == -1

        triples = [
            three
            for three in combinations(names, 3)
            if all(beats(x, y) or beats(y, x) for x, y in combinations(three, 2))
        ]
        cyclic = [
            three
            for three in triples
            if any(beats(x, y) and beats(y, z) and beats(z, x) for x, y, z in permutations(three))
        ]
        circles = circles_among(wins)
        assert circles.triples == len(triples)
        assert list(circles.cyclic) == cyclic


def test_who_tosses_a_coin_has_a_circle_in_every_fourth_triple():
    generator = np.random.default_rng(5)
    drawn = [
        circles_among({pair: int(generator.choice([-1, 1])) for pair in combinations("abc", 2)})
        for _ in range(4000)
    ]
    assert sum(circles.triples for circles in drawn) == 4000
    assert sum(len(circles.cyclic) for circles in drawn) / 4000 == pytest.approx(0.25, abs=0.025)


def test_a_triple_of_one_ranking_is_no_test_of_transitivity():
    wins = {("a", "b"): 1, ("b", "c"): 1, ("a", "c"): 1, ("c", "d"): 1, ("a", "d"): 1, ("b", "d"): -1}
    asked_together = {
        ("a", "b"): 1,
        ("b", "c"): 1,
        ("a", "c"): 1,
        ("c", "d"): 2,
        ("a", "d"): 3,
        ("b", "d"): 4,
    }
    circles = circles_among(wins, asked_together)
    # abc stood in one ranking; abd and acd hold; b beats c, c beats d, and d beats b.
    assert (circles.triples, circles.of_one_ranking) == (3, 1)
    assert circles.cyclic == (("b", "c", "d"),)
