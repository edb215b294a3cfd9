"""A round trains its policy by the method that its recipe names."""

from typing import Any

import pytest
from django.db import IntegrityError

from annotation.models import Project, Prompt, User
from tests.refusals import refused
from tests.training.conftest import judge_all
from tests.training.engine.fake_server import FakeServer
from tests.training.registry.registry_rows import make_snapshot
from training.contract.run import RunSpec, read_spec
from training.models import Checkpoint, Round, Run
from training.recipe.recipe import Recipe
from training.services.rounds.controls import open_first_round, start_round
from training.services.rounds.executor import advance_round
from training.services.rounds.recipes import with_reward_models

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_trainer")]


@pytest.mark.parametrize(
    ("policy", "label"),
    [
        ({}, "policy by DPO"),
        ({"method": "kto", "sources": ["ranks"]}, "policy by KTO"),
        ({"method": "sft", "sources": ["preferred"]}, "policy by supervised fine-tuning"),
        ({"method": "policy_gradient", "context": True}, "policy by reinforcement learning"),
    ],
)
def test_a_rounds_policy_is_trained_as_its_recipe_says(
    prompts: list[Prompt],
    alice: User,
    carol: User,
    fake_server: FakeServer,
    policy: dict[str, Any],
    label: str,
):
    project = prompts[0].project
    round_ = open_first_round(project=project)
    Round.objects.update(recipe={"policy": policy})
    advance_round(round_.pk)
    judge_all(project, alice)
    start_round(round_=round_, started_by=carol)
    advance_round(round_.pk)
    trained = Checkpoint.objects.get(name="tea-round-1-policy")
    assert trained.kind == "policy"
    assert trained.run.method == policy.get("method", "preference")
    assert trained.run.get_method_display() == label
    assert trained.run.spec["method"] == trained.run.method
    if "sources" in policy:
        assert trained.run.spec["settings"]["sources"] == policy["sources"]


def test_a_policy_is_trained_for_the_reward_model_of_its_own_round_and_for_earlier_ones(
    prompts: list[Prompt], alice: User, carol: User, fake_server: FakeServer
):
    project = prompts[0].project
    round_ = go_around(open_first_round(project=project), {}, alice, carol)
    policy = {
        "method": "policy_gradient",
        "context": True,
        "rewards": [
            {"name": "now", "kind": "model", "checkpoint": "round"},
            {"name": "short", "kind": "length", "weight": 0.1, "options": {"most": 50}},
        ],
        "watch": {"held_out": [{"name": "before", "kind": "model", "checkpoint": "tea-round-1-reward"}]},
    }
    go_around(Round.objects.get(number=round_.number + 1), policy, alice, carol)

    run = Run.objects.get(name="tea-round-2-policy")
    settings = run.spec["settings"]
    now, short = settings["rewards"]
    [before] = settings["watch"]["held_out"]
    reward_run = Run.objects.get(name="tea-round-2-reward")
    assert now["checkpoint"] == "../tea-round-2-reward/checkpoint"
    assert (run.path / now["checkpoint"]).resolve() == reward_run.path / "checkpoint"
    assert now["checkpoint_digest"] == Checkpoint.objects.get(run=reward_run).digest
    assert short["checkpoint"] is None
    earlier = Checkpoint.objects.get(name="tea-round-1-reward")
    assert (run.path / before["checkpoint"]).resolve() == earlier.path
    assert before["checkpoint_digest"] == earlier.digest
    # The run's own spec is what the trainer reads, and it accepts it.
    assert read_spec(run.path) == RunSpec.from_json(run.spec)


def test_a_reward_model_that_the_project_does_not_have_is_refused_by_name(
    prompts: list[Prompt], alice: User, carol: User, fake_server: FakeServer
):
    for name in ("tea-round-1-policy", "../../elsewhere"):
        policy = {
            "method": "policy_gradient",
            "context": True,
            "rewards": [{"name": "people", "kind": "model", "checkpoint": name}],
        }
        round_ = open_first_round(project=prompts[0].project)
        with refused("recipe_invalid", field="recipe"):
            go_around(round_, policy, alice, carol)
        # Nor is it taken where it was there when training started, and is gone when its turn comes.
        with refused("unknown_reward_model", part="people", name=name):
            with_reward_models(round_, Recipe.from_json({"policy": policy}).policy)


def test_a_rounds_own_reward_model_is_not_looked_for_before_it_is_trained(
    prompts: list[Prompt], alice: User, carol: User, fake_server: FakeServer
):
    round_ = go_around(open_first_round(project=prompts[0].project), {}, alice, carol)
    policy = Recipe.from_json({"policy": {"method": "policy_gradient", "context": True}}).policy
    assert with_reward_models(round_, policy) != policy
    Run.objects.filter(name="tea-round-1-reward").update(state="stopped")
    with refused("reward_model_not_trained", part="people"):
        with_reward_models(round_, policy)


def go_around(round_: Round, policy: dict[str, Any], annotator: User, manager: User) -> Round:
    """Judge a round and train it; where it is then."""
    Round.objects.filter(pk=round_.pk).update(recipe={"policy": policy})
    advance_round(round_.pk)
    judge_all(round_.project, annotator)
    start_round(round_=round_, started_by=manager)
    advance_round(round_.pk)
    round_.refresh_from_db()
    return round_


def test_the_database_refuses_an_unknown_method(project: Project):
    with pytest.raises(IntegrityError, match="run_method_known"):
        Run.objects.create(name="run", method="ppo", snapshot=make_snapshot(project), spec={}, folder="r")
