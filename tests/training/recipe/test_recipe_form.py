"""A recipe as a form: nothing is lost on the way, every setting is explained, errors stand at their field."""

import dataclasses
import typing
from typing import Any

import pytest

from training.contract.methods import SETTINGS
from training.contract.methods.common import LoraSettings, OptimiserSettings
from training.contract.methods.policy import PolicyGradientSettings, RewardPart, SftSettings
from training.contract.methods.reward import CompletenessHead, RatingHead, SegmentHead
from training.recipe import form
from training.recipe.form import Group, RecipeForm, choice_of, flattened, help_of, sentences, with_policy
from training.recipe.recipe import PRESETS, Recipe
from training.views.rounds import SECTIONS


def classes(cls: Any, seen: set[Any]) -> set[Any]:
    """A dataclass and all that its fields are made of."""
    if cls in seen:
        return seen
    seen.add(cls)
    for hint in typing.get_type_hints(cls).values():
        for part in (hint, *typing.get_args(hint)):
            if isinstance(part, type) and dataclasses.is_dataclass(part):
                classes(part, seen)
    return seen


EVERY_CLASS = sorted(
    classes(Recipe, set()).union(*(classes(setting, set()) for setting in SETTINGS.values())),
    key=lambda cls: cls.__name__,
)


@pytest.mark.parametrize("cls", EVERY_CLASS, ids=lambda cls: cls.__name__)
def test_every_setting_has_a_sentence_of_help(cls: Any):
    assert [name for name, text in help_of(cls).items() if not text.endswith((".", "?"))] == []


def test_translators_get_the_sentence_of_every_setting_that_a_form_shows():
    collected = {text for _, text in sentences()}
    shown = classes(Recipe, set())
    assert {text for cls in shown for text in help_of(cls).values()} <= collected
    assert help_of(LoraSettings)["rank"] in collected
    assert help_of(PolicyGradientSettings)["rollout"] in collected


def test_a_form_says_its_sentences_in_the_readers_language(monkeypatch: pytest.MonkeyPatch):
    english = help_of(Recipe)["seed"]
    monkeypatch.setattr(form, "gettext", lambda text: "Deutsch." if text == english else text)
    whole = RecipeForm(flattened(Recipe())).whole
    assert {field.name: field.help for field in whole.inputs}["seed"] == "Deutsch."


def test_help_is_what_stands_under_the_field():
    assert (
        help_of(LoraSettings)["rank"] == "Width of the two factors; more learns more and costs more memory."
    )
    # A field that a method redefines has its own sentence, one that it inherits that of its base.
    assert help_of(PolicyGradientSettings)["optimiser"].startswith(
        "Steps and step sizes. A step is one batch"
    )
    assert help_of(PolicyGradientSettings)["lora"] == help_of(SftSettings)["lora"]


def test_every_field_of_a_recipe_stands_in_one_section():
    names = [name for _, fields in SECTIONS for name in fields]
    assert sorted(names) == sorted(field.name for field in dataclasses.fields(Recipe))


RECIPES = {
    "default": Recipe(),
    **{name: dataclasses.replace(Recipe(), policy=make()) for name, (_, make) in PRESETS.items()},
    "full": Recipe.from_json(
        {
            "samplers": [{"completions": 2, "sampling": {"temperature": 1e-05}}, {"checkpoint": "rival"}],
            "reward": {
                "loss": "plackett_luce",
                "ratings": [{"name": "warmth", "criterion": "Warmth"}],
                "segments": [{"name": "faults", "categories": ["a", "b"]}],
                "completeness": {"name": "whole"},
                "optimiser": {"max_steps": None},
                "context": False,
            },
            "policy": {
                "method": "policy_gradient",
                "rollout": {"stop": ["\n\n", "a, b"]},
                "rewards": [
                    {"name": "people", "kind": "model", "checkpoint": "round", "heads": {"score": 0.5}},
                    {"name": "brief", "kind": "length", "options": {"most": 9}, "clip": 2},
                ],
            },
            "evaluation": {"rules": [{"name": "right", "kind": "exact_match"}], "people": True},
            "promotion": {"judged_by": "people", "rules": {"right": 0.25}, "least_win_rate": 0.4},
            "start": {"at": "2026-01-31T22:00+01:00", "judgments": 60},
            "budget": {"hours": 2.5},
            "prompts": 12,
        }
    ),
    "in another order": Recipe.from_json(
        {"policy": {"method": "sft", "sources": ["preferred", "corrections"]}}
    ),
}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=list(RECIPES))
def test_a_form_that_nobody_touched_gives_the_same_recipe(recipe: Recipe):
    form = RecipeForm(flattened(recipe))
    assert form.errors == []
    assert form.recipe == recipe


