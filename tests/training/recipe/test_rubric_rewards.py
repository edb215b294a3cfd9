"""Rewards by a rubric: names in a recipe, and the whole version in what the trainer gets."""

import json
from pathlib import Path
from typing import Any

import pytest

from annotation.errors import Refusal
from annotation.models import Project, RubricVersion, User
from annotation.services.projects.rubrics import RubricCriterionInput, publish_rubric, save_rubric
from training.contract.files import canonical_json
from training.contract.methods.policy import RewardPart
from training.contract.run import RunSpec
from training.models import Checkpoint
from training.recipe.recipe import Recipe
from training.rlhf.rewards.combination import build_rewards
from training.services.checkpoints import register_starter
from training.services.judges import create_judge
from training.services.rounds.controls import open_first_round
from training.services.rounds.recipes import unknown_rubric, with_reward_models, with_rubric

pytestmark = pytest.mark.django_db


@pytest.fixture
def version(project: Project, carol: User) -> RubricVersion:
    saved = save_rubric(
        project=project,
        name="Tea",
        criteria=[RubricCriterionInput(name="Accuracy", text="Is it true?", scale="seven", weight=2.5)],
        saved_by=carol,
    )
    publish_rubric(version=saved, published_by=carol)
    create_judge(project=project, name="Judge", checkpoint=register_starter(name="starter"), created_by=carol)
    return saved


def part(**options: Any) -> RewardPart:
    return RewardPart(name="tea", kind="rubric", options=options)


def test_the_spec_holds_the_published_version_and_the_judges_server(
    project: Project, carol: User, version: RubricVersion, tmp_path: Path
):
    Checkpoint.objects.update(server_url="https://models.example/v1", server_model="org/judge-70b")
    # A later version that nobody published is not used.
    save_rubric(
        project=project,
        name="Tea",
        criteria=[RubricCriterionInput(name="Other")],
        saved_by=carol,
        rubric=version.rubric,
    )
    resolved = with_rubric(project, part(rubric="Tea", judge="Judge", workers=2))
    assert resolved.options == {
        "url": "https://models.example",
        "model": "org/judge-70b",
        "workers": 2,
        "rubric": {
            "name": "Tea",
            "version": 1,
            "criteria": [
                {
                    "key": "accuracy",
                    "name": "Accuracy",
                    "text": "Is it true?",
                    "levels": "",
                    "scale": "seven",
                    "weight": 2.5,
                }
            ],
        },
    }
    # As the trainer reads it from the run's folder.
    read = RewardPart(
        **json.loads(canonical_json({"name": "tea", "kind": "rubric", "options": resolved.options}))
    )
    rewards = build_rewards([read], backbone=None, folder=tmp_path, environment={})
    [built] = rewards.parts
    assert built.reward.rubric.score({"accuracy": 4}) == 0.5  # type: ignore[attr-defined]
    rewards.close()


def test_a_rounds_policy_is_trained_by_the_rubric_that_its_recipe_names(
    project: Project, version: RubricVersion, settings: Any
):
    settings.RONDO_MODEL_SERVER_URL = "http://127.0.0.1:8001"
    recipe = Recipe.from_json(
        {
            "policy": {
                "method": "policy_gradient",
                "rewards": [
                    {"name": "tea", "kind": "rubric", "options": {"rubric": "Tea", "judge": "Judge"}}
                ],
            }
        }
    )
    policy = with_reward_models(open_first_round(project=project), recipe.policy)
    spec = RunSpec(
        method="policy_gradient",
        snapshot="../snapshot",
        snapshot_digest="d" * 64,
        base_model="tiny",
        settings=policy,
    )
    [reward] = RunSpec.from_json(json.loads(canonical_json(spec.to_json()))).settings.rewards
    assert reward.options["rubric"]["version"] == 1
    assert (reward.options["url"], reward.options["model"]) == ("http://127.0.0.1:8001", "starter")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"rubric": "Coffee", "judge": "Judge"}, "Coffee, which the project has not published"),
        ({"judge": "Judge"}, "which the project has not published"),
        ({"rubric": "Tea", "judge": "Nobody"}, "Nobody, which is no AI annotator"),
        ({"rubric": "Tea"}, "needs the option judge"),
        ({"rubric": ["Tea"], "model": "wise"}, "has not published"),
    ],
)
def test_names_that_the_project_does_not_have_are_refused_in_the_dry_run_and_at_the_start(
    project: Project, version: RubricVersion, options: dict[str, Any], problem: str
):
    [message] = unknown_rubric(project, part(**options))
    assert problem in message
    with pytest.raises(Refusal, match=problem):
        with_rubric(project, part(**options))


def test_a_rubric_that_is_not_published_or_of_another_project_is_not_there(
    project: Project, carol: User, version: RubricVersion
):
    save_rubric(project=project, name="Draft", criteria=[RubricCriterionInput(name="X")], saved_by=carol)
    other = Project.objects.create(name="Coffee", slug="coffee")
    assert list(unknown_rubric(project, part(rubric="Tea", judge="Judge"))) == []
    assert len(list(unknown_rubric(project, part(rubric="Draft", judge="Judge")))) == 1
    assert len(list(unknown_rubric(other, part(rubric="Tea", judge="Judge")))) == 2
