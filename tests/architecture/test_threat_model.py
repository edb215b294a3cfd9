"""The threat model is true: each row names a test, and each of those tests exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "webapp" / "guide" / "explanation" / "threat-model.md").read_text(encoding="utf-8")
ROWS = [row for row in re.findall(r"^\| (?!threat|-).*\|$", PAGE, flags=re.M) if not row.startswith("|---")]


def test_the_page_has_rows():
    assert len(ROWS) > 40


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:60])
def test_every_row_names_a_test_that_exists(row: str):
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row.split("|")[3])
    assert named, "the row names no test"
    for path, name in named:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, name


def test_the_readme_leads_there():
    assert "(webapp/guide/explanation/threat-model.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
