"""An environment with a stand-in for TRL."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.rlhf.runs import ROOT

PACKAGES = {"trl": "1.16.0", "transformers": "5.24.0", "httpx": "0.28.1"}


def make_environment(folder: Path, packages: dict[str, str]) -> Path:
    """Make a folder with `trl` and a `python` that lists these packages; return the path of `trl`."""
    folder.mkdir(parents=True, exist_ok=True)
    program, python = folder / "trl", folder / "python"
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m tests.rlhf.external.fake_trl "$@"\n'
    )
    python.write_text(f"#!/bin/sh\necho '{json.dumps(packages)}'\n")
    for path in (program, python):
        path.chmod(0o755)
    return program


@pytest.fixture
def fake_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """RONDO_TRL names a stand-in."""
    program = make_environment(tmp_path / "environment" / "bin", PACKAGES)
    monkeypatch.setenv("RONDO_TRL", str(program))
    return program
