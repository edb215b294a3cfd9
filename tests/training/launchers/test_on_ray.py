"""Rounds on a real Ray cluster of a head and three nodes: `make test-ray`."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django import Settings

from annotation.models import Project, User
from tests.loop.recipe import TINY
from tests.tiny import tiny_model_folder
from tests.training.launchers.cluster_scene import (
    GRPO,
    STEPS,
    AtStep,
    do_step,
    pause_at_step,
    started,
    train,
    weights_of,
)
from tests.training.launchers.ray_cluster import RayCluster
from training.choices import StepKind
from training.contract import read_metrics
from training.models import Launch, Round, RoundStep, Run
from training.services.rounds.controls import resume_round

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.django_db]

COMPUTE = {"launcher": "ray", "nodes": 2, "gpus": 0, "memory_gb": 0.5}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    ray = RayCluster(tmp_path_factory.mktemp("ray") / "cluster.log")
    try:
        yield ray
    finally:
        ray.stop()


@pytest.fixture(autouse=True)
def ray(
    cluster: RayCluster, settings: Settings, monkeypatch: pytest.MonkeyPatch, rondo_home: Path
) -> RayCluster:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    settings.RONDO_LAUNCHER = ["local", "ray"]
    settings.RONDO_RAY_URL = cluster.url
    settings.RONDO_CLUSTER_HOME = str(rondo_home)
    settings.RONDO_LAUNCHER_POLL_SECONDS = 1
    settings.RONDO_STARTER_MODEL_NAME = TINY
    tiny_model_folder(rondo_home / "models" / TINY)
    return cluster


@pytest.mark.parametrize(
    ("kind", "rank"),
    [(StepKind.TRAIN_REWARD_MODEL, 1), (StepKind.TRAIN_POLICY, 0)],
    ids=["reward model, second node", "GRPO, first node"],
)
def test_a_run_over_two_nodes_of_which_one_dies_ends_with_the_weights_of_an_undisturbed_one(
    ray: RayCluster, project: Project, alice: User, carol: User, rondo_home: Path, kind: StepKind, rank: int
):
    round_ = started(project, alice, carol, COMPUTE, grpo=True)
    assert do_step(round_.steps.get(kind=StepKind.FREEZE_SNAPSHOT))
    if kind == StepKind.TRAIN_POLICY:
        RoundStep.objects.filter(round=round_, kind=StepKind.TRAIN_REWARD_MODEL).update(state="finished")
    whole = train(round_, kind)
    with AtStep(rondo_home / "runs", 5, lambda: ray.kill_node_of(rank)) as death:
        disturbed = train(round_, kind)
    ray.add_node()
    launches = list(Launch.objects.filter(run=disturbed).order_by("pk"))
    assert launches[-1].state == "ended"
    assert len(launches) > 1
    assert {launch.state for launch in launches[:-1]} == {"lost"}
    assert 5 <= death.done_at < STEPS
    log = (disturbed.path / "log.txt").read_text()
    went_on = [int(step) for step in re.findall(rf"Going on after step (\d+) of {STEPS}", log)]
    assert went_on
    assert min(went_on) >= death.done_at - 1
    assert [row["step"] for row in read_metrics(disturbed.path)] == list(range(1, STEPS + 1))
    assert weights_of(disturbed) == weights_of(whole)
    assert weights_of(whole)


def test_rollout_servers_run_on_nodes_of_their_own_and_one_that_dies_does_not_end_the_run(
    ray: RayCluster, project: Project, alice: User, carol: User, rondo_home: Path, settings: Settings
):
    settings.RONDO_RAY_SERVER_COMMAND = (
        "{python} -m training.serving --models {models} --base {name} --checkpoints {adapters} "
        "--host {host} --port {port} --device cpu --dtype float32"
    )
    compute = {**COMPUTE, "nodes": 1, "rollout_servers": 2, "gpus_per_server": 0}
    on_servers = {"rollout": {**GRPO["rollout"], "server": {"kind": "rondo"}}}
    round_ = started(project, alice, carol, compute, policy=GRPO | on_servers)
    assert do_step(round_.steps.get(kind=StepKind.FREEZE_SNAPSHOT))
    RoundStep.objects.filter(round=round_, kind=StepKind.TRAIN_REWARD_MODEL).update(state="finished")
    raylets: set[int] = set()

    def kill_one() -> None:
        servers = ray.processes("training.serving")
        raylets.update(ray.raylet_of(server).pid for server in servers)
        servers[0].kill()

    with AtStep(rondo_home / "runs", 3, kill_one) as death:
        run = train(round_, StepKind.TRAIN_POLICY)
    assert 3 <= death.done_at < STEPS
    assert len(raylets) == 2
    assert [launch.state for launch in run.launches.all()] == ["ended"]
    assert [row["step"] for row in read_metrics(run.path)] == list(range(1, STEPS + 1))
    assert "is left out until the next adapter" in (run.path / "log.txt").read_text()
    assert weights_of(run)
    # The servers end with the job, and no adapter of theirs stays.
    until = time.monotonic() + 60
    while ray.processes("training.serving") and time.monotonic() < until:
        time.sleep(0.5)
    assert ray.processes("training.serving") == []
    assert list((rondo_home / "rollout").iterdir()) == []


def test_a_pause_reaches_the_nodes_and_the_run_goes_on_in_another_job(
    ray: RayCluster,
    project: Project,
    alice: User,
    carol: User,
    monkeypatch: pytest.MonkeyPatch,
):
    round_ = started(project, alice, carol, COMPUTE, grpo=False)
    assert do_step(round_.steps.get(kind=StepKind.FREEZE_SNAPSHOT))
    step = round_.steps.get(kind=StepKind.TRAIN_REWARD_MODEL)
    with monkeypatch.context() as patch:
        pause_at_step(patch, round_, carol, step=3)
        assert not do_step(step)
    run = Run.objects.get()
    assert run.state == "stopped"
    steps_taken = len(read_metrics(run.path))
    resume_round(round_=Round.objects.get(pk=round_.pk), actor=carol)
    assert do_step(step), RoundStep.objects.get(pk=step.pk).error
    assert f"Going on after step {steps_taken} of" in (run.path / "log.txt").read_text()
    assert [launch.state for launch in run.launches.all()] == ["ended", "ended"]
