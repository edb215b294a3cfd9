"""Reward models on another base than the policy: which base each run trains, and who scores."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from annotation.errors import Refusal
from annotation.models import Project, User
from tests.refusals import refused
from tests.training.registry.registry_rows import make_trained
from tests.training.rounds.round_scenes import do_steps_before
from training.choices import BaseOrigin, CheckpointKind, StepKind
from training.contract import ContractError
from training.contract.checkpoint import manifest_digest
from training.contract.methods.policy import PolicyGradientSettings, RewardPart, RolloutSettings
from training.contract.methods.reward import RewardSettings
from training.contract.validation import Population
from training.models import BaseModel, Checkpoint, Round, Run
from training.recipe.recipe import ROUND_REWARD_MODEL, Recipe
from training.services.base_models import register_base_model
from training.services.checkpoints import register_starter
from training.services.rounds.controls import draft_first_round, start_round
from training.services.rounds.dry_run import dry_run
from training.services.rounds.recipes import change_recipe, with_reward_models
from training.services.runs.files import checkpoints_of_run

pytestmark = pytest.mark.django_db

BY_ROUND = PolicyGradientSettings(
    rewards=(RewardPart(name="people", kind="model", checkpoint="round", heads={"score": 2.0}),), context=True
)


@pytest.fixture
def larger(rondo_home: Path) -> BaseModel:
    """A second base model with files here, which reads 2,048 tokens."""
    folder = rondo_home / "models" / "larger"
    folder.mkdir(parents=True)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 10}
    (folder / "config.json").write_text(json.dumps(sizes | {"max_position_embeddings": 2048}))
    return register_base_model(name="larger", origin=BaseOrigin.FOLDER, tokenizer_digest="b" * 64)


def with_recipe(round_: Round, **changes: Any) -> Round:
    recipe = dataclasses.replace(Recipe(), **changes)
    Round.objects.filter(pk=round_.pk).update(recipe=recipe.to_json())
    round_.refresh_from_db()
    return round_


def on(checkpoint: Checkpoint, base: BaseModel) -> Checkpoint:
    checkpoint.base, checkpoint.base_model = base, base.name
    checkpoint.save()
    return checkpoint


@pytest.mark.usefixtures("quick_trainer")
def test_the_reward_model_trains_on_its_base_and_the_policy_is_scored_by_the_model_server(
    labelled: Round, carol: User, larger: BaseModel, client: Client
):
    round_ = with_recipe(labelled, reward_base="larger", policy=BY_ROUND)
    start_round(round_=round_, started_by=carol)
    do_steps_before(round_, StepKind.EVALUATE)
    reward = Run.objects.get(round_step__kind=StepKind.TRAIN_REWARD_MODEL)
    assert reward.base_model == "larger"
    checkpoint = Checkpoint.objects.get(kind=CheckpointKind.REWARD)
    assert (checkpoint.base, checkpoint.base_model) == (larger, "larger")
    policy = Run.objects.get(round_step__kind=StepKind.TRAIN_POLICY)
    assert policy.base_model == register_starter().name
    # The model server must know the reward model before the policy trains.
    assert checkpoint.created_at < policy.created_at
    [part] = policy.spec["settings"]["rewards"]
    assert (part["kind"], part["checkpoint"]) == ("served", checkpoint.name)
    assert part["checkpoint_digest"] == checkpoint.digest == manifest_digest(checkpoint.path)
    assert part["heads"] == {"score": 2.0}
    assert checkpoints_of_run(policy) == []

    client.force_login(carol)
    page = client.get(reverse("round", args=[round_.project.slug, 1])).content.decode()
    assert "<dt>Base of the reward models</dt><dd>larger</dd>" in page
    page = client.get(policy.get_absolute_url()).content.decode()
    assert f"<dt>Base model</dt><dd>{policy.base_model}</dd>" in page
    body = client.get(f"/api/v1/runs/{reward.pk}/").json()
    assert body["base_model"] == "larger"
    body = client.get(f"/api/v1/projects/{round_.project.slug}/rounds/1/").json()
    assert (body["base_model"], body["reward_base"]) == (policy.base_model, "larger")


@pytest.mark.usefixtures("quick_trainer")
def test_with_one_base_the_reward_model_stays_an_adapter_in_the_trainer(labelled: Round, carol: User):
    round_ = with_recipe(labelled, policy=BY_ROUND)
    start_round(round_=round_, started_by=carol)
    do_steps_before(round_, StepKind.REGISTER_CHECKPOINTS)
    policy = Run.objects.get(round_step__kind=StepKind.TRAIN_POLICY)
    [part] = policy.spec["settings"]["rewards"]
    assert part["kind"] == "model"
    assert part["checkpoint"].endswith("-reward/checkpoint")
    assert len(checkpoints_of_run(policy)) == 1


def test_an_earlier_reward_model_of_another_base_is_served_and_one_of_the_same_where_the_recipe_says_so(
    project: Project, larger: BaseModel
):
    on(make_trained("old-reward", project, kind=CheckpointKind.REWARD), larger)
    same = make_trained("own-reward", project, kind=CheckpointKind.REWARD)
    Checkpoint.objects.filter(pk=same.pk).update(base_model=register_starter().name)
    parts = (
        RewardPart(name="old", kind="model", checkpoint="old-reward"),
        RewardPart(name="own", kind="served", checkpoint="own-reward"),
    )
    policy = PolicyGradientSettings(rewards=parts)
    round_ = with_recipe(draft_first_round(project=project, created_by=None), policy=policy)
    assert not [problem for problem in dry_run(round_=round_).problems if "reward" in problem]
    placed = with_reward_models(round_, policy)
    assert isinstance(placed, PolicyGradientSettings)
    assert [(part.kind, part.checkpoint) for part in placed.rewards] == [
        ("served", "old-reward"),
        ("served", "own-reward"),
    ]


def test_a_reward_of_groups_that_the_model_server_would_score_by_is_refused_when_the_recipe_is_saved(
    project: Project, larger: BaseModel, carol: User
):
    on(make_trained("old-reward", project, kind=CheckpointKind.REWARD), larger)
    groups = Population(reward="worst_group")
    round_ = draft_first_round(project=project, created_by=None)

    def recipe(checkpoint: str, **more: Any) -> Recipe:
        part = RewardPart(name="fair", kind="model", checkpoint=checkpoint, population=groups)
        policy = PolicyGradientSettings(rewards=(part,), rollout=RolloutSettings(unfinished="score"))
        return Recipe(policy=policy, reward=RewardSettings(group_heads=True), **more)

    with pytest.raises(Refusal, match="policy, rewards: the reward fair is one of groups"):
        change_recipe(round_=round_, recipe=recipe("old-reward"), actor=carol)
    with pytest.raises(ContractError, match="policy, rewards: the reward 'fair' is one of groups"):
        recipe(ROUND_REWARD_MODEL, reward_base="larger")
    assert change_recipe(round_=round_, recipe=recipe(ROUND_REWARD_MODEL), actor=carol)


def test_a_base_that_is_not_here_cannot_be_the_reward_models(project: Project):
    round_ = with_recipe(draft_first_round(project=project, created_by=None), reward_base="nowhere")
    assert [problem for problem in dry_run(round_=round_).problems if "reward_base names nowhere" in problem]
    register_base_model(
        name="far", origin=BaseOrigin.SERVER, server_url="https://example.org", server_model="far"
    )
    round_ = with_recipe(round_, reward_base="far")
    assert [problem for problem in dry_run(round_=round_).problems if "reward_base names far" in problem]
    with pytest.raises(ContractError, match=r"reward_base: '\.\./x' is no base model's name"):
        Recipe.from_json({"reward_base": "../x"})


def test_the_estimate_is_of_the_base_that_each_run_trains(project: Project, larger: BaseModel):
    config = larger.path / "config.json"
    config.write_text(config.read_text().replace("2048", "512"))
    round_ = with_recipe(draft_first_round(project=project, created_by=None), reward_base="larger")
    estimate = dry_run(round_=round_)
    assert [run.base for run in estimate.runs] == ["larger", round_.policy.base_model]
    # The policy's base has no files here: of its memory nothing is known.
    assert [run.memory is None for run in estimate.runs] == [False, True]
    assert [problem.split()[0] for problem in estimate.problems if "larger reads 512" in problem] == [
        "reward"
    ]


def test_a_served_part_without_a_reward_model_of_the_project_is_refused(project: Project):
    policy = PolicyGradientSettings(rewards=(RewardPart(name="it", kind="served", checkpoint="theirs"),))
    round_ = with_recipe(draft_first_round(project=project, created_by=None), policy=policy)
    assert [problem for problem in dry_run(round_=round_).problems if "names theirs" in problem]
    with refused("unknown_reward_model", name="theirs"):
        with_reward_models(round_, policy)
