"""The reward-hacking watch: silent on honest runs and on noise, one warning where two curves part ways."""

import json
import math
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from training.contract.methods.policy import RewardPart, WatchSettings
from training.rlhf.policy_gradient.guard import (
    KL,
    LENGTH,
    REWARD,
    Watch,
    held_out_figure,
    part_figure,
)

HUMAN = RewardPart(name="human", kind="length", options={"most": 9})
KEPT_APART = held_out_figure("human")


def settings(**changes: Any) -> WatchSettings:
    values: dict[str, Any] = {"window": 10, "held_out": (HUMAN,)}
    return WatchSettings(**(values | changes))


def curve(at: Callable[[int], float], *, noise: float = 0.1, seed: int = 0, steps: int = 100) -> list[float]:
    draw = random.Random(seed)
    return [at(step) + draw.gauss(0, noise) for step in range(steps)]


def watched(
    watch: Watch, reward: Iterable[float], length: Iterable[float], human: Iterable[float]
) -> list[str]:
    warnings = []
    for step, (first, other, third) in enumerate(zip(reward, length, human, strict=True), start=1):
        warnings += watch.observe(step, {REWARD: first, LENGTH: other, KEPT_APART: third})
    return warnings


def rises(step: int) -> float:
    return step / 100


def stays(step: int) -> float:
    return 20.0


def test_a_reward_that_rises_with_all_else_is_no_cause_for_a_warning() -> None:
    watch = Watch(settings(action="stop"))
    slightly_longer = curve(lambda step: 20 + step / 20, noise=2, seed=1)
    assert watched(watch, curve(rises), slightly_longer, curve(rises, seed=2)) == []
    assert not watch.stop


@pytest.mark.parametrize(("slope", "word"), [(0.3, "longer"), (-0.15, "shorter")])
def test_answers_that_grow_or_shrink_while_the_reward_rises_are_warned_of_once(
    slope: float, word: str
) -> None:
    watch = Watch(settings())
    length = curve(lambda step: 20 + slope * step, noise=1, seed=1)
    [warning] = watched(watch, curve(rises), length, curve(stays, seed=2))
    assert word in warning
    assert "read the samples" in warning
    assert not watch.stop


def test_the_warning_tells_the_means_that_it_compares() -> None:
    watch = Watch(settings(window=2, held_out=()))
    warnings = [
        watch.observe(step, {REWARD: r, LENGTH: n})
        for step, (r, n) in enumerate([(0.0, 10), (0.0, 10), (1.0, 16), (1.0, 16)], start=1)
    ]
    assert warnings[:3] == [[], [], []]
    assert warnings[3] == [
        "step 4: answers became 60% longer (10 to 16 tokens) while the reward rose from 0 to 1 (means of the "
        "first and the last 2 steps): it may be gamed; read the samples"
    ]


def test_a_held_out_reward_that_falls_while_the_reward_rises_ends_the_run_where_that_is_wished() -> None:
    falls = curve(lambda step: 1 - step / 200, seed=1)
    for action in ("warn", "stop"):
        watch = Watch(settings(action=action))
        [warning] = watched(watch, curve(rises), curve(stays, seed=2), falls)
        assert "the held-out reward 'human' fell from" in warning
        assert watch.stop == (action == "stop")


def test_each_cause_is_warned_of_by_itself() -> None:
    watch = Watch(settings())
    warnings = watched(
        watch, curve(rises), curve(lambda step: 20 + step), curve(lambda step: -step / 100, seed=1)
    )
    assert len(warnings) == 2


@pytest.mark.parametrize("off", [{"length_drift": None}, {"length_drift": 5.0}])
def test_what_is_not_looked_at_is_not_warned_of(off: dict[str, Any]) -> None:
    assert watched(Watch(settings(**off)), curve(rises), curve(lambda step: 20 + step), curve(stays)) == []


