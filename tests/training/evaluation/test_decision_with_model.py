"""The decision by people and an evaluator: its guarantee by enumeration, its verdicts, what it saves."""

import itertools
import math
import random
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.figures.win_rates import (
    answers_until_decision,
    chance_of_decision,
    estimate,
    log_evidence,
    read_answers,
    sign_test,
)
from training.services.evaluation.decision import Decision, decide, decide_with_model, outlook

WIN, TIE, LOSS = 1.0, 0.5, 0.0
POOLS = st.lists(st.tuples(st.sampled_from([WIN, TIE, LOSS]), st.floats(0, 1)), min_size=1, max_size=40)


def capital(pool, order, *, null=0.5, claim):
    """The gamblers' capital after the prompts of `order`; `pool` holds (people's outcome, evaluator's)."""
    answers = [(position, pool[position][0]) for position in order]
    return math.exp(log_evidence(read_answers(answers, [score for _, score in pool]), null, claim=claim))


def course(source, size, *, win_rate, agreement, tie_rate=0.0):
    """A pool drawn at random as answers in random order, with the evaluator's outcomes."""
    outcomes, scores = [], []
    for _ in range(size):
        won = source.random() < win_rate
        scores.append(float(won if source.random() < agreement else not won))
        outcomes.append(TIE if source.random() < tie_rate else float(won))
    order = source.sample(range(size), size)
    return [(position, outcomes[position]) for position in order], scores


def look(answers, scores, *, until, step=1, **settings):
    """The first verdict when it is looked at every `step` answers, and after how many."""
    for size in range(10, until + 1, step):
        verdict = decide_with_model(answers[:size], scores, **settings)
        if verdict != Decision.NOT_ENOUGH_EVIDENCE:
            return verdict, size
    return Decision.NOT_ENOUGH_EVIDENCE, until


@pytest.mark.parametrize(
    "pool",
    [
        [(1.0, 1.0), (1.0, 0.0), (0.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.0, 0.0)],
        [(1.0, 0.9), (0.5, 0.6), (0.0, 0.2), (0.5, 0.5), (1.0, 0.1), (0.0, 0.8)],
        [(1.0, 0.0), (1.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0.0, 1.0), (0.0, 1.0)],
    ],
)
@pytest.mark.parametrize("answered", [1, 2, 3, 4])
def test_over_all_orders_of_a_pool_whose_mean_is_one_half_the_capital_is_one_on_average(pool, answered):
    orders = list(itertools.permutations(range(len(pool)), answered))
    mean = math.fsum(capital(pool, order, claim="these_prompts") for order in orders) / len(orders)
    assert mean == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("size", [4, pytest.param(5, marks=pytest.mark.long)])
@pytest.mark.parametrize("null", [0.5, 0.4])
@pytest.mark.parametrize("agreement", [0.1, 0.5, 0.8, 1.0])
def test_over_all_pools_of_an_equal_policy_the_capital_for_new_prompts_is_at_most_one_on_average(
    null, agreement, size
):
    # Each prompt: people's outcome with the mean `null`, and the evaluator's that agrees so often.
    chances = {
        (won, scored): (null if won else 1 - null) * (agreement if won == scored else 1 - agreement)
        for won in (0.0, 1.0)
        for scored in (0.0, 1.0)
    }
    for answered in (1, 3, size):
        mean = 0.0
        for pool in itertools.product(chances, repeat=size):
            chance = math.prod(chances[prompt] for prompt in pool)
            if chance:
                mean += chance * capital(pool, range(answered), null=null, claim="new_prompts")
        assert mean <= 1 + 1e-9


def test_one_answer_of_these_prompts_moves_the_capital_as_computed_by_hand():
    # Two prompts and no scores: the first answer's mean is 1/2, its estimated variance 0.21. A gambler for
    # 1/2 + δ bets δ / (0.21 + δ²) and gains half of that by a win.
    shares = {0.08: 1 / 6, 0.12: 1 / 3, 0.18: 1 / 3, 0.27: 1 / 6}
    expected = sum(share * (1 + 0.5 * effect / (0.21 + effect**2)) for effect, share in shares.items())
    answers = read_answers([(0, WIN)], [None, None])
    assert math.exp(log_evidence(answers, claim="these_prompts")) == pytest.approx(expected)


