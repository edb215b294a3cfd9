"""Rounds of 1.0 whose launcher or trainer is gone; what has ended is shown as it was."""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.test import Client
from pytest_django import Settings

from annotation.models import User
from tests.refusals import refused
from tests.training.launchers.cluster_scene import do_step
from training.choices import StepKind
from training.contract import ContractError
from training.contract.run import RunSpec, read_spec
from training.models import Launch, Round, RoundStep, Run, Snapshot
from training.recipe.recipe import Recipe
from training.services.rounds.controls import start_round
from training.services.rounds.recipes import change_recipe

pytestmark = pytest.mark.django_db


@pytest.fixture
def runs(labelled: Round) -> dict[str, Run]:
    """A run that trains on Slurm and one that did on Kubernetes, of a round whose recipe names Slurm."""
    recipe = {**labelled.recipe, "compute": {"launcher": "slurm", "nodes": 2}}
    Round.objects.filter(pk=labelled.pk).update(recipe=recipe)
    snapshot = Snapshot.objects.create(
        project=labelled.project,
        digest="0" * 64,
        folder="snapshots/x",
        rounds=[1],
        counts={"judgments": 1, "decided_pairs": {}},
    )
    common: dict[str, Any] = {"method": "reward", "snapshot": snapshot, "spec": {}}
    made = {}
    for launcher, state, job in (("slurm", "running", "running"), ("kubernetes", "finished", "ended")):
        made[state] = Run.objects.create(
            name=state, folder=f"runs/{state}", state=state, resources={"launcher": launcher}, **common
        )
        Launch.objects.create(
            run=made[state], launcher=launcher, name=state, handle="17", state=job, resources={}
        )
    import_module("training.migrations.0027_launchers_by_commands").use_commands(apps, None)
    return made


def test_what_still_trains_is_submitted_by_commands_from_now_on(
    runs: dict[str, Run], labelled: Round, carol: User, settings: Settings
):
    running = Run.objects.get(pk=runs["running"].pk)
    launch = running.launches.get()
    assert (running.resources["launcher"], launch.launcher, launch.handle) == ("command", "command", "17")
    round_ = Round.objects.get(pk=labelled.pk)
    assert (round_.parsed_recipe.compute.launcher, round_.parsed_recipe.compute.nodes) == ("command", 2)
    settings.RONDO_LAUNCHER = ["local"]
    with refused("recipe_invalid"):
        start_round(round_=round_, started_by=carol)


def test_a_run_that_has_finished_is_shown_as_it_was(
    runs: dict[str, Run], carol: User, client_of: Callable[[User], Client]
):
    page = client_of(carol).get(runs["finished"].get_absolute_url()).content.decode()
    assert "17 of kubernetes, ended" in page


@pytest.fixture
def round_of_trl(labelled: Round) -> Round:
    """A round of 1.0 whose policy TRL was to train."""
    recipe = {**labelled.recipe, "trainer": "trl", "trl": {"options": {"use_vllm": True}}}
    Round.objects.filter(pk=labelled.pk).update(recipe=recipe)
    return Round.objects.select_related("project", "policy").get(pk=labelled.pk)


def test_a_round_that_trl_was_to_train_is_refused_until_its_recipe_is_saved_again(
    round_of_trl: Round, carol: User, client_of: Callable[[User], Client]
):
    for page in ("", "recipe/"):
        address = f"/projects/tea/rounds/{round_of_trl.number}/{page}"
        assert client_of(carol).get(address).status_code == 200
    with refused("recipe_invalid", field="recipe"):
        start_round(round_=round_of_trl, started_by=carol)
    recipe = round_of_trl.parsed_recipe
    assert change_recipe(round_=round_of_trl, recipe=recipe, actor=carol) == ["trainer"]
    assert "trainer" not in Round.objects.get(pk=round_of_trl.pk).recipe
    start_round(round_=Round.objects.get(pk=round_of_trl.pk), started_by=carol)


@pytest.mark.usefixtures("quick_trainer", "rings")
def test_a_round_that_was_training_says_that_trl_is_gone(labelled: Round, carol: User):
    start_round(round_=labelled, started_by=carol)
    Round.objects.filter(pk=labelled.pk).update(recipe={**labelled.recipe, "trainer": "trl"})
    steps = {step.kind: step for step in labelled.steps.all()}
    assert do_step(steps[StepKind.FREEZE_SNAPSHOT])
    assert do_step(steps[StepKind.TRAIN_REWARD_MODEL])
    assert not do_step(steps[StepKind.TRAIN_POLICY])
    assert "TRL" in RoundStep.objects.get(pk=steps[StepKind.TRAIN_POLICY].pk).error


@pytest.mark.usefixtures("quick_trainer", "rings")
def test_a_run_that_trl_began_says_that_trl_is_gone(labelled: Round, carol: User):
    start_round(round_=labelled, started_by=carol)
    steps = {step.kind: step for step in labelled.steps.all()}
    assert do_step(steps[StepKind.FREEZE_SNAPSHOT])
    step = steps[StepKind.TRAIN_REWARD_MODEL]
    assert do_step(step)
    run = RoundStep.objects.get(pk=step.pk).run
    run.spec["trl"] = {"options": {}}
    run.state = "stopped"
    run.save()
    RoundStep.objects.filter(pk=step.pk).update(state="waiting")
    assert not do_step(step)
    assert "TRL" in RoundStep.objects.get(pk=step.pk).error


def test_recipes_of_1_0_are_read_unless_they_name_trl():
    of_1_0 = {**Recipe().to_json(), "trainer": "rondo", "trl": {"options": {}}}
    assert Recipe.from_json(of_1_0) == Recipe()
    with pytest.raises(ContractError, match="trainer: "):
        Recipe.from_json({**of_1_0, "trainer": "trl"})


def test_a_spec_that_trl_trained_is_read_and_trained_by_nobody_else(tmp_path: Path):
    values = {
        "method": "sft",
        "base_model": "tiny",
        "snapshot": "s",
        "snapshot_digest": "0" * 64,
        "settings": {},
        "format": 1,
    }
    spec = RunSpec.from_json(values)
    assert RunSpec.from_json({**values, "trl": {"options": {}}}) == spec
    (tmp_path / "spec.json").write_text(json.dumps({**spec.to_json(), "trl": {"options": {}}}))
    with pytest.raises(ContractError, match="TRL"):
        read_spec(tmp_path)
    (tmp_path / "spec.json").write_text(json.dumps({**spec.to_json(), "trl": None}))
    assert read_spec(tmp_path) == spec
