"""Training's sections of a project file: conversations, suggestions and the recipe."""

import json

import jsonschema
import pytest
import yaml
from django.conf import settings

from annotation.exchange.project_file import in_yaml, read, write
from annotation.models import HelpSettings, Project, User
from tests.refusals import refused
from training.choices import RoundState
from training.models import ConversationSettings, Round, SuggestionSource
from training.recipe.recipe import Recipe
from training.services.checkpoints import register_starter
from training.services.conversations import save_conversation_settings
from training.services.rounds.controls import draft_first_round
from training.services.rounds.recipes import change_recipe
from training.services.suggestions import set_suggestions

pytestmark = pytest.mark.django_db


@pytest.fixture
def study(project: Project, carol: User) -> Project:
    starter = register_starter(name="starter")
    save_conversation_settings(
        project=project, actor=carol, checkpoints=[starter], responses=3, temperature=0.4, is_open=False
    )
    set_suggestions(
        project=project,
        by=carol,
        is_active=True,
        checkpoint=starter,
        least_confidence=0.25,
        planted_share=0.0,
    )
    round_ = draft_first_round(project=project, created_by=carol)
    recipe = Recipe.from_json({**round_.recipe, "seed": 7, "samplers": [{"completions": 2}]})
    change_recipe(round_=round_, recipe=recipe, actor=carol)
    return project


def test_training_settings_go_into_the_file_and_into_a_new_project(study: Project, admin: User):
    text = write(study)
    values = yaml.safe_load(text)
    schema = json.loads((settings.BASE_DIR / "static" / "schemas" / "project-file-1.json").read_text())
    jsonschema.validate(values, schema)
    made = read(text).create(slug="again", by=admin)
    assert write(made) == text
    round_ = Round.objects.get(project=made)
    assert (round_.state, round_.parsed_recipe.seed) == (RoundState.DRAFT, 7)
    assert ConversationSettings.objects.get(project=made).checkpoints.get().name == "starter"
    assert SuggestionSource.objects.get(project=made).least_confidence == 0.25
    assert made.has_help
    assert HelpSettings.objects.get(project=made).planted_share == 0.0
    assert read(text).apply(project=study, by=admin) == []


def test_a_recipe_is_compared_setting_by_setting_and_checked_with_its_paths(study: Project, carol: User):
    values = yaml.safe_load(write(study))
    values["recipe"]["sampling"]["temperature"] = 0.3
    changes = read(in_yaml(values)).apply(project=study, by=carol)
    assert [(row.path, row.before, row.after) for row in changes] == [
        ("recipe.sampling.temperature", 0.8, 0.3)
    ]
    assert Round.objects.get(project=study).parsed_recipe.sampling.temperature == 0.3
    values["recipe"]["sampling"]["temperature"] = 9
    with refused("project_file_invalid", field="recipe.sampling.temperature"):
        read(in_yaml(values))
    with refused("project_file_invalid", field="recipe.policy.beta"):
        read("rondo: 1\nrecipe:\n  policy: {method: preference, beta: -1}\n")


def test_a_recipe_that_trains_and_an_unknown_checkpoint_are_refused_and_all_is_taken_back(
    study: Project, carol: User
):
    Round.objects.update(state=RoundState.PROMOTED)
    with refused("recipe_fixed", field="recipe"):
        read("rondo: 1\nname: Other\nrecipe: {seed: 1}\n").apply(project=study, by=carol)
    with refused("unknown_checkpoint", field="conversations.checkpoints[0]"):
        read("rondo: 1\nname: Other\nconversations: {checkpoints: [nobody]}\n").apply(project=study, by=carol)
    with refused("unknown_checkpoint", field="suggestions.checkpoint"):
        read("rondo: 1\nname: Other\nsuggestions: {checkpoint: nobody}\n").apply(project=study, by=carol)
    study.refresh_from_db()
    assert study.name != "Other"
