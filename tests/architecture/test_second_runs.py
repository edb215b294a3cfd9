"""`.ci/test.py` runs both databases, failed browser tests again, and says which passed only then."""

import importlib.util
import json
import subprocess
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "test.py"
FLAKY, BROKEN = "tests/browser/test_a.py::test_flaky", "tests/browser/test_b.py::test_broken"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("ci_test", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "_postgres_refuses", lambda: "not here")
    monkeypatch.setattr(module, "IN_CI", False)
    monkeypatch.setattr("sys.argv", ["test.py"])
    return module


def run(script: ModuleType, monkeypatch: pytest.MonkeyPatch, failures: list[list[str]]) -> int | str | None:
    """Run the script, with these failures of its first and its second run of pytest."""
    record = script.last_failed("SQLite")
    record.parent.mkdir(parents=True)
    runs = iter(failures)

    def pytest_run(command: list[str], **_: object) -> SimpleNamespace:
        failed = next(runs)
        record.write_text(json.dumps(dict.fromkeys(failed, True)))
        return SimpleNamespace(returncode=script.TESTS_FAILED if failed else 0)

    monkeypatch.setattr(subprocess, "run", pytest_run)
    with pytest.raises(SystemExit) as ended:
        script.main()
    return ended.value.code


def test_a_test_that_passes_only_in_a_second_run_is_named_and_counted_at_the_end(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert run(script, monkeypatch, [[FLAKY], []]) == 0
    last = capsys.readouterr().out.strip().splitlines()[-2:]
    assert last[0].startswith("1 test passed only in a second run")
    assert last[1] == f"  SQLite: {FLAKY}"


def test_a_test_that_fails_twice_fails_the_run_and_is_not_among_them(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert run(script, monkeypatch, [[FLAKY, BROKEN], [BROKEN]]) == script.TESTS_FAILED
    last = capsys.readouterr().out.strip().splitlines()
    assert last[-1] == f"FAILED on SQLite: {BROKEN}"
    assert f"  SQLite: {FLAKY}" in last
    assert not any(line.startswith("  SQLite: ") and BROKEN in line for line in last)


def test_a_run_without_a_second_one_says_nothing_of_it(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert run(script, monkeypatch, [[]]) == 0
    assert "second run" not in capsys.readouterr().out


def test_both_databases_run_at_once_and_what_fails_on_each_is_told(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(script, "_postgres_refuses", lambda: "")
    both = threading.Barrier(2, timeout=30)

    def pytest_run(command: list[str], *, env: dict[str, str], stdout: Any = None, **_: object) -> Any:
        both.wait()
        title = "PostgreSQL" if "DATABASE_URL" in env else "SQLite"
        if stdout:
            stdout.write(f"output of {title}\n")
        record = script.last_failed(title)
        record.parent.mkdir(parents=True)
        record.write_text(json.dumps({f"tests/test_{title}.py::test_it": True}))
        return SimpleNamespace(returncode=script.TESTS_FAILED)

    monkeypatch.setattr(subprocess, "run", pytest_run)
    with pytest.raises(SystemExit) as ended:
        script.main()
    assert ended.value.code == script.TESTS_FAILED
    output = capfd.readouterr().out
    assert output.index("── SQLite") < output.index("── PostgreSQL") < output.index("output of PostgreSQL")
    failed = [line for line in output.splitlines() if line.startswith("FAILED on ")]
    assert failed == [
        "FAILED on SQLite: tests/test_SQLite.py::test_it",
        "FAILED on PostgreSQL: tests/test_PostgreSQL.py::test_it",
    ]
