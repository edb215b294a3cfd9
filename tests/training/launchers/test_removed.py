"""Rounds of 1.0 whose launcher is gone: commands take its place, and what has ended is shown as it was."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.test import Client
from pytest_django import Settings

from annotation.models import User
from tests.refusals import refused
from training.models import Launch, Round, Run, Snapshot
from training.services.rounds import start_round

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
