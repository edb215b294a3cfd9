"""The memory gate asks the machines that train, by what their workers reported, never the web's."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import Settings

from annotation.errors import Refusal
from annotation.models import AuditEntry, Project, User
from tests import factories
from tests.training.jobs.machines_report import report
from tests.training.rounds.test_dry_run import SMALL
from training.choices import RoundState
from training.models import Round, Worker
from training.services.checkpoints import register_starter
from training.services.rounds.controls import start_round
from training.services.rounds.dry_run import dry_run, refuse_unless_fits, training_machine
from training.services.workers import machine_use, model_server_bytes

pytestmark = pytest.mark.django_db

GIB = 2**30
SignIn = Callable[[User], Client]


@pytest.fixture
def round_(project: Project, settings: Settings, alice: User) -> Round:
    """A round in labelling on a small base, with a judgment to learn from."""
    folder = Path(settings.RONDO_MODELS) / register_starter().base_model
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(SMALL))
    for number in range(4):
        prompt = factories.make_prompt(project, f"What is {number}?", split="train")
        factories.make_judgment(factories.make_comparison(project, ["a", "b"], prompt=prompt), alice)
    return Round.objects.create(project=project, policy=register_starter(), state=RoundState.LABELLING)


def gpu(total: int, used: int = 0) -> dict[str, object]:
    return {"index": 0, "name": "H100", "memory_bytes": used, "memory_total_bytes": total}


def test_the_web_hosts_memory_is_not_asked(round_: Round, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=1, available=1))
    estimate = dry_run(round_=round_)
    assert not estimate.problems
    assert any("No worker that trains has reported" in warning for warning in estimate.warnings)
    report(memory_total_bytes=64 * GIB, memory_bytes=GIB)
    refuse_unless_fits(round_)
    assert dry_run(round_=round_).machine.total_bytes == 64 * GIB


def test_a_weight_takes_2_bytes_where_the_worker_trains_in_bfloat16(round_: Round):
    report(memory_total_bytes=64 * GIB)
    (on_cpu, _) = dry_run(round_=round_).runs
    Worker.objects.update(machine={"device": "cuda", "dtype": "bfloat16", "gpus": [gpu(80 * GIB)]})
    (on_gpu, _) = dry_run(round_=round_).runs
    assert on_cpu.memory.base == 2 * on_gpu.memory.base > 0


def test_what_the_model_server_holds_is_not_there_for_training(round_: Round):
    report(memory_total_bytes=64 * GIB)
    needed = max(run.memory.total for run in dry_run(round_=round_).runs)
    Worker.objects.update(machine={"memory_total_bytes": needed + GIB, "model_server_bytes": GIB})
    refuse_unless_fits(round_)
    Worker.objects.update(machine={"memory_total_bytes": needed + GIB, "model_server_bytes": GIB + 1})
    with pytest.raises(Refusal, match=r"trainer-host has .* for training: lower micro_batch_tokens"):
        refuse_unless_fits(round_)


def test_only_live_workers_that_take_training_are_asked_and_the_largest_counts(settings: Settings):
    settings.RONDO_TRAINING_QUEUE = "gpu"
    report("web:1:a", queues=("celery",), memory_total_bytes=512 * GIB)
    assert not training_machine().is_known
    report("small:1:a", queues=("gpu",), gpus=[gpu(24 * GIB)])
    dead = report("dead:1:a", queues=("gpu",), gpus=[gpu(141 * GIB)])
    report("large:1:a", queues=("gpu", "celery"), gpus=[gpu(16 * GIB), gpu(80 * GIB, used=5 * GIB)])
    Worker.objects.filter(pk=dead.pk).update(heartbeat_at=timezone.now() - timedelta(minutes=5))
    machine = training_machine()
    assert (machine.name, machine.device, machine.total_bytes) == ("large", "cuda", 80 * GIB)
    assert machine.available_bytes == 75 * GIB


def test_a_worker_reports_device_precision_and_what_the_model_server_holds(monkeypatch: pytest.MonkeyPatch):
    usage = machine_use()
    assert (usage["device"], usage["dtype"]) in (
        ("cpu", "float32"),
        ("cuda", "bfloat16"),
        ("mps", "bfloat16"),
    )
    processes = [
        SimpleNamespace(pid=1, info={"cmdline": ["python", "-m", "training.serving"], "memory_info": memory})
        for memory in (SimpleNamespace(rss=3 * GIB), None)
    ]
    processes.append(
        SimpleNamespace(pid=2, info={"cmdline": None, "memory_info": SimpleNamespace(rss=9 * GIB)})
    )
    monkeypatch.setattr(psutil, "process_iter", lambda attrs: processes)
    assert model_server_bytes(on_gpu=False) == 3 * GIB
    listed = "1, 2048\n2, 4096\n7, [N/A]\nnonsense\n"
    monkeypatch.setattr("training.services.jobs.shutil.which", lambda name: name)
    monkeypatch.setattr(
        "training.services.jobs.subprocess.run",
        lambda *arguments, **more: SimpleNamespace(stdout=listed),
    )
    assert model_server_bytes(on_gpu=True) == 2 * GIB


def test_an_administrator_may_start_all_the_same_and_that_is_recorded(
    round_: Round, carol: User, admin: User, client_of: SignIn
):
    report(memory_total_bytes=1)
    with pytest.raises(Refusal, match="lower micro_batch_tokens"):
        start_round(round_=round_, started_by=carol)
    with pytest.raises(Refusal, match="Only an administrator"):
        start_round(round_=round_, started_by=carol, despite_memory=True)
    url = reverse("round-start", args=[round_.project.slug, round_.number])
    assert (
        "An administrator can start it all the same"
        in client_of(carol).get(url, follow=True).content.decode()
    )
    page = client_of(admin).get(url, follow=True).content.decode()
    assert "lower micro_batch_tokens" in page
    assert 'name="despite_memory"' in page
    client_of(admin).post(url, {"despite_memory": "on"})
    round_.refresh_from_db()
    assert round_.state == RoundState.TRAINING_REWARD_MODELS
    entry = AuditEntry.objects.get(action="round.start")
    assert len(entry.details["despite_memory"]) == 2
    assert "reward model needs about" in entry.details["despite_memory"][0]
