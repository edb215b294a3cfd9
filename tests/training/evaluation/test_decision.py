"""The decision on a new policy: its verdicts, its error rates with and without peeking, its power."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import betaincc, betaln
from scipy.stats import binom

from training.figures.win_rates import prompts_needed, win_rate_interval, win_rate_shown
from training.services.evaluation.decision import Decision, decide

WIN, TIE, LOSS = 1.0, 0.5, 0.0
OUTCOMES = st.lists(st.sampled_from([WIN, TIE, LOSS]), max_size=120)


def outcomes_of(wins: int, losses: int, ties: int = 0) -> list[float]:
    return [WIN] * wins + [LOSS] * losses + [TIE] * ties


def drawn(source: random.Random, size: int, *, win_rate: float, tie_rate: float) -> list[float]:
    wins = (win_rate - tie_rate / 2) / (1 - tie_rate)
    return [
        TIE if source.random() < tie_rate else WIN if source.random() < wins else LOSS for _ in range(size)
    ]


def test_the_round_of_seven_prompts_with_five_identical_responses_is_not_enough_evidence():
    assert decide(outcomes_of(2, 0, ties=5)) == Decision.NOT_ENOUGH_EVIDENCE
    low, high = win_rate_interval(outcomes_of(2, 0, ties=5))
    assert low < 0.5 < high


def test_the_verdicts_have_the_names_that_are_stored():
    assert [*Decision] == ["promote", "reject", "not_enough_evidence"]


@pytest.mark.parametrize(
    ("wins", "losses", "verdict"),
    # Eighteen of twenty give a capital of 121, seventeen one of 38. The threshold is 2/(1 − 0.95) = 40.
    [
        (18, 2, Decision.PROMOTE),
        (17, 3, Decision.NOT_ENOUGH_EVIDENCE),
        (3, 17, Decision.NOT_ENOUGH_EVIDENCE),
        (2, 18, Decision.REJECT),
    ],
)
def test_twenty_differing_prompts_decide_where_the_capital_reaches_forty(wins, losses, verdict):
    # E = 2^(n+1) B(W+5, L+5) / B(5, 5) · P(Beta(W+5, L+5) > 1/2), the integral of Bayes' conjugate form.
    likelier, rarer = max(wins, losses), min(wins, losses)
    capital = (
        2 ** (wins + losses + 1)
        * math.exp(betaln(likelier + 5, rarer + 5) - betaln(5, 5))
        * betaincc(likelier + 5, rarer + 5, 0.5)
    )
    assert (capital >= 40) == (verdict != Decision.NOT_ENOUGH_EVIDENCE)
    assert decide(outcomes_of(wins, losses)) == verdict


def test_nothing_is_decided_on_fewer_differing_prompts_than_the_minimum():
    assert decide(outcomes_of(19, 0, ties=500)) == Decision.NOT_ENOUGH_EVIDENCE
    assert decide(outcomes_of(20, 0, ties=500)) == Decision.PROMOTE
    assert decide(outcomes_of(19, 0), minimum=19) == Decision.PROMOTE
    assert decide([]) == Decision.NOT_ENOUGH_EVIDENCE
    assert decide([], minimum=0) == Decision.NOT_ENOUGH_EVIDENCE


@given(OUTCOMES)
def test_the_verdict_is_the_side_of_one_half_on_which_the_interval_lies(outcomes):
    low, high = win_rate_interval(outcomes)
    assert 0 <= low <= sum(outcomes) / max(len(outcomes), 1) + 1e-9
    assert low <= high <= 1
    expected = (
        Decision.PROMOTE if low > 0.5 else Decision.REJECT if high < 0.5 else Decision.NOT_ENOUGH_EVIDENCE
    )
    assert decide(outcomes, minimum=0) == expected


@given(OUTCOMES, st.randoms(use_true_random=False))
def test_neither_order_nor_the_names_of_the_sides_matter(outcomes, source):
    shuffled = list(outcomes)
    source.shuffle(shuffled)
    assert win_rate_interval(shuffled) == pytest.approx(win_rate_interval(outcomes), abs=1e-9)
    mirrored = {"promote": "reject", "reject": "promote"}
    verdict = decide(outcomes)
    assert decide([1 - outcome for outcome in outcomes]) == mirrored.get(verdict, verdict)


def test_two_annotators_of_two_who_disagree_count_as_a_tie_and_one_of_four_as_half_a_loss():
    assert decide([0.5] * 100, minimum=0) == Decision.NOT_ENOUGH_EVIDENCE
    low, high = win_rate_interval([0.25] * 200)
    assert low < 0.25 < high < 0.5
    assert decide([0.25] * 200) == Decision.REJECT


@pytest.mark.parametrize("outcome", [-0.1, 1.1, float("nan")])
def test_an_outcome_outside_zero_to_one_is_refused_by_its_place(outcome):
    with pytest.raises(ValueError, match="Outcome 1 is"):
        decide([1.0, outcome])


@pytest.mark.parametrize("level", [0.0, 1.0, 95])
def test_a_level_that_is_no_probability_is_refused(level):
    with pytest.raises(ValueError, match="does not lie between 0 and 1"):
        win_rate_interval([1.0], level=level)


def test_looking_after_every_prompt_promotes_an_equal_policy_in_fewer_than_five_of_a_hundred_rounds():
    # Exact: the chance of being in a state (wins, losses) that no look before has decided.
    undecided, promoted = {(0, 0): 1.0}, 0.0
    for _ in range(100):
        reached: dict[tuple[int, int], float] = {}
        for (wins, losses), chance in undecided.items():
            for state in ((wins + 1, losses), (wins, losses + 1)):
                reached[state] = reached.get(state, 0.0) + chance / 2
        undecided = {}
        for (wins, losses), chance in reached.items():
            if wins > losses and decide(outcomes_of(wins, losses)) == Decision.PROMOTE:
                promoted += chance
            else:
                undecided[wins, losses] = chance
    assert 0 < promoted <= 0.025


@pytest.mark.parametrize("size", [8, 20, 60, pytest.param(200, marks=pytest.mark.long)])
@pytest.mark.parametrize("tie_rate", [0.0, 0.4])
def test_of_a_thousand_rounds_between_equal_policies_at_most_fifty_promote(size, tie_rate):
    source = random.Random(size)
    once = peeked = 0
    for _ in range(1000):
        outcomes = drawn(source, size, win_rate=0.5, tie_rate=tie_rate)
        once += decide(outcomes) == Decision.PROMOTE
        looks = range(20, size + 1, 5)
        peeked += any(decide(outcomes[:look]) == Decision.PROMOTE for look in looks)
    assert once <= peeked <= 50


@pytest.mark.parametrize("tie_rate", [0.0, 0.3])
def test_of_a_thousand_rounds_with_seventy_percent_on_a_hundred_prompts_eight_hundred_promote(tie_rate):
    source = random.Random(7)
    rounds = [drawn(source, 100, win_rate=0.7, tie_rate=tie_rate) for _ in range(1000)]
    verdicts = [decide(outcomes) for outcomes in rounds]
    assert verdicts.count(Decision.PROMOTE) >= 800
    assert verdicts.count(Decision.REJECT) == 0


@pytest.mark.parametrize("win_rate", [0.6, 0.7, 0.8, 0.3])
def test_the_number_of_prompts_that_are_asked_for_reaches_the_power(win_rate):
    size = prompts_needed(win_rate)
    chance = max(win_rate, 1 - win_rate)

    def power(of: int) -> float:
        promotes = [k for k in range(of + 1) if decide(outcomes_of(k, of - k)) == Decision.PROMOTE]
        return float(binom.pmf(promotes, of, chance).sum())

    assert power(size) >= 0.8
    assert power(size - 1) < 0.8 or size == 20


@pytest.mark.parametrize("size", [20, 40, 78])
def test_the_win_rate_that_prompts_show_is_promoted_in_four_rounds_of_five(size):
    promotes = [k for k in range(size + 1) if decide(outcomes_of(k, size - k)) == Decision.PROMOTE]
    shown = win_rate_shown(size)
    assert shown is not None
    assert float(binom.pmf(promotes, size, shown).sum()) == pytest.approx(0.8, abs=1e-6)


def test_fewer_prompts_than_a_decision_wants_show_no_win_rate():
    assert win_rate_shown(19) is None
    assert win_rate_shown(prompts_needed(0.7)) == pytest.approx(0.7, abs=0.01)


def test_ties_raise_the_number_of_prompts_by_those_that_will_not_decide():
    # A win rate of 0.7 with 30 % ties is 0.55 wins to 0.15 losses: 0.786 of the prompts that decide.
    assert prompts_needed(0.7, tie_rate=0.3) == math.ceil(prompts_needed(0.55 / 0.7) / 0.7)


@pytest.mark.parametrize(("win_rate", "tie_rate"), [(0.5, 0.0), (0.9, 0.5), (0.7, 1.0)])
def test_no_number_of_prompts_shows_a_difference_that_is_not_there(win_rate, tie_rate):
    with pytest.raises(ValueError, match="tie"):
        prompts_needed(win_rate, tie_rate=tie_rate)
