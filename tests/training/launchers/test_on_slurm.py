"""Rounds on a real Slurm of three nodes: `make test-slurm`."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django import Settings

from annotation.models import Project, User
from tests.loop.recipe import TINY
from tests.tiny import tiny_model_folder
from tests.training.launchers.cluster_scene import STEPS, AtStep, do_step, started, train, weights_of
from tests.training.launchers.slurm_cluster import SlurmCluster
from training.choices import StepKind
from training.contract import read_metrics
from training.models import Launch, RoundStep, Run
from training.services.rounds import pause_round

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.django_db]

COMPUTE = {"launcher": "slurm", "nodes": 2, "gpus": 0, "memory_gb": 1.0, "queue": "all"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    slurm = SlurmCluster(tmp_path_factory.mktemp("slurm"))
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()


@pytest.fixture(autouse=True)
def slurm(
    cluster: SlurmCluster, settings: Settings, monkeypatch: pytest.MonkeyPatch, rondo_home: Path
) -> SlurmCluster:
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    settings.RONDO_LAUNCHER = ["local", "slurm"]
    settings.RONDO_CLUSTER_HOME = str(rondo_home)
    settings.RONDO_LAUNCHER_POLL_SECONDS = 1
    settings.RONDO_STARTER_MODEL_NAME = TINY
    tiny_model_folder(rondo_home / "models" / TINY)
    return cluster


@pytest.mark.parametrize("victim", ["n1", "n2"])
def test_a_run_over_two_nodes_of_which_one_dies_ends_with_the_weights_of_an_undisturbed_one(
    slurm: SlurmCluster, project: Project, alice: User, carol: User, rondo_home: Path, victim: str
):
    round_ = started(project, alice, carol, COMPUTE, grpo=False)
    assert do_step(round_.steps.get(kind=StepKind.FREEZE_SNAPSHOT))
    whole = train(round_, StepKind.TRAIN_REWARD_MODEL)
    assert Launch.objects.get(run=whole).nodes == "n[1-2]"

    with AtStep(rondo_home / "runs", 5, lambda: slurm.kill_node(victim)) as death:
        disturbed = train(round_, StepKind.TRAIN_REWARD_MODEL)
    slurm.start_node(victim)
    launches = list(Launch.objects.filter(run=disturbed).order_by("pk"))
    assert [launch.state for launch in launches][-1] == "ended"
    assert {launch.state for launch in launches[:-1]} == {"lost"}
    assert 5 <= death.done_at < STEPS
    log = (disturbed.path / "log.txt").read_text()
    went_on = [int(step) for step in re.findall(rf"Going on after step (\d+) of {STEPS}", log)]
    assert went_on
    assert min(went_on) >= death.done_at - 1
    assert [row["step"] for row in read_metrics(disturbed.path)] == list(range(1, STEPS + 1))
    assert weights_of(disturbed) == weights_of(whole)
    assert weights_of(whole)