def test_a_known_mean_of_the_evaluator_does_not_stand_for_the_pools_own_variance():
    # Every prompt is answered, so the pool's mean is known: about these prompts nothing is left to doubt,
    # about new ones as much as sixty answers leave.
    source = random.Random(3)
    answers, scores = course(source, 60, win_rate=0.55, agreement=0.9)
    read = read_answers(answers, scores)
    these, new = estimate(read, claim="these_prompts"), estimate(read)
    assert these.high - these.low < 0.01
    assert new.low < 0.5 < new.high
    assert new.high - new.low > 0.25
    assert these.value == new.value == pytest.approx(sum(outcome for _, outcome in answers) / 60)


@given(POOLS, st.randoms(use_true_random=False))
def test_the_mirrored_answers_have_the_mirrored_verdict(pool, source):
    order = source.sample(range(len(pool)), source.randint(0, len(pool)))
    answers, scores = [(place, pool[place][0]) for place in order], [score for _, score in pool]
    mirrored = {"promote": "reject", "reject": "promote"}
    for claim in ("new_prompts", "these_prompts"):
        verdict = decide_with_model(answers, scores, claim=claim)
        opposite = decide_with_model(
            [(place, 1 - outcome) for place, outcome in answers], [1 - score for score in scores], claim=claim
        )
        assert opposite == mirrored.get(verdict, verdict)


@given(POOLS)
def test_without_scores_people_alone_decide(pool):
    answers = [(place, outcome) for place, (outcome, _) in enumerate(pool)]
    expected = decide([outcome for outcome, _ in pool])
    assert decide_with_model(answers, [None] * len(pool)) == expected


@given(POOLS, st.floats(0, 1))
def test_a_prompt_without_a_score_says_as_much_as_one_with_the_mean_of_the_others(pool, score):
    answers = [(place, outcome) for place, (outcome, _) in enumerate(pool)]
    scores = [score for _, score in pool]
    mean = math.fsum(scores) / len(scores)
    assert log_evidence(read_answers(answers, [*scores, None])) == pytest.approx(
        log_evidence(read_answers(answers, [*scores, mean])), abs=1e-9
    )


def test_nothing_is_decided_on_fewer_than_ten_prompts_that_differ():
    assert decide_with_model([(place, WIN) for place in range(9)], [1.0] * 200) == "not_enough_evidence"
    ties = [(place, TIE) for place in range(100, 160)]
    assert decide_with_model([*ties, *((place, WIN) for place in range(9))], [1.0] * 200) == (
        "not_enough_evidence"
    )
    assert decide_with_model([], [0.5] * 20) == "not_enough_evidence"
    assert decide_with_model([(place, WIN) for place in range(16)], [1.0] * 200) == "promote"


@pytest.mark.parametrize(
    ("answers", "scores", "message"),
    [
        ([(3, 1.0)], [0.5] * 3, "Answer 0 is of position 3"),
        ([(-1, 1.0)], [0.5] * 3, "Answer 0 is of position -1"),
        ([(1, 1.0), (1, 0.0)], [0.5] * 3, "answered before"),
        ([(1, 1.5)], [0.5] * 3, "Answer 0 is 1.5"),
        ([(1, float("nan"))], [0.5] * 3, "Answer 0 is nan"),
        ([], [0.5, 1.2], "Score 1 is 1.2"),
        ([], [float("nan")], "Score 0 is nan"),
    ],
)
def test_an_answer_or_score_that_is_none_is_refused_by_its_place(answers, scores, message):
    with pytest.raises(ValueError, match=message):
        decide_with_model(answers, scores)


def test_another_claim_and_a_level_that_is_no_probability_are_refused():
    with pytest.raises(ValueError, match="neither"):
        decide_with_model([], [0.5], claim="all_prompts")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="does not lie between 0 and 1"):
        decide_with_model([], [0.5], level=95)


@pytest.mark.parametrize(("size", "agreement"), [(40, 0.9), (200, 0.3), (400, 0.87)])
def test_looking_again_and_again_promotes_few_equal_policies(size, agreement):
    source = random.Random(size)
    rounds = 120
    promoted = 0
    for _ in range(rounds):
        answers, scores = course(source, size, win_rate=0.5, agreement=agreement)
        promoted += look(answers, scores, until=min(size, 120), step=4)[0] == Decision.PROMOTE
    # 2.5 % are promised; seven of 120 or more come with a probability of 2 % even then.
    assert promoted <= 6


