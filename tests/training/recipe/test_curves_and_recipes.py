"""Recipes that are checked, and durations as people say them."""

import json
from dataclasses import replace

import pytest

from training.contract import ContractError
from training.contract.methods.policy import (
    KtoSettings,
    PolicyGradientSettings,
    PreferenceSettings,
    RewardPart,
    SftSettings,
)
from training.recipe.recipe import Recipe, default_recipe
from training.templatetags.training import duration


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, ""), (0, "0 s"), (59.4, "59 s"), (59.6, "1 min"), (200, "3 min"), (4800, "1 h 20 min")],
)
def test_a_duration_is_said_as_people_say_it(seconds, words):
    assert duration(seconds) == words


def test_the_default_recipe_survives_the_database():
    recipe = Recipe.from_json(json.loads(json.dumps(default_recipe())))
    assert recipe.to_json() == default_recipe()
    assert (recipe.reward.features, recipe.policy_method) == ("auto", "auto")
    plain = replace(recipe, reward=replace(recipe.reward, features="adapted"), policy_method="fixed")
    # What a recipe leaves out is set as before there was a choice.
    assert plain == Recipe.from_json({})


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
        ({"colour": "red"}, "unknown field 'colour'; known are"),
        ([], "must be an object"),
        ({"sampling": {"top_p": 0}}, "sampling, top_p: must be at least 0.01"),
        ({"sampling": {"max_tokens": True}}, "sampling, max_tokens: must be a whole number"),
        ({"ranking_size": 2}, "ranking_size: must be at least 3"),
        ({"prompts": 0}, "prompts: must be at least 1 or null"),
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
        ({"policy": [1]}, "policy: must be an object, not \\[1\\]"),
        ({"reward": {"optimiser": {"batch": 3}}}, "unknown field 'batch'"),
    ],
)
def test_a_recipe_that_cannot_be_followed_names_its_field(values, message):
    with pytest.raises(ContractError, match=message):
        Recipe.from_json(values)