def inputs_of(group: Group) -> list[str]:
    return [field.name for field in group.inputs] + [
        name for inner in group.groups for name in inputs_of(inner)
    ]


def test_every_plain_setting_is_an_input():
    names = set(inputs_of(RecipeForm(flattened(Recipe())).whole))
    for field in dataclasses.fields(OptimiserSettings):
        assert f"reward-optimiser-{field.name}" in names
        assert f"policy-optimiser-{field.name}" in names
    for field in dataclasses.fields(CompletenessHead):
        assert f"reward-completeness-{field.name}" in names
    for cls, path in ((RatingHead, "reward-ratings-0"), (SegmentHead, "reward-segments-0")):
        for field in dataclasses.fields(cls):
            assert f"{path}-{field.name}" in names


WRONG = [
    ("reward-lora-rank", "0", "must be at least 1"),
    ("reward-lora-rank", "many", "a whole number is expected, not 'many'"),
    ("sampling-temperature", "9", "must be at most 2, not 9.0"),
    ("ranking_size", "2", "must be at least 3, not 2"),
    ("policy-beta", "0", "must be positive"),
    ("policy-optimiser-patience", "3", "needs evaluations on the way: set evaluate_every"),
    ("reward-margin_per_strength", "-1", "must not be negative"),
    ("promotion-rules", '{"x": 1}', "'x' is no rule of the evaluation: add it there"),
    ("promotion-rules", "{", "this is no JSON"),
    ("promotion-judged_by", "people", "people must be asked for that: set people of the evaluation to true"),
    ("start-at", "tomorrow", "'tomorrow' is no time with a zone"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_an_error_stands_at_the_field_that_it_names(name: str, value: str, message: str):
    form = RecipeForm({**flattened(Recipe()), name: [value]})
    assert form.recipe is None
    (error,) = form.errors
    assert error[0] == name
    assert error[1].startswith(message)


def test_an_error_across_a_method_stands_at_its_field_too():
    data = with_policy(flattened(Recipe()), "grpo")
    form = RecipeForm({**data, "policy-rollout-samples": ["1"]})
    assert [name for name, _ in form.errors] == ["policy-rollout-samples"]


def test_no_number_that_is_none_gets_through():
    for value in ("nan", "inf", "1e999"):
        assert RecipeForm({**flattened(Recipe()), "budget-hours": [value]}).recipe is None


def test_an_item_is_added_by_keeping_the_blank_one_and_taken_out_by_letting_it_go():
    data = flattened(Recipe())
    data |= {
        "evaluation-rules-0-keep": ["on"],
        "evaluation-rules-0-name": ["brief"],
        "evaluation-rules-0-kind": ["length"],
        "evaluation-rules-0-options": ['{"most": 9}'],
    }
    added = RecipeForm(data).recipe
    assert added.evaluation.rules == (RewardPart(name="brief", kind="length", options={"most": 9}),)
    again = flattened(added)
    del again["evaluation-rules-0-keep"]
    assert RecipeForm(again).recipe == Recipe()


def test_another_method_brings_its_own_settings_and_leaves_the_rest():
    data = {**flattened(Recipe()), "seed": ["7"]}
    recipe = RecipeForm(with_policy(data, "ppo")).recipe
    assert recipe.seed == 7
    assert recipe.policy.method == "policy_gradient"
    assert recipe.policy.advantage.kind == "gae"
    assert choice_of(recipe.policy) == "ppo"


@pytest.mark.parametrize("method", ["", "reward", "guessing"])
def test_a_method_that_trains_no_policy_is_refused(method: str):
    assert RecipeForm({**flattened(Recipe()), "policy-method": [method]}).recipe is None


def test_an_empty_form_is_refused_and_does_not_fall():
    assert RecipeForm({}).recipe is None


@pytest.mark.parametrize("method", ["reward", "sft", "preference", "kto"])
def test_what_becomes_of_thinking_is_a_choice_with_its_help(method: str):
    settings: typing.Any = SETTINGS[method]
    assert "strip: it is taken out" in help_of(settings)["thinking"]
    (place,) = [field for field in dataclasses.fields(settings) if field.name == "thinking"]
    assert place.default == "train"
    assert set(typing.get_args(typing.get_type_hints(settings)["thinking"])) == {"train", "mask", "strip"}
    assert "thinking" not in help_of(PolicyGradientSettings)