def test_an_evaluator_that_misleads_costs_answers_and_promotes_nothing():
    source = random.Random(5)
    for _ in range(60):
        outcomes = [float(source.random() < 0.44) for _ in range(300)]
        scores = [float(source.random() < 0.75) for _ in range(300)]
        answers = [(place, outcomes[place]) for place in source.sample(range(300), 200)]
        assert look(answers, scores, until=200, step=10)[0] != Decision.PROMOTE


def test_an_evaluator_that_agrees_with_people_saves_a_third_of_their_answers():
    source = random.Random(8)
    alone, together = [], []
    for _ in range(40):
        answers, scores = course(source, 1000, win_rate=0.7, agreement=0.87)
        together.append(look(answers, scores, until=150, step=2))
        alone.append(look(answers, [None] * 1000, until=150, step=2))
    assert all(verdict != Decision.REJECT for verdict, _ in together)
    needed = [sorted(size for _, size in courses)[32] for courses in (together, alone)]
    assert needed[0] <= 58
    assert needed[0] <= 2 / 3 * needed[1]


@pytest.mark.parametrize("claim", ["new_prompts", "these_prompts"])
def test_the_verdict_is_the_side_of_one_half_on_which_the_interval_lies(claim):
    source = random.Random(13)
    for win_rate in (0.3, 0.5, 0.62, 0.75):
        answers, scores = course(source, 150, win_rate=win_rate, agreement=0.8, tie_rate=0.1)
        for size in (20, 60, 110):
            verdict = decide_with_model(answers[:size], scores, claim=claim)
            around = estimate(read_answers(answers[:size], scores), claim=claim)
            assert around.low <= around.value <= around.high
            assert (verdict == Decision.PROMOTE) == (around.low > 0.5)
            assert (verdict == Decision.REJECT) == (around.high < 0.5)


def test_the_answers_that_a_decision_is_expected_to_take_are_what_it_takes_in_the_middle():
    source = random.Random(21)
    taken, expected = [], []
    for _ in range(40):
        answers, scores = course(source, 1000, win_rate=0.7, agreement=0.8)
        taken.append(look(answers, scores, until=200, step=3)[1])
        expected.append(answers_until_decision(read_answers(answers[:200], scores)))
    assert sorted(taken)[20] == pytest.approx(sorted(expected)[20], rel=0.35)


def test_a_pool_that_is_too_small_for_its_effect_is_known_before_it_is_answered():
    source = random.Random(34)
    answers, scores = course(source, 60, win_rate=0.5, agreement=0.8)
    even = [(place, float(number % 2)) for number, (place, _) in enumerate(answers)]
    read = read_answers(even[:40], scores)
    assert answers_until_decision(read) is None
    assert chance_of_decision(read) < 0.05
    often = [(place, float(number % 5 != 0)) for number, (place, _) in enumerate(answers)]
    clear = read_answers(often[:20], scores)
    assert chance_of_decision(clear) > 0.9
    assert 10 <= answers_until_decision(clear) <= 40


# ── A planned number of answers ──


@pytest.mark.parametrize(
    "pool", [[1, 1, 1, 0, 0, 0], [1, 1, 0.5, 0.5, 0, 0, 0.5], [1, 0.5, 0.5, 0, 0, 1, 0, 1]]
)
@pytest.mark.parametrize("answered", [3, 5])
def test_over_all_draws_of_an_equal_pool_the_planned_test_is_no_smaller_than_it_says(pool, answered):
    draws = list(itertools.permutations(pool, answered))
    found = np.array([sign_test(np.array(draw, dtype=float), pool=len(pool)) for draw in draws])
    for bound in np.unique(found):
        assert (found <= bound).mean() <= bound + 1e-12


@pytest.mark.parametrize("tied", [0.0, 0.4])
def test_over_all_answers_of_an_equal_policy_the_planned_test_is_no_smaller_than_it_says(tied):
    chances = {WIN: (1 - tied) / 2, TIE: tied, LOSS: (1 - tied) / 2}
    answers = list(itertools.product(chances, repeat=6))
    weights = np.array([math.prod(chances[outcome] for outcome in some) for some in answers])
    found = np.array([sign_test(np.array(some)) for some in answers])
    for bound in np.unique(found):
        assert weights[found <= bound].sum() <= bound + 1e-12


