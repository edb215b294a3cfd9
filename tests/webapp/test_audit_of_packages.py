"""The audit of packages fails on what is known and not excused, and on excuses that nobody needs."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
REPORT = {
    "dependencies": [
        {"name": "good", "version": "1.0", "vulns": []},
        {"name": "skipped", "skip_reason": "not on the index"},
        {
            "name": "bad",
            "version": "2.0",
            "vulns": [{"id": "PYSEC-1", "aliases": ["CVE-2026-1"], "fix_versions": ["2.1"]}],
        },
    ]
}


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", ROOT / ".ci" / "audit.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_known_vulnerability_is_told_with_its_remedy(audit: ModuleType):
    assert audit.found_faults(REPORT, {}) == ["bad 2.0: PYSEC-1; repaired in: 2.1."]


@pytest.mark.parametrize("name", ["PYSEC-1", "CVE-2026-1"])
def test_an_excuse_holds_under_any_of_its_names(audit: ModuleType, name: str):
    assert audit.found_faults(REPORT, {name: "we never call it"}) == []


def test_an_excuse_that_nobody_needs_is_told(audit: ModuleType):
    clean = {"dependencies": REPORT["dependencies"][:2]}
    (fault,) = audit.found_faults(clean, {"PYSEC-1": "we never call it"})
    assert "PYSEC-1" in fault


def test_an_excuse_needs_a_reason(audit: ModuleType):
    assert audit.excuses("# why\n\nPYSEC-1 we never call it\n") == {"PYSEC-1": "we never call it"}
    with pytest.raises(SystemExit, match="no reason"):
        audit.excuses("PYSEC-1\n")


def test_without_a_network_it_warns_and_fails_nothing(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    class Failed:
        stdout, stderr = "", "ERROR: connection refused\n"

    monkeypatch.setattr(audit.subprocess, "run", lambda *_, **__: Failed)
    audit.main()
    assert capsys.readouterr().out.startswith("WARNING: nothing was audited")


def test_every_lock_is_audited(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    asked: list[str] = []

    class Done:
        stdout, stderr = json.dumps({"dependencies": [REPORT["dependencies"][0]]}), ""

    def run(command: list[str], **_: object) -> type[Done]:
        asked.append(command[command.index("--requirement") + 1])
        return Done

    monkeypatch.setattr(audit.subprocess, "run", run)
    audit.main()
    assert asked == sorted(str(path) for path in (ROOT / ".ci" / "locks").glob("*.txt"))
    # The same pin in several locks is one package.
    assert capsys.readouterr().out.startswith("1 packages")
