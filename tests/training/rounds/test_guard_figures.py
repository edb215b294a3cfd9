"""What answers to a guard's question show: chances of each finding, summed over all courses of answers."""

import math
from functools import cache

import pytest

from training.contract.guard import MOST_PAIRS, PAIRS_AT_ONCE
from training.figures.guard import LEVEL, GuardFinding, finding


@cache
def found(wins: int, losses: int) -> GuardFinding:
    return finding([1.0] * wins + [0.0] * losses)


def chances(win_rate: float, pairs: int = MOST_PAIRS) -> tuple[float, float, float]:
    """Return the probabilities of worse and of fine within so many pairs, and the mean number of answers.

    Exact: the probability of every (wins, losses) that is still open, answer by answer.
    """
    still_open = {(0, 0): 1.0}
    ended = dict.fromkeys(GuardFinding, 0.0)
    answers = 0.0
    for _ in range(pairs):
        answers += math.fsum(still_open.values())
        following: dict[tuple[int, int], float] = {}
        for (wins, losses), chance in still_open.items():
            for place, share in (((wins + 1, losses), win_rate), ((wins, losses + 1), 1 - win_rate)):
                following[place] = following.get(place, 0.0) + share * chance
        still_open = {}
        for place, chance in following.items():
            if found(*place) == GuardFinding.OPEN:
                still_open[place] = chance
            else:
                ended[found(*place)] += chance
    return ended[GuardFinding.WORSE], ended[GuardFinding.FINE], answers


@pytest.mark.parametrize("win_rate", [0.5, 0.55, 0.7, 0.9])
def test_a_healthy_run_is_called_worse_no_more_often_than_promised(win_rate: float):
    # A run's pairs allow five questions of eight; each has a fifth of the level, and one of forty is alone.
    questions = MOST_PAIRS // PAIRS_AT_ONCE
    assert questions * chances(win_rate, PAIRS_AT_ONCE)[0] <= LEVEL
    assert chances(win_rate)[0] <= LEVEL / questions


def test_ties_count_one_half_and_tell_of_nothing_worse():
    assert finding([0.5] * 40) == GuardFinding.FINE
    assert finding([0.5] * 3) == GuardFinding.OPEN
    # With ties among the answers the losses alone count against now.
    assert finding([0.0] * 9 + [0.5] * 9) == GuardFinding.WORSE


@pytest.mark.parametrize(
    ("win_rate", "least", "most_answers"), [(0.05, 0.999, 12), (0.1, 0.99, 15), (0.2, 0.8, 25.5)]
)
def test_a_policy_that_became_worse_is_found_out(win_rate: float, least: float, most_answers: float):
    worse, fine, answers = chances(win_rate)
    assert worse >= least
    assert fine <= 0.02
    assert answers <= most_answers


@pytest.mark.parametrize(
    ("win_rate", "least", "most_answers"), [(0.5, 0.64, 25), (0.7, 0.99, 9.5), (0.8, 0.999, 6)]
)
def test_a_policy_that_is_no_worse_goes_on_after_few_answers(
    win_rate: float, least: float, most_answers: float
):
    _, fine, answers = chances(win_rate)
    assert fine >= least
    assert answers <= most_answers


def test_a_policy_that_loses_seven_of_ten_is_called_fine_no_more_often_than_promised():
    assert chances(0.3)[1] <= 0.1


def test_nine_losses_in_a_row_are_enough_and_eight_are_not():
    assert (finding([0.0] * 8), finding([0.0] * 9)) == (GuardFinding.OPEN, GuardFinding.WORSE)
    # 2 · (2⁹ − 2⁻¹)/10 is the capital of nine even stakes: 102, and 100 is asked for.
    assert pytest.approx(102.3) == 2 * (2**9 - 2**-1) / 10


def test_nothing_is_shown_before_the_first_answer():
    assert finding([]) == GuardFinding.OPEN
