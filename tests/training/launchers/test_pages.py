"""A recipe's page shows a submission before it is made, a run's page afterwards; a wrong plan is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from annotation.errors import Refusal
from annotation.models import User
from tests.refusals import refused
from training.models import Launch, Round, Run, Snapshot, Worker
from training.recipe.recipe import Recipe
from training.services.rounds.controls import start_round
from training.services.rounds.dry_run import launch_plan
from training.services.runs.clusters import resources_of

pytestmark = pytest.mark.django_db

CLUSTER = {"launcher": "command", "nodes": 2, "processes": 4, "queue": "h100", "memory_gb": 64}


@pytest.fixture
def round_(labelled: Round, settings: Settings) -> Round:
    settings.RONDO_LAUNCHER = ["local", "command"]
    settings.RONDO_CLUSTER_HOME = str(settings.RONDO_HOME)
    return labelled


def with_compute(round_: Round, **compute: Any) -> Round:
    Round.objects.filter(pk=round_.pk).update(recipe={**round_.recipe, "compute": compute})
    return Round.objects.select_related("project", "policy").get(pk=round_.pk)


def test_the_recipe_s_page_shows_the_script_before_anything_is_submitted(
    round_: Round, carol: User, client_of: Callable[[User], Client], rondo_home: Path
):
    with_compute(round_, **CLUSTER)
    page = client_of(carol).get(f"/projects/tea/rounds/{round_.number}/recipe/").content.decode()
    assert "What is submitted" in page
    assert "--nodes 2 --processes 4 --rank-from RONDO_NODE_RANK" in page
    assert f"{rondo_home}/runs/tea-round-1-reward" in page
    assert not Launch.objects.exists()


def test_the_api_s_dry_run_has_the_script_too(
    round_: Round, carol: User, client_of: Callable[[User], Client]
):
    with_compute(round_, **CLUSTER)
    address = f"/api/v1/projects/tea/rounds/{round_.number}/dry-run/"
    plan = client_of(carol).get(address).json()["launch"]
    script = plan.pop("script")
    assert plan == {"launcher": "command", "nodes": 2, "processes": 4, "gpus": 4}
    assert "--nodes 2" in script


def test_a_local_plan_has_no_script(round_: Round):
    plan = launch_plan(with_compute(round_, processes=2))
    assert (plan.launcher, plan.script, list(plan.problems)) == ("local", "", [])


def test_a_launcher_that_the_installation_lacks_is_refused_at_the_start(round_: Round, carol: User):
    changed_round = with_compute(round_, launcher="ray")
    with pytest.raises(Refusal, match=r"asks for the launcher ray, and this installation has local, command"):
        start_round(round_=changed_round, started_by=carol)


def test_several_machines_need_a_cluster(round_: Round, carol: User):
    changed_round = with_compute(round_, nodes=2)
    with pytest.raises(Refusal, match="asks for 2 machines, and local has one"):
        start_round(round_=changed_round, started_by=carol)


def test_rollout_servers_need_ray_and_a_folder_that_all_nodes_share(round_: Round, settings: Settings):
    rewards = [{"name": "short", "kind": "length", "options": {"most": 2}}]
    on_server = {"method": "policy_gradient", "rollout": {"server": {}}, "rewards": rewards}
    recipe = Recipe.from_json({"policy": on_server, "compute": {"rollout_servers": 2}})
    with refused("rollout_servers_need_ray", name="local"):
        resources_of(recipe.compute)
    settings.RONDO_LAUNCHER = ["ray"]
    assert resources_of(recipe.compute)["servers"] == 2
    settings.RONDO_STORE_URL = "s3://bucket/rondo"
    with refused("rollout_servers_need_shared_folder"):
        resources_of(recipe.compute)


@pytest.mark.parametrize(
    ("processes", "gpus", "refused"), [(2, None, False), (3, None, True), (1, 4, True), (3, 0, False)]
)
def test_more_processes_than_gpus_are_refused_before_the_start(
    round_: Round, carol: User, processes: int, gpus: int | None, refused: bool
):
    now = timezone.now()
    machine = {"gpus": [{"index": 0}, {"index": 1}]}
    Worker.objects.create(
        name="box:1:x", queues=["celery"], concurrency=1, machine=machine, started_at=now, heartbeat_at=now
    )
    plan = launch_plan(with_compute(round_, processes=processes, gpus=gpus))
    assert any("lower processes or gpus" in problem for problem in plan.problems) == refused


@pytest.mark.parametrize(
    ("compute", "words"),
    [
        ({"launcher": "local", "nodes": 2}, "local has one machine"),
        ({"processes": 4, "gpus": 2}, "4 processes cannot share 2 GPUs"),
        ({"queue": "--wrap=rm"}, "is no queue's name"),
        ({"queue": "a b"}, "is no queue's name"),
        ({"launcher": "slurm"}, "launcher"),
        ({"nodes": 0}, "nodes"),
        ({"memory_gb": 0}, "memory_gb"),
        ({"launcher": "command", "rollout_servers": 2}, "they are started on Ray alone"),
        ({"launcher": "ray", "rollout_servers": 2}, "the policy does not sample on a server"),
    ],
)
def test_a_recipe_says_at_the_field_what_is_wrong_with_its_resources(compute: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words):
        Recipe.from_json({"compute": compute})


def test_a_run_s_page_shows_its_jobs_and_their_scripts(
    round_: Round, carol: User, client_of: Callable[[User], Client]
):
    snapshot = Snapshot.objects.create(
        project=round_.project,
        digest="0" * 64,
        folder="snapshots/x",
        rounds=[1],
        counts={"judgments": 1, "decided_pairs": {}},
    )
    run = Run.objects.create(
        name="tea-reward",
        method="reward",
        snapshot=snapshot,
        spec={},
        folder="runs/tea-reward",
        state="running",
        resources={"launcher": "slurm"},
    )
    common = {"run": run, "launcher": "slurm", "resources": {}, "script": "#SBATCH --nodes=2"}
    Launch.objects.create(name="a", handle="16", state="lost", reason="NODE_FAIL", **common)
    Launch.objects.create(name="b", handle="17", state="running", nodes="n[1-2]", **common)
    page = client_of(carol).get(run.get_absolute_url()).content.decode()
    assert "17 of slurm, running, n[1-2]" in page
    assert "NODE_FAIL" in page
    assert page.count("#SBATCH --nodes=2") == 2
