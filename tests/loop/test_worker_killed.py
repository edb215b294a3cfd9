"""A real worker is killed in the middle of training; the next one goes on from the last saved step."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from django.conf import settings

from tests.faults.servers import RabbitMQ
from tests.loop.recipe import TINY
from tests.webapp.running import free_port
from training.contract import read_metrics
from webapp.supervision.programs import worker

STEPS = 60
REWARD_RUN, UPDATE_RUN = "tea-round-1-reward", "tea-live-1"
PATIENCE = 180.0


class Workshop:
    """A home of its own with a started round, and the worker that is started and killed there."""

    def __init__(self, home: Path, models: Path, broker: str) -> None:
        self.home = home
        self.log = home / "worker.log"
        (home / "models").symlink_to(models)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RONDO_")}
        inherited.pop("DATABASE_URL", None)
        self.environment = {
            **inherited,
            "DJANGO_SETTINGS_MODULE": "webapp.settings",
            "RONDO_HOME": str(home),
            "RONDO_BROKER_URL": broker,
            "RONDO_STARTER_MODEL_NAME": TINY,
            "RONDO_HEARTBEAT_SECONDS": "0.5",
            "RONDO_STALE_SECONDS": "3",
            "RONDO_SWEEP_SECONDS": "1",
            "RONDO_MODEL_SERVER_PORT": str(free_port()),
            "OMP_NUM_THREADS": "1",
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def prepare(self, learns: str = "round") -> None:
        scene = [sys.executable, "-m", "tests.loop.scene", learns, str(STEPS)]
        subprocess.run(scene, env=self.environment, cwd=settings.BASE_DIR, check=True)

    def start_worker(self) -> subprocess.Popen[bytes]:
        # One worker for both lanes: sweeps wake what the dead one left.
        return self._start(*worker().command, "--queues", "celery,short")

    def start_model_server(self) -> None:
        served = ["--models", str(self.home / "models"), "--checkpoints", str(self.home / "checkpoints")]
        port = self.environment["RONDO_MODEL_SERVER_PORT"]
        server = [sys.executable, "-m", "training.serving.router", "--base", TINY, "--port", port, *served]
        # The scene wrote the key that worker and server share.
        self.environment["RONDO_MODEL_SERVER_KEY"] = (self.home / "model_server_key").read_text().strip()
        self._start(*server)

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as stream:
            process = subprocess.Popen(
                command,
                env=self.environment,
                cwd=settings.BASE_DIR,
                stdout=stream,
                stderr=stream,
            )
        self.processes.append(process)
        return process

    def step(self, kind: str) -> dict[str, object]:
        return self.rows("SELECT * FROM training_roundstep WHERE kind = ?", kind)[0]

    def rows(self, query: str, *values: object) -> list[dict[str, object]]:
        with closing(sqlite3.connect(self.home / "rondo.sqlite3", timeout=20)) as database:
            database.row_factory = sqlite3.Row
            return [dict(row) for row in database.execute(query, values)]

    def run(self, name: str = REWARD_RUN) -> Path:
        return self.home / "runs" / name

    def steps_taken(self, name: str = REWARD_RUN) -> int:
        return len(read_metrics(self.run(name)))

    def assert_each_step_taken_once(self, name: str = REWARD_RUN) -> None:
        """Assert that the run went on once, after what was saved before the kill, and repeated nothing."""
        log = (self.run(name) / "log.txt").read_text()
        went_on = re.findall(rf"Going on after step (\d+) of {STEPS}", log)
        assert len(went_on) == 1
        assert int(went_on[0]) >= 3
        assert [row["step"] for row in read_metrics(self.run(name))] == list(range(1, STEPS + 1))
        assert log.count(f"Step {went_on[0]} of {STEPS}:") == 1

    def wait(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < until, self.log.read_text()[-5000:]
            time.sleep(0.05)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture(params=["filesystem", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def workshop(request: pytest.FixtureRequest, tmp_path: Path, tiny_models: Path) -> Iterator[Workshop]:
    """With Redis the tests of faults do the same."""
    rabbitmq = RabbitMQ(tmp_path) if request.param == "rabbitmq" else None
    shop = Workshop(tmp_path, tiny_models, rabbitmq.url if rabbitmq else "filesystem://")
    try:
        yield shop
    finally:
        shop.close()
        if rabbitmq:
            rabbitmq.close()


@pytest.mark.slow
@pytest.mark.long
def test_two_workers_at_once_do_a_step_once(workshop: Workshop):
    workshop.prepare()
    workers = [workshop.start_worker() for _ in range(2)]
    workshop.wait(lambda: workshop.steps_taken() >= 1)
    workshop.wait(lambda: workshop.step("train_reward_model")["state"] == "finished")
    log = workshop.log.read_text()
    assert log.count("train reward model: begins") == 1, "two workers took the same step"
    assert log.count("train reward model: finished") == 1
    assert "Going on after step" not in (workshop.run() / "log.txt").read_text()
    assert [worker.poll() for worker in workers] == [None, None]


@pytest.mark.long
def test_training_goes_on_from_the_last_saved_step_after_the_worker_was_killed(workshop: Workshop):
    workshop.prepare()
    first = workshop.start_worker()
    workshop.wait(lambda: workshop.steps_taken() >= 3)
    first.send_signal(signal.SIGKILL)
    first.wait()
    held = workshop.step("train_reward_model")
    assert held["state"] == "running"
    assert held["worker"]

    second = workshop.start_worker()
    workshop.wait(lambda: workshop.step("train_reward_model")["state"] == "finished")
    workshop.assert_each_step_taken_once()

    # Told to end, a worker gives the step back and does not wait for the trainer's last step.
    workshop.wait(lambda: workshop.step("train_policy")["state"] == "running")
    second.send_signal(signal.SIGTERM)
    assert second.wait(PATIENCE) == 0
    assert workshop.step("train_policy")["state"] == "waiting"
    assert workshop.step("train_policy")["worker"] == ""


@pytest.mark.long
def test_a_live_update_goes_on_after_the_worker_was_killed_and_answers_then(workshop: Workshop):
    workshop.prepare("live")
    workshop.start_model_server()
    first = workshop.start_worker()
    updates = "SELECT * FROM training_liveupdate"
    workshop.wait(lambda: workshop.steps_taken(UPDATE_RUN) >= 3)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert [update["state"] for update in workshop.rows(updates)] == ["training"]

    workshop.start_worker()
    workshop.wait(lambda: workshop.rows(updates)[0]["answered_at"] is not None)
    (update,) = workshop.rows(updates)
    assert (update["state"], update["judgments"]) == ("served", 6)
    workshop.assert_each_step_taken_once(UPDATE_RUN)
    learned = workshop.rows(
        "SELECT * FROM training_snapshot_judgments WHERE snapshot_id = ?", update["snapshot_id"]
    )
    assert len(learned) == 6
    assert len(workshop.rows("SELECT * FROM training_run")) == 1
    assert len(workshop.rows("SELECT * FROM training_checkpoint WHERE run_id IS NOT NULL")) == 1
