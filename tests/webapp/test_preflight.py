"""Settings that `manage.py up` refuses before it starts anything, and its messages."""

import json
import os
import socket
import subprocess
import sys
from collections import namedtuple
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest
from packaging.requirements import Requirement

from tests.webapp.running import free_port
from webapp.environment import required_packages
from webapp.supervision import preflight
from webapp.supervision.family import Family, UpError, only_one
from webapp.supervision.process_manager import StepScreen

Usage = namedtuple("Usage", "total used free")


def test_a_missing_package_and_one_of_the_wrong_version_are_both_named():
    requirements = [Requirement(text) for text in ("Django>=1", "no-such-package-of-ours~=1.0", "psutil<1")]
    with pytest.raises(UpError) as refused:
        preflight.check_packages(requirements)
    assert "no-such-package-of-ours" in str(refused.value)
    assert f"psutil {version('psutil')} (wanted <1)" in str(refused.value)
    assert "Django" not in str(refused.value)
    assert "make install" in str(refused.value)


def test_the_packages_of_this_environment_satisfy_requirements_txt():
    requirements = Path(__file__).resolve().parents[2] / "requirements.txt"
    lines = [line for line in requirements.read_text().splitlines() if line and not line.startswith("#")]
    assert preflight.check_packages(required_packages()) == len(lines)


def test_a_full_disk_is_told_with_what_is_free_and_what_is_needed(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(10**9, 10**9, 400 * 1024**2))
    with pytest.raises(UpError, match=r"400 MB are free and 2048 MB are needed.*RONDO_HOME="):
        preflight.check_disk(tmp_path, starter_is_there=False)
    # With the model already there 400 MB are enough.
    assert preflight.check_disk(tmp_path, starter_is_there=True) == 400 * 1024**2


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UpError, match=r"cannot be written.*RONDO_HOME="):
        preflight.check_home(tmp_path / "file" / "var")


def test_a_starter_folder_without_a_model_is_told(tmp_path: Path):
    with pytest.raises(UpError, match=r"RONDO_STARTER_MODEL.*config\.json"):
        preflight.check_starter_folder(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    preflight.check_starter_folder(str(tmp_path))
    preflight.check_starter_folder("")


def test_a_free_port_passes_and_a_taken_one_is_named():
    port = free_port()
    preflight.check_port("127.0.0.1", port, variable="RONDO_PORT", purpose="the web server")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        with pytest.raises(UpError, match=rf"Port {port} .* web server.* taken.*RONDO_PORT=\d+ make run"):
            preflight.check_port("127.0.0.1", port, variable="RONDO_PORT", purpose="the web server")


@pytest.mark.parametrize(("host", "port"), [("203.0.113.7", 8000), ("no.such.host.invalid", 8000)])
def test_an_address_of_another_machine_is_told(host: str, port: int):
    with pytest.raises(UpError, match=r"no address of this machine.*RONDO_HOST"):
        preflight.check_port(host, port, variable="RONDO_PORT", purpose="the web server")


def test_a_port_beyond_65535_is_told():
    with pytest.raises(UpError, match=r"RONDO_PORT"):
        preflight.check_port("127.0.0.1", 70000, variable="RONDO_PORT", purpose="the web server")


def test_two_cannot_hold_one_folder(tmp_path: Path):
    with only_one(tmp_path):
        holder = [sys.executable, "-c", _TAKE_THE_FOLDER, str(tmp_path)]
        completed = subprocess.run(holder, capture_output=True, text=True, check=False)
        assert "started on" in completed.stdout
    # Let go of at the end, whatever is left in the file.
    with only_one(tmp_path):
        pass


_TAKE_THE_FOLDER = """
import sys
from pathlib import Path
from webapp.supervision.family import UpError
from webapp.supervision.family import only_one
try:
    with only_one(Path(sys.argv[1])):
        print("got it")
except UpError as error:
    print(error)
"""


def test_a_recorded_process_is_ended_and_a_stranger_with_its_id_is_not(tmp_path: Path):
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    ours, stranger = subprocess.Popen(sleeper), subprocess.Popen(sleeper)
    try:
        began = psutil.Process(ours.pid).create_time()
        # The stranger got an id that was recorded for a process of an hour ago.
        (tmp_path / "up.json").write_text(json.dumps([[ours.pid, began], [stranger.pid, began - 3600]]))
        family = Family(tmp_path)
        family.recall()
        assert family.end(seconds=10) == 1
        ours.wait(timeout=30)
        assert stranger.poll() is None
        assert not (tmp_path / "up.json").exists()
    finally:
        for process in (ours, stranger):
            process.kill()
            process.wait()


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path):
    stubborn = subprocess.Popen([sys.executable, "-uc", _IGNORES_SIGTERM], stdout=subprocess.PIPE, text=True)
    assert stubborn.stdout
    assert stubborn.stdout.readline() == "ready\n"
    family = Family(tmp_path)
    family.look(stubborn.pid)
    assert family.end(seconds=0.2) == 1
    # psutil has taken the exit status; that it ended at all tells of SIGKILL.
    stubborn.wait(timeout=30)
    stubborn.stdout.close()


_IGNORES_SIGTERM = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready")
time.sleep(600)
"""


def test_a_broken_record_of_an_earlier_up_is_taken_for_none(tmp_path: Path):
    (tmp_path / "up.json").write_text("{half a")
    family = Family(tmp_path)
    family.recall()
    assert family.end(seconds=1) == 0


class Terminal:
    """A stream that says it is a terminal, and what was written to it."""

    def __init__(self, *, is_terminal: bool) -> None:
        self.is_terminal = is_terminal
        self.written = ""

    def isatty(self) -> bool:
        return self.is_terminal

    def write(self, text: str) -> int:
        self.written += text
        return len(text)

    def flush(self) -> None:
        return None


def test_on_a_terminal_a_step_is_one_line_rewritten_in_place():
    terminal = Terminal(is_terminal=True)
    screen = StepScreen(terminal)  # type: ignore[arg-type]
    screen.progress("model", "fetching: 10%")
    screen.progress("model", "fetching: 20%")
    screen.done("model", "ready")
    assert terminal.written.count("\n") == 1
    assert terminal.written.endswith("\r\033[K  model           ready\n")


def test_in_a_log_file_a_short_step_is_one_plain_line():
    log = Terminal(is_terminal=False)
    screen = StepScreen(log)  # type: ignore[arg-type]
    screen.progress("model", "fetching: 10%")
    screen.progress("model", "fetching: 20%")
    screen.done("model", "ready")
    assert log.written == "  model           ready\n"


def test_the_secrets_drawn_at_the_same_moment_by_two_processes_are_one(tmp_path: Path):
    command = [sys.executable, "-c", "from webapp import settings; print(settings.SECRET_KEY)"]
    environment = {**os.environ, "RONDO_HOME": str(tmp_path)}
    environment.pop("RONDO_SECRET_KEY", None)
    several = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    drawn = {process.communicate()[0] for process in several}
    assert len(drawn) == 1
    assert len(drawn.pop().strip()) >= 48
    assert sorted(path.name for path in tmp_path.iterdir() if "secret" in path.name) == ["secret_key"]
