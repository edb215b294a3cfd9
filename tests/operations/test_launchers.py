"""The status page about launchers: clusters that answer or not, jobs, GPUs and their leases."""

from typing import Any

import pytest
from django.utils import timezone
from pytest_django import Settings

from annotation.models import Project
from tests.operations.conftest import MakeWorker
from training.launchers import LauncherUnreachableError
from training.models import GpuLease, Launch, Run, Snapshot
from webapp.operations import state
from webapp.operations.health import Level

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(project: Project) -> Run:
    snapshot = Snapshot.objects.create(
        project=project, digest="0" * 64, folder="snapshots/x", rounds=[1], counts={}
    )
    return Run.objects.create(name="tea-reward", method="reward", snapshot=snapshot, spec={}, folder="runs/x")


def texts_and_levels(findings: list[Any]) -> list[tuple[str, Level]]:
    return [(str(finding.says), finding.level) for finding in findings]


def test_local_alone_asks_nobody():
    assert texts_and_levels(state.launchers()) == [
        ("Runs train where recipes say: local by default.", Level.FINE)
    ]


def test_a_cluster_that_answers_tells_what_it_has(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    settings.RONDO_LAUNCHER = ["ray", "local"]

    class Answers:
        def look(self) -> list[str]:
            return ["version 2.60.0: 3 nodes"]

    monkeypatch.setattr(state, "cluster", lambda name: Answers())
    assert texts_and_levels(state.launchers()) == [
        ("Runs train where recipes say: ray by default, local.", Level.FINE),
        ("ray: version 2.60.0: 3 nodes", Level.FINE),
    ]


def test_a_cluster_that_does_not_answer_is_wrong_with_the_remedy(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    settings.RONDO_LAUNCHER = ["ray"]

    class Away:
        def look(self) -> list[str]:
            raise LauncherUnreachableError("Ray does not answer at http://ray:8265")

    monkeypatch.setattr(state, "cluster", lambda name: Away())
    _, away = state.launchers()
    assert away.level == Level.WRONG
    assert str(away.says) == "Ray does not answer at http://ray:8265."
    assert "Jobs there run on" in str(away.remedy)


def test_jobs_that_wait_run_or_were_lost_are_listed(run: Run):
    common = {"run": run, "launcher": "command", "resources": {}}
    Launch.objects.create(name="a", state="lost", ended_at=timezone.now(), **common)
    Launch.objects.create(name="b", state="ended", ended_at=timezone.now(), **common)
    waits = Launch.objects.create(name="c", handle="17", state="waiting", reason="Priority", **common)
    first, second = texts_and_levels(state.cluster_jobs())
    assert first[0].startswith("tea-reward waits as job 17 of command for")
    assert first[0].endswith(": Priority.")
    assert second == ("1 job of a cluster was lost or refused in the last 24 hours.", Level.ATTENTION)
    Launch.objects.filter(pk=waits.pk).update(state="running", nodes="n[1-2]", started_at=timezone.now())
    assert "runs as job 17 of command on n[1-2] for" in texts_and_levels(state.cluster_jobs())[0][0]


def test_gpus_are_listed_with_what_trains_on_them(run: Run, make_worker: MakeWorker):
    make_worker("box:1:abc", machine={"gpus": [{"index": 0}, {"index": 1}]})
    assert texts_and_levels(state.gpus()) == [("box has 2 GPUs: none is leased.", Level.FINE)]
    GpuLease.objects.create(host="box", gpu=1, run=run, worker="box:1:abc", heartbeat_at=timezone.now())
    assert texts_and_levels(state.gpus()) == [("box has 2 GPUs: 1: tea-reward.", Level.FINE)]


def test_a_lease_of_a_host_without_a_worker_wants_a_look(run: Run):
    GpuLease.objects.create(host="gone", gpu=0, run=run, worker="gone:1:x", heartbeat_at=timezone.now())
    (only,) = state.gpus()
    assert only.level == Level.ATTENTION
    assert "GPUs of gone are leased to tea-reward" in str(only.says)
