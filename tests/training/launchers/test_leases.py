"""GPUs are leased: two runs never share one unless a setting allows, and too many processes are refused."""

import socket
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone
from pytest_django import Settings

from annotation.errors import Unavailable
from annotation.models import User
from tests.refusals import refused
from tests.training.launchers.cluster_scene import do_step
from training.choices import StepKind, StepState
from training.models import GpuLease, Round, RoundStep, Run, Snapshot, Worker
from training.services.rounds.controls import start_round
from training.services.runs import launcher

pytestmark = pytest.mark.django_db

HERE = socket.gethostname()


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The GPUs of this host: two."""
    host_gpus = [{"index": 0}, {"index": 1}]
    monkeypatch.setattr(launcher, "gpus", lambda: host_gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return host_gpus


@pytest.fixture
def runs(labelled: Round) -> list[Run]:
    snapshot = Snapshot.objects.create(
        project=labelled.project, digest="0" * 64, folder="snapshots/x", rounds=[1], counts={}
    )
    return [
        Run.objects.create(
            name=f"run-{n}",
            method="reward",
            snapshot=snapshot,
            spec={},
            folder=f"runs/{n}",
            worker=f"{HERE}:{n}:x",
        )
        for n in range(3)
    ]


def test_two_runs_lease_different_gpus_and_a_third_waits_for_them(gpus: list[Any], runs: list[Run]):
    with (
        launcher.leased_gpus(runs[0], processes=1, requested=None) as first,
        launcher.leased_gpus(runs[1], processes=1, requested=1) as second,
    ):
        assert (first, second) == ([0], [1])
        with (
            refused("waiting_for_gpus", Unavailable, host=HERE, count=1, free=0, runs="run-0, run-1"),
            launcher.leased_gpus(runs[2], processes=1, requested=None),
        ):
            pass
        assert GpuLease.objects.count() == 2
    assert not GpuLease.objects.exists()


def test_a_run_that_gets_only_some_of_its_gpus_keeps_none(gpus: list[Any], runs: list[Run]):
    with launcher.leased_gpus(runs[0], processes=1, requested=None):
        with (
            refused("waiting_for_gpus", Unavailable),
            launcher.leased_gpus(runs[1], processes=2, requested=None),
        ):
            pass
        assert list(GpuLease.objects.values_list("run__name", flat=True)) == ["run-0"]


def test_the_database_holds_a_gpu_to_one_run(gpus: list[Any], runs: list[Run]):
    now = timezone.now()
    GpuLease.objects.create(host="h", gpu=0, run=runs[0], worker="w", heartbeat_at=now)
    with pytest.raises(IntegrityError), transaction.atomic():
        GpuLease.objects.create(host="h", gpu=0, run=runs[1], worker="v", heartbeat_at=now)


def test_a_setting_lets_runs_share_a_gpu(gpus: list[Any], runs: list[Run], settings: Settings):
    settings.RONDO_JOBS_PER_GPU = 2
    gpus.pop()
    with (
        launcher.leased_gpus(runs[0], processes=1, requested=None) as first,
        launcher.leased_gpus(runs[1], processes=1, requested=None) as second,
    ):
        assert (first, second) == ([0], [0])
        with (
            refused("waiting_for_gpus", Unavailable),
            launcher.leased_gpus(runs[2], processes=1, requested=None),
        ):
            pass


def test_the_gpus_of_a_silent_worker_are_free_again(gpus: list[Any], runs: list[Run], settings: Settings):
    long_ago = timezone.now() - timedelta(seconds=settings.RONDO_STALE_SECONDS + 60)
    for gpu in (0, 1):
        GpuLease.objects.create(host=HERE, gpu=gpu, run=runs[0], worker="dead", heartbeat_at=long_ago)
    with launcher.leased_gpus(runs[1], processes=2, requested=None) as indices:
        assert indices == [0, 1]


def test_renewing_keeps_a_lease_alive(gpus: list[Any], runs: list[Run], settings: Settings):
    with launcher.leased_gpus(runs[0], processes=1, requested=None):
        GpuLease.objects.update(heartbeat_at=timezone.now() - timedelta(seconds=60))
        launcher.renew(runs[0])
        launcher.forget_silent()
        assert GpuLease.objects.count() == 1


def test_more_processes_than_gpus_are_refused_with_the_remedy(gpus: list[Any], runs: list[Run]):
    with (
        refused("too_few_gpus", count=3, most=2),
        launcher.leased_gpus(runs[0], processes=3, requested=None),
    ):
        pass


def test_where_another_worker_has_enough_the_step_waits_for_it(gpus: list[Any], runs: list[Run]):
    now = timezone.now()
    Worker.objects.create(
        name="big:1:x",
        queues=["celery"],
        concurrency=1,
        machine={"gpus": [{}] * 8},
        started_at=now,
        heartbeat_at=now,
    )
    with (
        refused("waiting_for_gpus", Unavailable, count=3, here=2),
        launcher.leased_gpus(runs[0], processes=3, requested=None),
    ):
        pass


def test_without_gpus_a_run_of_several_processes_takes_the_processor(
    gpus: list[Any], runs: list[Run], monkeypatch: pytest.MonkeyPatch
):
    gpus.clear()
    with launcher.leased_gpus(runs[0], processes=4, requested=None) as indices:
        assert indices is None
    assert launcher.devices_of(None) == {}


def test_a_recipe_with_no_gpus_hides_those_of_the_host(gpus: list[Any], runs: list[Run]):
    with launcher.leased_gpus(runs[0], processes=2, requested=0) as indices:
        assert indices == []
    assert launcher.devices_of([])["CUDA_VISIBLE_DEVICES"] == ""
    assert launcher.devices_of([1, 3])["CUDA_VISIBLE_DEVICES"] == "1,3"


def test_a_worker_that_sees_some_gpus_leases_those(
    gpus: list[Any], runs: list[Run], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with launcher.leased_gpus(runs[0], processes=1, requested=None) as indices:
        assert indices == [1]


@pytest.mark.usefixtures("fake_trainer", "rings")
def test_a_trainer_sees_the_gpus_that_are_leased_to_it_and_its_step_waits_where_none_is_free(
    gpus: list[Any], runs: list[Run], labelled: Round, carol: User, monkeypatch: pytest.MonkeyPatch
):
    seen: list[Any] = []
    real = launcher.run_trainer

    def run_trainer(folder: Any, **more: Any) -> launcher.TrainerExit:
        seen.append((more["gpus"], list(GpuLease.objects.values_list("host", "gpu", "run__method"))))
        return real(folder, **more)

    monkeypatch.setattr(launcher, "run_trainer", run_trainer)
    start_round(round_=labelled, started_by=carol)
    assert do_step(labelled.steps.get(kind=StepKind.FREEZE_SNAPSHOT))
    step = labelled.steps.get(kind=StepKind.TRAIN_REWARD_MODEL)
    with launcher.leased_gpus(runs[0], processes=2, requested=None):
        assert not do_step(step)
    waiting = RoundStep.objects.get(pk=step.pk)
    assert (waiting.state, waiting.message) == (
        StepState.WAITING,
        f"waiting for GPUs of {HERE}: 1 needed, 0 free; the others train run-0",
    )
    assert do_step(step)
    assert seen == [([0], [(HERE, 0, "reward")])]
    assert not GpuLease.objects.exists()
