"""Every test that the plugins name exists; `tests/shares.py` itself checks that no test is left out."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.order import LONGEST
from tests.shares import (
    NOT_READ_ON_POSTGRESQL,
    ON_BOTH,
    ON_POSTGRESQL_ALONE,
    ON_SQLITE_ALONE,
    SERVICES_ON_SQLITE_ALONE,
    pytest_collection_modifyitems,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "start",
    [
        *LONGEST,
        *NOT_READ_ON_POSTGRESQL,
        *ON_BOTH,
        *ON_POSTGRESQL_ALONE,
        *ON_SQLITE_ALONE,
        *SERVICES_ON_SQLITE_ALONE,
    ],
)
def test_each_named_test_exists(start: str):
    file, _, name = start.partition("::")
    found = [path for path in ROOT.glob(f"{file}*") if path.suffix == ".py" or path.is_dir()]
    assert found
    assert not name or f"def {name.partition('[')[0]}" in found[0].read_text(encoding="utf-8")


def test_a_test_of_the_database_among_those_that_are_not_read_is_refused():
    misplaced: Any = SimpleNamespace(
        nodeid="tests/rlhf/test_a.py::test_b",
        path=ROOT / "tests" / "rlhf" / "test_a.py",
        fixturenames=("db",),
        get_closest_marker=lambda name: None,
    )
    config: Any = SimpleNamespace(getoption=lambda name: "sqlite")
    with pytest.raises(pytest.UsageError, match="test_b"):
        pytest_collection_modifyitems(config, [misplaced])


def test_the_number_of_drawn_cases_that_the_run_names_reaches_the_tests():
    read = "import os, tests.settings; print(os.environ['RONDO_TEST_EXAMPLES'])"
    environment = {**os.environ, "RONDO_TEST_EXAMPLES": "7", "RONDO_PORT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", read], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "7"
