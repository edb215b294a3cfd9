"""`.ci/test.py` runs the tests on both databases at once and fails where one of them fails."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "test.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("ci_test", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "ci_test", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "_postgres_refuses", lambda: "")
    monkeypatch.setattr("sys.argv", ["test.py"])
    return module


@pytest.mark.parametrize(
    ("on_sqlite", "on_postgres", "expected"), [(0, 0, 0), (1, 0, 1), (0, 2, 2), (0, 5, 5)]
)
def test_both_shares_run_at_once_and_the_worse_end_is_that_of_the_run(
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    on_sqlite: int,
    on_postgres: int,
    expected: int,
):
    def stand_in(share: object, workers: int) -> list[str]:
        is_first = share.title == "SQLite"  # type: ignore[attr-defined]
        code = on_sqlite if is_first else on_postgres
        # The first waits for a line that only the second writes: they run at the same time.
        return [
            "sh",
            "-c",
            f"cat pipe; exit {code}" if is_first else f"echo begun > pipe; echo told; exit {code}",
        ]

    monkeypatch.setattr(script, "ROOT", tmp_path)
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(script, "_command", stand_in)
    with pytest.raises(SystemExit) as ended:
        script.main()
    assert ended.value.code == expected
    lines = [line for line in capfd.readouterr().out.splitlines() if line]
    assert [line.split(" ")[1] if line.startswith("──") else line for line in lines] == [
        *("SQLite", "begun", "PostgreSQL", "told")
    ]
