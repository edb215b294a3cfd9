"""Workers say that they live: a row that is kept fresh, and gone when they end."""

import stat
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from django.utils import timezone

from tests.operations.conftest import MakeWorker
from training.models import Worker
from training.services.jobs import gpus
from training.services.workers import WorkerHeartbeat, clock_ahead, forget_worker, machine_use, note_worker


def note(name: str = "box:1:abc", **fields: Any) -> None:
    note_worker(
        **{"name": name, "queues": ["celery"], "concurrency": 4, "version": "", "machine": {}, **fields}
    )


@pytest.mark.django_db
def test_a_heartbeat_makes_the_row_and_then_keeps_it_fresh():
    note()
    before = Worker.objects.get()
    note(machine={"cpu_cores": 1.5})
    after = Worker.objects.get()
    assert after.started_at == before.started_at
    assert after.heartbeat_at >= before.heartbeat_at
    assert after.machine == {"cpu_cores": 1.5}
    forget_worker(name="box:1:abc")
    assert not Worker.objects.exists()


def test_rows_that_were_silent_for_a_day_go_when_another_begins(make_worker: MakeWorker):
    make_worker("long-gone", silent=timedelta(days=2).total_seconds())
    make_worker("lately", silent=3600)
    note("new")
    assert set(Worker.objects.values_list("name", flat=True)) == {"lately", "new"}


@pytest.mark.django_db(transaction=True)
def test_a_heartbeat_is_written_until_it_is_stopped_and_its_row_goes(
    settings, monkeypatch: pytest.MonkeyPatch
):
    settings.RONDO_HEARTBEAT_SECONDS = 0.01
    beats = []
    written = note_worker
    often_enough = Event()

    def counted(**fields: Any) -> None:
        written(**fields)
        beats.append(Worker.objects.get().heartbeat_at)
        if len(beats) == 3:
            often_enough.set()

    monkeypatch.setattr("training.services.workers.note_worker", counted)
    heartbeat = WorkerHeartbeat(queues=["gpu", "celery"], concurrency=2)
    heartbeat.start()
    assert often_enough.wait(60)
    assert Worker.objects.get().queues == ["celery", "gpu"]
    heartbeat.stop()
    assert not Worker.objects.exists()
    assert beats == sorted(beats)


@pytest.mark.django_db
def test_the_clock_of_the_database_is_ours_on_this_machine():
    assert abs(clock_ahead()) < 1


@pytest.mark.postgres
@pytest.mark.django_db
def test_a_clock_that_is_behind_is_measured(monkeypatch: pytest.MonkeyPatch):
    now = timezone.now
    monkeypatch.setattr(timezone, "now", lambda: now() - timedelta(seconds=90))
    assert -95 < clock_ahead() < -85


def test_the_machine_is_told_in_cores_and_bytes():
    machine = machine_use()
    assert machine["memory_total_bytes"] > machine["memory_bytes"] > 0
    assert machine["cpu_cores"] >= 0


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\ncat <<'END'\n0, NVIDIA H100 80GB HBM3, 37, 1024, 81559\n1, GRID, [N/A], 0, 512\nEND\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return program


def test_gpus_are_told_as_nvidia_smi_tells_them(nvidia_smi: Path):
    assert gpus() == [
        {
            "index": 0,
            "name": "NVIDIA H100 80GB HBM3",
            "utilisation": 0.37,
            "memory_bytes": 1024 * 1024**2,
            "memory_total_bytes": 81559 * 1024**2,
        },
        {
            "index": 1,
            "name": "GRID",
            "utilisation": None,
            "memory_bytes": 0,
            "memory_total_bytes": 512 * 1024**2,
        },
    ]


@pytest.mark.parametrize("script", ["#!/bin/sh\nexit 9\n", "#!/bin/sh\necho no,such,line\n"])
def test_a_driver_that_fails_costs_the_figures_alone(nvidia_smi: Path, script: str):
    nvidia_smi.write_text(script)
    assert gpus() == []


def test_without_a_gpu_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus() == []
