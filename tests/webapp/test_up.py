"""`manage.py up`, run for real: started, looked at, killed in every way, started again."""

import fcntl
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from pytest_django import Settings

from tests.tiny import tiny_model_folder
from tests.webapp.running import PATIENCE, RunningUp, free_port, still_alive
from training.rlhf.starter import STARTER_NAME, is_complete
from webapp.supervision import programs

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> Path:
    # A name with what shells and configuration files stumble over.
    return tmp_path / "var of 100% è"


@pytest.fixture
def start(home: Path) -> Iterator[object]:
    started: list[RunningUp] = []

    def _start(
        *arguments: str, port: int | None = None, migrates: bool = False, **variables: str
    ) -> RunningUp:
        started.append(RunningUp(home, port or free_port(), *arguments, migrates=migrates, **variables))
        return started[-1]

    yield _start
    for up in started:
        if up.process.poll() is None:
            up.stop()


def sign_in(address: str, username: str, password: str) -> int:
    """Sign in as a browser does; the status of the page that one lands on."""
    with httpx.Client(base_url=address, follow_redirects=True, trust_env=False, timeout=PATIENCE) as client:
        page = client.get("/login/")
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
        assert token, page.text
        answer = client.post(
            "/login/",
            data={"username": username, "password": password, "csrfmiddlewaretoken": token[1]},
            headers={"Referer": f"{address}/login/"},
        )
        assert "/login/" not in str(answer.url), "the password was refused"
        return answer.status_code


@pytest.mark.long
def test_a_first_start_shows_passwords_that_work_and_a_second_one_keeps_everything(start, home):
    up = start("--no-model-server", migrates=True)
    up.wait_for(f"Rondo is at {up.address}")
    password = up.wait_for(r"sign in as annotator with (\S+)")[1]
    admin_password = up.wait_for(r"sign in as admin with (\S+)")[1]
    assert sign_in(up.address, "annotator", password) == 200
    assert sign_in(up.address, "admin", admin_password) == 200
    family = up.family()
    # up, supervisord, gunicorn and its worker, celery
    assert len(family) >= 5
    assert up.stop(signal.SIGINT) == 0
    assert still_alive(family) == []

    again = start("--no-model-server")
    again.wait_for("Rondo is at")
    assert "sign in as" not in again.output
    assert "no migrations to apply" in again.output
    assert sign_in(again.address, "annotator", password) == 200
    family = again.family()
    assert again.stop(signal.SIGTERM) == 0
    assert still_alive(family) == []
    # Who can read this file can sign sessions; who can read the other sees every judgment.
    for name in ("secret_key", "rondo.sqlite3"):
        assert (home / name).stat().st_mode & 0o077 == 0


@pytest.mark.long
def test_a_killed_worker_is_started_again_and_a_second_up_on_the_folder_is_refused(start, home):
    up = start("--no-model-server", "--no-first-project")
    up.wait_for("Rondo is at")
    worker = up.find("celery")
    # The watch knows a program by the process that it saw first.
    time.sleep(1.5)
    os.kill(worker.pid, signal.SIGKILL)
    match = up.wait_for(r"worker +process (\d+) died; started again as process (\d+)")
    assert int(match[1]) == worker.pid
    assert int(match[2]) != worker.pid

    second = start("--no-model-server", port=free_port())
    assert second.wait() == 1
    assert f"already runs on {home}: {up.address} (process {up.process.pid})" in second.output


@pytest.mark.long
def test_a_killed_web_master_is_started_again_and_its_processes_leave_the_port(start):
    up = start("--no-model-server", "--no-first-project")
    up.wait_for(f"Rondo is at {up.address}")
    for _ in range(2):
        master = up.find("webapp.wsgi:application")
        processes = [master, *master.children(recursive=True)]
        assert len(processes) >= 2
        master.kill()
        deadline = time.monotonic() + PATIENCE
        while still_alive(processes) or not answers(up.address):
            assert time.monotonic() < deadline, still_alive(processes)
            time.sleep(0.2)
        assert up.find("webapp.wsgi:application").pid != master.pid
    # The other programs are those that ran before.
    assert up.find("--beat-thread").is_running()


def answers(address: str) -> bool:
    """Return whether a page comes."""
    try:
        return httpx.get(f"{address}/login/", trust_env=False, timeout=10).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.mark.long