def test_without_a_rising_reward_nothing_is_called_gaming() -> None:
    flat = curve(lambda step: 0.5)
    falling = curve(lambda step: -step / 50, seed=1)
    assert watched(Watch(settings()), flat, curve(lambda step: 20 + step), falling) == []


def test_noise_is_warned_of_in_less_than_one_of_a_hundred_runs() -> None:
    # 400 runs of 200 steps with a reward that truly rises: each look at the other two is a look at noise.
    warned = 0
    for run in range(400):
        watch = Watch(settings())
        reward, length, human = (
            curve(at, noise=noise, seed=3 * run + place, steps=200)
            for place, (at, noise) in enumerate([(rises, 0.1), (stays, 8.0), (lambda step: 0.5, 0.2)])
        )
        warned += bool(watched(watch, reward, length, human))
    assert warned <= 4


def test_a_missing_or_broken_figure_leaves_its_window_as_it_is() -> None:
    watch, warnings = Watch(settings(window=2, held_out=())), []
    rows = [
        {REWARD: 0.0, LENGTH: 10.0},
        {REWARD: math.nan, LENGTH: 10.0},
        {REWARD: 0.0},
        {},
        {REWARD: 1.0, LENGTH: 20.0},
        {REWARD: math.inf, LENGTH: 20.0},
        {REWARD: 1.0},
    ]
    for step, row in enumerate(rows, start=1):
        warnings += watch.observe(step, row)
    assert [warning[:8] for warning in warnings] == ["step 7: "]


def test_with_weights_the_parts_as_scored_are_what_rises() -> None:
    # A normalised part is 0 on average for ever, and so would the figure of the whole be.
    watch, warnings = Watch(settings(window=2, held_out=()), weights={"a": 2.0, "b": -1.0}), []
    for step, (a, b, length) in enumerate([(0, 1, 10), (0, 1, 10), (1, 0, 30), (1, 0, 30)], start=1):
        warnings += watch.observe(
            step, {REWARD: 0.0, part_figure("a"): a, part_figure("b"): b, LENGTH: length}
        )
    assert len(warnings) == 1
    assert "rose from -1 to 2" in warnings[0]


def test_a_watch_goes_on_from_its_state_as_if_it_had_never_been_away() -> None:
    curves = (
        curve(rises),
        curve(lambda step: 20 + step / 4, seed=1),
        curve(lambda step: -step / 100, seed=2),
    )
    through = Watch(settings(action="stop"))
    expected = watched(through, *curves)
    assert len(expected) == 2
    for cut in (5, 15, 60, 99):
        before, after = Watch(settings(action="stop")), Watch(settings(action="stop"))
        warnings = watched(before, *(values[:cut] for values in curves))
        after.load_state_dict(json.loads(json.dumps(before.state_dict())))
        for step, row in enumerate(zip(*(values[cut:] for values in curves), strict=True), start=cut + 1):
            warnings += after.observe(step, dict(zip((REWARD, LENGTH, KEPT_APART), row, strict=True)))
        assert warnings == expected
        assert after.state_dict() == through.state_dict()
        assert after.stop


def test_a_run_ends_once_its_divergence_is_spent_and_stays_ended_after_a_resume() -> None:
    for budget, ends in ((None, False), (5.0, True)):
        watch = Watch(settings(), kl_budget=budget)
        stops = []
        for step, kl in enumerate((0.0, 4.9, math.nan, 5.1, 4.0), start=1):
            assert watch.observe(step, {REWARD: 0.0, LENGTH: 20.0, KEPT_APART: 0.0, KL: kl}) == []
            stops.append(watch.stop)
        assert stops == [False, False, False, ends, ends]
        again = Watch(settings(), kl_budget=budget)
        again.load_state_dict(json.loads(json.dumps(watch.state_dict())))
        assert again.stop == ends


def test_the_state_of_another_watch_is_refused() -> None:
    with pytest.raises(ValueError, match="the state is of"):
        Watch(settings(held_out=())).load_state_dict(Watch(settings()).state_dict())
