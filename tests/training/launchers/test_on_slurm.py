"""Rounds on a real Slurm of three nodes: `make test-slurm`."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django import Settings

from annotation.models import Project, User
from annotation.services.jobs.claims import worker_is_stopping
from tests.loop.recipe import TINY
from tests.tiny import tiny_model_folder
from tests.training.launchers.cluster_scene import (
    STEPS,
    AtStep,
    do_step,
    pause_at_step,
    started,
    train,
    weights_of,
)
from tests.training.launchers.slurm_cluster import SlurmCluster
from training.choices import StepKind
from training.contract import read_metrics
from training.models import Launch, Round, RoundStep, Run
from training.services.rounds import resume_round

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


def test_a_job_that_waits_is_cancelled_in_slurm_and_the_step_says_so(
    slurm: SlurmCluster, project: Project, alice: User, carol: User
):
    round_ = started(project, alice, carol, COMPUTE, grpo=False)
    assert do_step(round_.steps.get(kind=StepKind.FREEZE_SNAPSHOT))
    slurm.command("scontrol", "update", "nodename=n1,n2,n3", "state=drain", "reason=test")
    cancel = threading.Timer(6, lambda: slurm.command("scancel", "--state=PENDING", "--user=root"))
    cancel.start()
    step = round_.steps.get(kind=StepKind.TRAIN_REWARD_MODEL)
    try:
        assert not do_step(step)
    finally:
        cancel.join()
        slurm.command("scontrol", "update", "nodename=n1,n2,n3", "state=resume")
    step.refresh_from_db()
    assert step.state == "failed"
    assert "was cancelled at slurm, not from here" in step.error
    assert "start again" in step.error.lower()
    assert list(Launch.objects.values_list("state", flat=True)) == ["cancelled"]


def test_without_its_controller_slurm_is_said_not_to_answer_and_asked_again(
    slurm: SlurmCluster, project: Project, alice: User, carol: User
):
    round_ = started(project, alice, carol, COMPUTE, grpo=False)
    assert do_step(round_.steps.get(kind=StepKind.FREEZE_SNAPSHOT))
    step = round_.steps.get(kind=StepKind.TRAIN_REWARD_MODEL)
    slurm.stop_controller()
    try:
        assert not do_step(step)
        step.refresh_from_db()
        assert step.state == "waiting"
        assert "Slurm does not answer" in step.message
        assert "it is tried again" in step.message
    finally:
        slurm.start_controller()
    # While it runs, too: the job goes on, and its heartbeat tells so.
    away = threading.Timer(4, slurm.start_controller)

    def leave() -> None:
        slurm.stop_controller()
        away.start()

    with AtStep(Run.objects.get().path.parent, 3, leave):
        RoundStep.objects.filter(pk=step.pk).update(run=None)
        assert do_step(step), RoundStep.objects.get(pk=step.pk).error
    away.join()
    run = Run.objects.first()
    assert list(run.launches.values_list("state", flat=True)) == ["ended"]
    assert [row["step"] for row in read_metrics(run.path)] == list(range(1, STEPS + 1))


def test_a_policy_gradient_goes_on_while_its_worker_is_replaced_and_stops_when_paused(
    slurm: SlurmCluster,
    project: Project,
    alice: User,
    carol: User,
    rondo_home: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    round_ = started(project, alice, carol, COMPUTE, grpo=True)
    assert do_step(round_.steps.get(kind=StepKind.FREEZE_SNAPSHOT))
    RoundStep.objects.filter(round=round_, kind=StepKind.TRAIN_REWARD_MODEL).update(state="finished")
    step = round_.steps.get(kind=StepKind.TRAIN_POLICY)
    with AtStep(rondo_home / "runs", 2, worker_is_stopping.set):
        assert not do_step(step)
    worker_is_stopping.clear()
    step.refresh_from_db()
    assert (step.state, step.run.launches.get().state) == ("waiting", "running")
    # The next worker finds the same job, which did not stop for a moment; a pause reaches it.
    with monkeypatch.context() as patch:
        pause_at_step(patch, round_, carol, step=3)
        assert not do_step(step)
    step.refresh_from_db()
    assert step.run.launches.get().state == "ended"
    assert step.run.state == "stopped"
    assert "Going on after" not in (step.run.path / "log.txt").read_text()
    steps_taken = len(read_metrics(step.run.path))
    resume_round(round_=Round.objects.get(pk=round_.pk), actor=carol)
    assert do_step(step), RoundStep.objects.get(pk=step.pk).error
    assert f"Going on after step {steps_taken} of" in (step.run.path / "log.txt").read_text()
