"""Numbers that become curves, recipes that are checked."""

import json
import math

import pytest

from training.contract import (
    ContractError,
    KtoSettings,
    PolicyGradientSettings,
    PreferenceSettings,
    RewardPart,
    SftSettings,
)
from training.curves import curve, curves
from training.recipe import Recipe, default_recipe
from training.templatetags.training import duration


def test_a_curve_fills_its_box_from_top_to_bottom():
    # Steps 1 to 3 over a width of 320: 0, 160, 320. Values 3, 1, 2 in a height of 96, the
    # largest at y = 0, the least at 96, and the middle one half way at 48.
    drawn = curve([{"step": 1, "loss": 3.0}, {"step": 2, "loss": 1.0}, {"step": 3, "loss": 2.0}], "loss")
    assert drawn.points == "0.0,0.0 160.0,96.0 320.0,48.0"
    assert (drawn.first, drawn.last, drawn.lowest, drawn.highest) == (3.0, 2.0, 1.0, 3.0)


def test_a_run_that_goes_on_leaves_room_for_what_is_to_come():
    drawn = curve([{"step": 0, "loss": 1.0}, {"step": 5, "loss": 0.0}], "loss", total_steps=20)
    assert drawn.points == "0.0,0.0 80.0,96.0"


def test_steps_without_the_metric_or_with_no_number_are_left_out():
    rows: list[dict[str, float]] = [{"step": 1, "loss": math.nan}, {"step": 2}, {"step": 3, "loss": 2.0}]
    assert curve(rows, "loss").points == "0.0,48.0"
    assert curve(rows, "accuracy") is None
    assert [one.name for one in curves(rows, ("accuracy", "loss"))] == ["loss"]


def test_a_long_curve_is_thinned_and_keeps_its_end():
    rows = [{"step": step, "loss": float(step)} for step in range(10_001)]
    drawn = curve(rows, "loss")
    assert len(drawn.points.split()) <= 402
    assert drawn.points.endswith("320.0,0.0")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, ""), (0, "0 s"), (59.4, "59 s"), (59.6, "1 min"), (200, "3 min"), (4800, "1 h 20 min")],
)
def test_a_duration_is_said_as_people_say_it(seconds, words):
    assert duration(seconds) == words


def test_the_default_recipe_survives_the_database():
    assert Recipe.from_json(json.loads(json.dumps(default_recipe()))) == Recipe()


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"beta": 0.2}, PreferenceSettings(beta=0.2)),
        ({"method": "preference", "loss": "ipo"}, PreferenceSettings(loss="ipo")),
        ({"method": "kto", "sources": ["ranks"]}, KtoSettings(sources=("ranks",))),
        ({"method": "sft"}, SftSettings()),
        (
            {"method": "policy_gradient", "context": True},
            PolicyGradientSettings(
                rewards=(RewardPart(name="people", kind="model", checkpoint="round"),), context=True
            ),
        ),
        (
            {"method": "policy_gradient", "rewards": [{"name": "a", "kind": "think_answer"}]},
            PolicyGradientSettings(rewards=(RewardPart(name="a", kind="think_answer"),)),
        ),
    ],
)
def test_the_method_of_a_recipes_policy_says_what_its_settings_are(policy, expected):
    recipe = Recipe.from_json({"policy": policy})
    assert recipe.policy == expected
    written = json.loads(json.dumps(recipe.to_json()))
    assert written["policy"]["method"] == expected.method
    assert Recipe.from_json(written) == recipe


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"colour": "red"}, "recipe: unknown field 'colour'"),
        ([], "an object is expected"),
        ({"sampling": {"top_p": 0}}, "sampling, top_p: must be a number from 0.01 to 1"),
        ({"sampling": {"max_tokens": True}}, "sampling, max_tokens: must be a whole number"),
        ({"ranking_size": 2}, "ranking_size: must be a whole number from 3 to 9"),
        ({"prompts": 0}, "prompts: must be a whole number from 1"),
        ({"policy": {"beta": -1}}, "beta: must be positive"),
        (
            {"policy": {"method": "reward"}},
            "policy, method: 'reward' must be one of preference, kto, sft, policy_gradient",
        ),
        (
            {"policy": {"method": "policy_gradient"}},
            "policy, context: the reward 'people' is the round's .* with context true; set both alike",
        ),
        (
            {
                "policy": {
                    "method": "policy_gradient",
                    "rewards": [{"name": "a", "kind": "think_answer"}],
                    "watch": {"held_out": [{"name": "b", "kind": "model", "checkpoint": "round"}]},
                }
            },
            "policy, context: the reward 'b' is the round's",
        ),
        ({"policy": {"method": ["kto"]}}, "policy, method: .* must be one of preference, kto, sft"),
        ({"policy": {"method": "sft", "beta": 1}}, "unknown field 'beta'"),
        ({"policy": [1]}, "policy: an object is expected, not list"),
        ({"reward": {"optimiser": {"batch": 3}}}, "unknown field 'batch'"),
    ],
)
def test_a_recipe_that_cannot_be_followed_names_its_field(values, message):
    with pytest.raises(ContractError, match=message):
        Recipe.from_json(values)
