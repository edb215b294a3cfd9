"""supervisor as `manage.py up` runs it, with a program that only waits."""

import sys
import tempfile
import time
from pathlib import Path

import pytest

from webapp.supervision.process_manager import ProcessManager
from webapp.supervision.programs import Program


def test_it_starts_where_the_folder_of_temporary_files_has_a_long_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A socket's address has at most 107 characters, on macOS 103."""
    long = tmp_path / ("a" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    command = (sys.executable, "-c", "import time; time.sleep(300)")
    waits = Program(name="waits", title="waits", command=command, seconds_to_stop=5)
    manager = ProcessManager(tmp_path / "home", [waits])
    try:
        manager.start()
        deadline = time.monotonic() + 60
        while (states := [state.state for state in manager.states()]) != ["RUNNING"]:
            assert time.monotonic() < deadline, states
            time.sleep(0.2)
    finally:
        manager.stop()
