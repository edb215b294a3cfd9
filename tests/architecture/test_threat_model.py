"""The threat model is true: each of its rows names a test, and each of those tests exists."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "webapp" / "guide" / "explanation" / "threat-model.md").read_text(encoding="utf-8")
ROWS = [row for row in re.findall(r"^\| (?!threat|-).*\|$", PAGE, flags=re.M) if not row.startswith("|---")]


def _exists(named: str) -> bool:
    path, _, name = named.partition("::")
    return f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")


def test_every_row_names_a_test_that_exists():
    assert ROWS
    for row in ROWS:
        named = re.findall(r"`(tests/[\w/]+\.py::\w+)`", row.split("|")[3])
        assert named, row
        assert [test for test in named if not _exists(test)] == []
