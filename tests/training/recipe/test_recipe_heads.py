"""Heads that a reward of a recipe weighs: a name that the round's model will not have is refused at once."""

from typing import Any

import pytest

from training.contract import ContractError
from training.recipe.recipe import Recipe


def recipe(heads: dict[str, float] | None, **reward: Any) -> Recipe:
    part = {"name": "people", "kind": "model", "checkpoint": "round", "heads": heads}
    values = {
        "reward": {"context": True, **reward},
        "policy": {"method": "policy_gradient", "rewards": [part], "context": True},
    }
    return Recipe.from_json(values)


SEGMENTS = {"segments": [{"name": "facts", "granularity": "sentence", "categories": ["untruthful"]}]}


def test_heads_that_the_rounds_model_will_have_are_taken():
    for heads in (None, {"score": 1.0}, {"facts": 0.3, "score": 1.0}):
        assert recipe(heads, **SEGMENTS).policy.rewards[0].heads == heads


@pytest.mark.parametrize(
    ("heads", "reward", "has"),
    [
        ({"scor": 1.0}, {}, "score"),
        ({"score": 1.0, "fact": 0.3}, SEGMENTS, "score, facts"),
        ({"score": 1.0}, {**SEGMENTS, "loss": "none"}, "facts"),
    ],
)
def test_a_typing_error_in_a_head_is_refused_before_anything_is_trained(
    heads: dict[str, float], reward: dict[str, Any], has: str
):
    with pytest.raises(ContractError, match=f"will not have; it has {has}$"):
        recipe(heads, **reward)