def test_a_killed_process_manager_is_started_again_with_every_program(start):
    up = start("--no-model-server", "--no-first-project")
    up.wait_for("Rondo is at")
    left = [process for process in up.family() if process.pid != up.process.pid]
    os.kill(up.find("supervisor.supervisord").pid, signal.SIGKILL)
    up.wait_for(r"process manager +started again")
    assert still_alive(left) == []
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            assert httpx.get(f"{up.address}/login/", timeout=PATIENCE, trust_env=False).status_code == 200
            break
        except httpx.HTTPError:
            time.sleep(0.5)
    assert up.stop() == 0


@pytest.mark.long
def test_after_a_sigkill_of_up_the_next_one_ends_what_was_left_and_starts(start):
    port = free_port()
    up = start("--no-model-server", "--no-first-project", port=port)
    up.wait_for("Rondo is at")
    left = [process for process in up.family() if process.pid != up.process.pid]
    # Killed together with its process manager: nobody is left who knows the programs.
    supervisord = up.find("supervisor.supervisord")
    os.kill(up.process.pid, signal.SIGKILL)
    os.kill(supervisord.pid, signal.SIGKILL)
    up.process.wait(timeout=PATIENCE)
    assert still_alive(left), "the test needs processes that outlive `up`"

    again = start("--no-model-server", "--no-first-project", port=port)
    again.wait_for(r"last time +ended \d+ processes")
    again.wait_for("Rondo is at")
    assert still_alive(left) == []


def test_a_taken_port_is_named_with_the_variable_that_changes_it(start):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        up = start("--no-model-server", port=port)
        assert up.wait() == 1
    assert f"Port {port} on 127.0.0.1, wanted for the web server, is taken" in up.output
    assert "RONDO_PORT=" in up.output
    assert "Traceback" not in up.output


def test_a_folder_that_is_a_file_is_refused_with_the_variable_that_changes_it(start, home):
    home.parent.mkdir(exist_ok=True)
    home.write_text("not a folder")
    up = start("--no-model-server", migrates=True)
    assert up.wait() == 1
    assert "RONDO_HOME" in up.output
    assert str(home) in up.output
    assert "Traceback" not in up.output


def test_a_broker_that_does_not_answer_is_named(start):
    port = free_port()
    up = start("--no-model-server", RONDO_BROKER_URL=f"redis://127.0.0.1:{port}/0")
    assert up.wait() == 1
    assert f"127.0.0.1:{port}" in up.output
    assert "RONDO_BROKER_URL" in up.output
    assert "Traceback" not in up.output


def test_the_starter_is_fetched_beside_the_database_unless_it_is_there(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    tiny = tiny_model_folder(tmp_path / "tiny")
    settings.RONDO_MODELS = str(tmp_path / "models")
    settings.RONDO_STARTER_MODEL_NAME = STARTER_NAME
    monkeypatch.setenv("RONDO_STARTER_MODEL", str(tiny))
    fetch = programs.fetch_starter()
    assert fetch is not None
    assert fetch.wait(120) == 0
    assert is_complete(tmp_path / "models" / STARTER_NAME)
    programs.end_fetch(fetch)
    assert programs.fetch_starter() is None


def test_a_fetch_that_still_runs_ends_with_up(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    settings.RONDO_MODELS = str(tmp_path / "models")
    settings.RONDO_STARTER_MODEL_NAME = STARTER_NAME
    # Whoever holds the folder's lock is waited for.
    (tmp_path / "models").mkdir()
    with (tmp_path / "models" / ".starter.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fetch = programs.fetch_starter()
        assert fetch is not None
        programs.end_fetch(fetch)
    assert fetch.returncode == -signal.SIGTERM
    settings.RONDO_STARTER_MODEL_NAME = "another"
    assert programs.fetch_starter() is None


@pytest.mark.long
def test_the_model_server_is_watched_too_and_whatever_it_started_ends_with_it(start, home):
    tiny_model_folder(home / "models" / "tiny")
    up = start(
        "--no-first-project",
        RONDO_STARTER_MODEL_NAME="tiny",
        RONDO_MODEL_SERVER_PORT=str(free_port()),
        OMP_NUM_THREADS="1",
    )
    up.wait_for(r"model +tiny is ready")
    server = up.find("training.serving")
    os.kill(server.pid, signal.SIGKILL)
    match = up.wait_for(r"model server +process (\d+) died; started again as process (\d+)")
    assert int(match[1]) == server.pid
    family = up.family()
    assert up.stop() == 0
    assert still_alive(family) == []
