"""A dead run is distinguished from a live one: in its folder, on its page, by the API."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from annotation.models import Project, User
from tests import factories
from tests.training.runs.test_run_page import make_run
from training.contract.run import RunStatus, lock_content, report_of, write_status
from training.models import Run

SignIn = Callable[[User], Client]

HOLDS = """
import sys
from pathlib import Path
from training.rlhf.runtime.run_folder import locked
with locked(Path(sys.argv[1]), wait_seconds=0, give_up=lambda: False):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run's folder whose last status says that it runs."""
    write_status(tmp_path, RunStatus(state="running", step=3, total_steps=12, updated_at=time.time()))
    return tmp_path


def test_a_run_whose_trainer_was_killed_is_interrupted_and_one_that_trains_is_not(folder: Path) -> None:
    trainer = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert trainer.stdin
    assert trainer.stdout
    with trainer.stdin, trainer.stdout:
        assert trainer.stdout.readline() == b"locked\n"
        assert report_of(folder).state == "running"
        assert f"process {trainer.pid} on {socket.gethostname()}" in report_of(folder).sentence
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
    report = report_of(folder)
    assert report.state == "interrupted"
    assert report.sentence.startswith("interrupted: step 3 of 12; no trainer works in this folder. It can be")


def test_a_trainer_on_another_machine_lives_as_long_as_it_touches_its_lock(folder: Path) -> None:
    (folder / "lock").write_text("17\nanother-machine\n")
    assert report_of(folder).state == "running"
    a_while_ago = time.time() - 61
    os.utime(folder / "lock", (a_while_ago, a_while_ago))
    assert report_of(folder).state == "interrupted"


def test_a_lock_of_an_older_version_is_read_too(folder: Path) -> None:
    (folder / "lock").write_text("17\n")
    assert report_of(folder).state == "interrupted"


def test_what_ended_in_good_order_is_not_interrupted(folder: Path) -> None:
    (folder / "lock").write_text(lock_content())
    for state in ("finished", "stopped", "failed"):
        write_status(folder, RunStatus(state=state, message="so"))
        assert report_of(folder).state == state
    (folder / "status.json").unlink()
    assert report_of(folder).state == "interrupted", "killed before its first status"
    (folder / "lock").unlink()
    assert report_of(folder).state == "waiting"


@pytest.fixture
def run(project: Project, alice: User) -> Run:
    """A run that a worker reported on a moment ago."""
    prompt = factories.make_prompt(project, "How long?", split="train")
    factories.make_judgment(factories.make_comparison(project, prompt=prompt), alice)
    made = make_run("reward-1", project)
    Run.objects.filter(pk=made.pk).update(state="running", worker="w", heartbeat_at=timezone.now())
    return made


def test_the_page_shows_a_run_without_a_worker_as_interrupted(run: Run, carol: User, client_of: SignIn):
    client, words = client_of(carol), "interrupted, can be resumed"
    url = reverse("run-live", args=[run.pk])
    alive = client.get(url)
    assert words not in alive.content.decode()
    Run.objects.update(heartbeat_at=timezone.now() - timedelta(hours=1))
    dead = client.get(url, headers={"If-None-Match": alive["ETag"]})
    assert words in dead.content.decode()
    assert words in client.get(run.get_absolute_url()).content.decode()
    Run.objects.update(state="finished")
    assert words not in client.get(url).content.decode()


def test_the_api_tells_an_interrupted_run_from_one_that_runs(run: Run, carol: User, client_of: SignIn):
    client, url = client_of(carol), f"/api/v1/runs/{run.pk}/"
    body = client.get(url).json()
    assert (body["state"], body["interrupted"]) == ("running", False)
    Run.objects.update(heartbeat_at=timezone.now() - timedelta(hours=1))
    body = client.get(url).json()
    assert (body["state"], body["interrupted"]) == ("running", True)
