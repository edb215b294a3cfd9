"""Weighted sums of rewards: what is normalised, what is cut, what is left out and counted."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.rlhf.rewards.combination import Combination, RunningStatistics, WeightedReward
from training.rlhf.rewards.protocol import Score, ScoredSegment

NAN = math.nan


def giving(*batches):
    """A reward that gives these scores, a batch at a time: numbers, or `Score`."""
    waiting = iter(batches)

    def reward(prompts, completions, references):
        return [
            value
            if isinstance(value, Score)
            else Score.cannot("no idea")
            if math.isnan(value)
            else Score(value)
            for value in next(waiting)
        ]

    return reward


def ask(combination: Combination, count: int) -> list[Score]:
    return combination([()] * count, [""] * count, [None] * count)


def test_a_weighted_sum_by_hand():
    combination = Combination(
        [
            WeightedReward(name="right", reward=giving([1, 0]), weight=2),
            WeightedReward(name="long", reward=giving([3, 4]), weight=-0.5),
        ]
    )
    # 2·1 − 0.5·3 = 0.5, 2·0 − 0.5·4 = −2
    assert [score.value for score in ask(combination, 2)] == [0.5, -2]


def test_what_a_part_cannot_score_is_left_out_and_counted():
    combination = Combination(
        [
            WeightedReward(name="code", reward=giving([1, NAN, NAN])),
            WeightedReward(name="mathematics", reward=giving([NAN, 0.5, NAN])),
        ]
    )
    scores = ask(combination, 3)
    assert [score.value for score in scores[:2]] == [1, 0.5]
    assert not scores[2].scored
    assert scores[2].reason == "code: no idea; mathematics: no idea"
    assert combination.unscored == {"code": 2, "mathematics": 2}


def test_without_a_required_part_nothing_is_scored():
    combination = Combination(
        [
            WeightedReward(name="safe", reward=giving([NAN, 1]), required=True),
            WeightedReward(name="good", reward=giving([3, NAN])),
        ]
    )
    scores = ask(combination, 2)
    assert not scores[0].scored
    assert scores[0].reason == "safe: no idea"
    assert scores[1].value == 1


def test_a_part_that_raises_leaves_its_sample_to_the_others_and_is_counted():
    def failing(prompts, completions, references):
        if "bad" in completions:
            raise ZeroDivisionError("oh")
        return [Score(1.0) for _ in completions]

    combination = Combination(
        [WeightedReward(name="one", reward=failing), WeightedReward(name="two", reward=giving([10, 20, 30]))]
    )
    scores = combination([()] * 3, ["good", "bad", "good"], [None] * 3)
    assert [score.value for score in scores] == [11, 20, 31]
    assert combination.unscored == {"one": 1, "two": 0}
    assert combination.failures == {"one": {"ZeroDivisionError: oh": 1}, "two": {}}


def test_normalising_uses_all_scores_so_far():
    combination = Combination(
        [WeightedReward(name="one", reward=giving([1, 3], [5, NAN, 7]), normalise=True)]
    )
    # 1, 3: mean 2, deviation √2
    assert [score.value for score in ask(combination, 2)] == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)])
    # 1, 3, 5, 7: mean 4, deviation √(20/3)
    scores = ask(combination, 3)
    assert [scores[0].value, scores[2].value] == pytest.approx([1 / math.sqrt(20 / 3), 3 / math.sqrt(20 / 3)])


def test_scores_that_never_vary_normalise_to_0():
    combination = Combination(
        [WeightedReward(name="one", reward=giving([0.1] * 3, [0.1] * 7), normalise=True)]
    )
    assert [score.value for score in ask(combination, 3) + ask(combination, 7)] == [0] * 10


def test_held_out_prompts_do_not_move_the_statistics():
    combination = Combination(
        [WeightedReward(name="one", reward=giving([1, 3], [100, 100], [2]), normalise=True)]
    )
    ask(combination, 2)
    combination.learning = False
    before = combination.state_dict()
    ask(combination, 2)
    assert combination.state_dict() == before
    assert ask(combination, 1)[0].value == 0


def test_parts_are_cut_before_weighting_and_the_sum_at_the_end():
    combination = Combination(
        [
            WeightedReward(name="one", reward=giving([10, -10, 1]), clip=2, weight=3),
            WeightedReward(name="two", reward=giving([1, 1, 0])),
        ],
        clip=5,
    )
    # 3·2 + 1 = 7 → 5; 3·(−2) + 1 = −5; 3·1 + 0 = 3
    assert [score.value for score in ask(combination, 3)] == [5, -5, 3]


def test_segments_of_all_parts_come_together_weighted_and_in_order():
    dense = Score(0.0, (ScoredSegment(4, 1.0), ScoredSegment(9, -1.0)))
    other = Score(1.0, (ScoredSegment(6, 5.0), ScoredSegment(9, 0.5)))
    combination = Combination(
        [
            WeightedReward(name="facts", reward=giving([dense]), weight=2),
            WeightedReward(name="relevance", reward=giving([other]), weight=10, clip=0.7),
        ]
    )
    score = ask(combination, 1)[0]
    # 10 · 0.7 for the whole; segments 2·1, 10·0.7, 2·(−1) and 10·0.5
    assert score.value == 7
    assert [(segment.end, segment.value) for segment in score.segments] == [(4, 2), (6, 7), (9, -2), (9, 5)]


def test_segments_are_normalised_among_segments():
    batch = [Score(50.0, (ScoredSegment(1, 1.0), ScoredSegment(2, 3.0))), Score(70.0)]
    combination = Combination([WeightedReward(name="facts", reward=giving(batch), normalise=True)])
    scores = ask(combination, 2)
    assert [segment.value for segment in scores[0].segments] == pytest.approx(
        [-math.sqrt(0.5), math.sqrt(0.5)]
    )
    assert scores[1].value == pytest.approx(math.sqrt(0.5))


def test_the_parts_are_told_as_they_were_given():
    combination = Combination(
        [WeightedReward(name="one", reward=giving([1, 3]), weight=9, normalise=True, clip=0.1)]
    )
    combined = combination.combine([()] * 2, [""] * 2, [None] * 2)
    assert [score.value for score in combined.parts["one"]] == [1, 3]
    assert [score.value for score in combined.totals] == pytest.approx([-0.9, 0.9])


def test_a_resumed_combination_goes_on_as_if_never_stopped():
    batches = [[0.1, 2.5], [NAN, 7.25], [-3.0, 0.3]]
    whole = Combination([WeightedReward(name="one", reward=giving(*batches), normalise=True)])
    expected = [ask(whole, 2) for _ in batches]
    first = Combination([WeightedReward(name="one", reward=giving(*batches), normalise=True)])
    ask(first, 2)
    second = Combination([WeightedReward(name="one", reward=giving(*batches[1:]), normalise=True)])
    second.load_state_dict(first.state_dict())
    resumed = [ask(second, 2), ask(second, 2)]
    assert repr(resumed) == repr(expected[1:])


def test_the_state_of_other_parts_is_refused():
    combination = Combination([WeightedReward(name="one", reward=giving())])
    with pytest.raises(ValueError, match=r"\['one'\], not of \['two'\]"):
        Combination([WeightedReward(name="two", reward=giving())]).load_state_dict(combination.state_dict())


@pytest.mark.parametrize(
    ("options", "message"), [({"weight": NAN}, "must be finite"), ({"clip": 0.0}, "must be positive")]
)
def test_a_part_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        WeightedReward(name="one", reward=giving(), **options)


def test_parts_need_names_of_their_own():
    with pytest.raises(ValueError, match="names of their own"):
        Combination(
            [WeightedReward(name="one", reward=giving()), WeightedReward(name="one", reward=giving())]
        )
    with pytest.raises(ValueError, match="names of their own"):
        Combination([])


@given(st.lists(st.lists(st.floats(-1e3, 1e3), max_size=5), max_size=6))
def test_running_statistics_are_those_of_all_numbers_at_once(batches):
    running = RunningStatistics()
    for batch in batches:
        running.add(batch)
    numbers = [number for batch in batches for number in batch]
    assert running.count == len(numbers)
    if numbers:
        assert running.mean == pytest.approx(statistics.fmean(numbers), abs=1e-9)
    if len(numbers) > 1:
        assert running.deviation == pytest.approx(statistics.stdev(numbers), abs=1e-6)
