"""Each lesson trains in its smallest form, as it is and broken, with the lines and the figure it declares."""

import json
import math
import random
from pathlib import Path

import pytest

from training.contract import ContractError
from training.contract.course import LESSONS
from training.rlhf.course import preferences
from training.rlhf.course.__main__ import RUNS
from training.rlhf.course.games import (
    SIMULATED_COSTS,
    WORDS,
    MarkedReplyGame,
    ServiceDesk,
    fine_grained,
    own_costs,
    quality,
)
from training.rlhf.course.setting import LessonSetting
from training.rlhf.course.text import rule_scores

LONGER = {
    "string-reversal": [pytest.mark.slow],
    "rule-rewards": [pytest.mark.slow],
}


BROKEN_LONGER = {
    # The same trainer in a process of its own; without the imitation, which the plain one begins with.
    "string-reversal": [pytest.mark.long],
}


@pytest.mark.parametrize(
    ("lesson", "broken"),
    [
        pytest.param(
            each,
            broken,
            id=f"{'broken' if broken else 'plain'}-{each.slug}",
            marks=(*LONGER.get(each.slug, ()), *(BROKEN_LONGER.get(each.slug, ()) if broken else ())),
        )
        for broken in (False, True)
        for each in LESSONS
    ],
)
def test_a_lesson_runs_in_its_smallest_form(lesson, broken):
    points = []
    setting = LessonSetting(
        seed=0, broken=broken, short=True, report=lambda step, values: points.append((step, dict(values)))
    )
    figures = RUNS[lesson.slug](setting)
    assert {name for _step, values in points for name in values} == set(lesson.lines)
    assert math.isfinite(figures[lesson.claim.figure])


def test_every_declared_lesson_has_a_run():
    assert set(RUNS) == {lesson.slug for lesson in LESSONS}


@pytest.mark.slow
def test_rules_find_one_completion_of_each_task_right():
    assert [[score == 1 for score in scores] for scores in rule_scores()] == [[True, *[False] * 5]] * 3


def test_the_quality_of_a_response_by_hand():
    # Three needed words, one of eight said twice.
    assert quality(["sorry", "order", "number", "the", "a", "we", "you", "you"]) == 3 - 0.5


def test_spans_cost_their_segment_and_together_as_much_as_in_one_reward():
    def rewards(*, whole: bool) -> list[float]:
        game = MarkedReplyGame(whole=whole)
        game.start(0)
        # "never" on places 0 and 5, "sorry" elsewhere.
        return [game.act(19 if place in (0, 5) else 0)[1] for place in range(32)]

    dense, whole = rewards(whole=False), rewards(whole=True)
    assert [place for place, reward in enumerate(dense) if reward] == [3, 7]
    assert [place for place, reward in enumerate(whole) if reward] == [31]
    assert sum(dense) == sum(whole) == -2


MARKED = [
    {"text": "Ten hours. Then drink it.", "spans": [[0, 10, 3]]},
    {"text": "Boil it twice. Never stir.", "spans": [[0, 14, None], [14, 26, 1]]},
    {"text": "Add salt. Add sugar. Wait.", "spans": [[4, 8, 2], [10, 19, 1], [0, 3, 1]]},
]


def test_own_spans_cost_their_severity_in_units_of_the_mean():
    # Five pieces with spans: 3, 1, 1 (the span opens with a space, which the piece before does not answer
    # for), 2 + 1 and 1; their mean is 1.8.
    costs = own_costs(MARKED, random.Random(0))
    assert len(costs) == len(WORDS)
    assert sorted(costs) == pytest.approx([0.0] * 19 + [1 / 1.8] * 3 + [3 / 1.8] * 2)
    assert sum(costs) == pytest.approx(sum(SIMULATED_COSTS))
    game = MarkedReplyGame(whole=True, costs=costs)
    game.start(0)
    assert sum(game.act(23)[1] for _ in range(32)) == pytest.approx(-32 * costs[23])


def test_pieces_that_read_alike_count_for_each_response():
    alike = [{"text": "Ten hours. Drink.", "spans": [[0, 10, None]]}] * 5
    assert own_costs(alike, random.Random(0)) == pytest.approx(list(SIMULATED_COSTS))


def test_the_lesson_trains_on_own_spans_and_refuses_too_few(tmp_path: Path):
    own = tmp_path / "own.json"
    setting = LessonSetting(seed=0, broken=False, short=True, report=lambda *_: None, own=own)
    own.write_text(json.dumps(MARKED))
    assert fine_grained(setting)["spans"] > 0
    own.write_text(json.dumps(MARKED[:2]))
    with pytest.raises(ContractError):
        fine_grained(setting)


def test_a_desk_that_forgets_sees_the_opening_alone():
    for forgets in (False, True):
        desk = ServiceDesk(forgets=forgets)
        opening = desk.start(0)
        (place,) = (index for index, seen in enumerate(opening[:3]) if seen)
        answered, reward, over = desk.act(1 + place)
        assert (reward, over) == (0.3, False)
        assert (answered == opening) == forgets
        assert desk.act(4 + place)[1:] == (1.0, True)


def test_too_few_votes_are_refused(tmp_path: Path):
    votes = tmp_path / "votes.json"
    rows = json.loads(preferences.PACKAGED_VOTES.read_text())
    votes.write_text(json.dumps(rows[:29]))
    setting = LessonSetting(seed=0, broken=False, short=True, report=lambda *_: None, own=votes)
    with pytest.raises(ContractError):
        preferences.reward_model_from_votes(setting)