def test_the_planned_test_has_the_values_worked_out_by_hand():
    # Three wins of three among new prompts: 1/8. Among four prompts of which two win and two lose: never.
    assert sign_test(np.array([1.0, 1.0, 1.0])) == pytest.approx(1 / 8)
    assert sign_test(np.array([1.0, 1.0, 1.0]), pool=4) == 0
    # Two of two: (2 · 1) / (4 · 3) where all four differ; two that differ and win cannot be an equal pool.
    assert sign_test(np.array([1.0, 1.0]), pool=4) == pytest.approx(1 / 6)
    # A tie says nothing, and one that is nearly won counts as one.
    assert sign_test(np.array([1.0, 0.5, 0.9, 1.0, 1.0])) == pytest.approx(1 / 8)
    # What is nearly lost is lost: three wins of four or more come in 5 of 16.
    assert sign_test(np.array([1.0, 0.4, 1.0, 1.0])) == pytest.approx(5 / 16)


def answered_of_59(wins):
    """Twenty-five answers, wins and losses mixed, about 59 prompts that the evaluator cannot tell apart."""
    outcomes = [WIN] * wins + [LOSS] * (25 - wins)
    random.Random(2).shuffle(outcomes)
    return list(enumerate(outcomes)), [0.5] * 59


def test_a_planned_number_of_answers_decides_where_evidence_after_every_answer_would_not():
    # Hypergeometric by hand: 17 or more of 25 come with 1.4 % from 59 prompts of which 29 win, 16 with 4.5 %.
    answers, scores = answered_of_59(17)
    verdict = partial(decide_with_model, scores=scores, claim="these_prompts")
    assert verdict(answers) == Decision.NOT_ENOUGH_EVIDENCE
    assert verdict(answers, planned=25) == Decision.PROMOTE
    assert verdict(answers[:24], planned=25) == Decision.NOT_ENOUGH_EVIDENCE
    # What comes later does not undo it.
    later = [*answers, *((place, LOSS) for place in range(25, 29))]
    assert verdict(later, planned=25) == Decision.PROMOTE
    fewer, _ = answered_of_59(16)
    assert verdict(fewer, planned=25) == Decision.NOT_ENOUGH_EVIDENCE


def test_the_interval_of_a_planned_verdict_does_not_contradict_it():
    answers, scores = answered_of_59(17)
    seen = outlook(answers, scores, worth_having=0.6, claim="these_prompts", planned=25)
    assert (seen.verdict, seen.rate.low) == (Decision.PROMOTE, 0.5)
    mirrored = [(place, 1 - outcome) for place, outcome in answers]
    seen = outlook(mirrored, scores, worth_having=0.6, claim="these_prompts", planned=25)
    assert (seen.verdict, seen.rate.high) == (Decision.REJECT, 0.5)


def test_a_planned_number_of_answers_is_what_a_decision_is_expected_to_take_where_it_would_do():
    answers, scores = answered_of_59(18)
    first = [answer for answer in answers if answer[0] < 20]
    without = outlook(first, scores, worth_having=0.6, claim="these_prompts")
    with_plan = outlook(first, scores, worth_having=0.6, claim="these_prompts", planned=25)
    assert without.verdict == with_plan.verdict == Decision.NOT_ENOUGH_EVIDENCE
    assert with_plan.more_answers == 5
    assert without.more_answers is None or without.more_answers > 5


@pytest.mark.parametrize("claim", ["new_prompts", "these_prompts"])
def test_an_equal_policy_is_promoted_as_seldom_with_a_plan(claim):
    source = random.Random(11)
    promoted = 0
    for _ in range(120):
        answers, scores = course(source, 59, win_rate=0.5, agreement=0.8)
        outcomes = [WIN] * 29 + [LOSS] * 30
        source.shuffle(outcomes)
        if claim == "these_prompts":
            answers = [(place, outcomes[place]) for place, _ in answers]
        promoted += look(answers, scores, until=40, step=3, claim=claim, planned=25)[0] == Decision.PROMOTE
    # 2.5 % are promised; eight of 120 or more come with a probability of 1.3 % even then.
    assert promoted <= 7


def test_a_planned_number_below_one_is_refused():
    with pytest.raises(ValueError, match="planned"):
        decide_with_model([(place, WIN) for place in range(12)], [0.5] * 20, planned=0)
