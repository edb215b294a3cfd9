"""A clone in any folder passes its tests: no file names a folder outside of the checkout."""

import re
from pathlib import Path

from tests.data_sets import VARIABLE

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = re.compile(r"RONDO_SHARED|\.\./shared/data|parent / \"shared\"|/work/")
SETS_IT = Path(".ci/run")


def test_no_file_reads_data_beside_the_checkout_but_by_the_setting():
    found = []
    for folder in ("tests", "training", "annotation", "webapp", ".ci"):
        for path in (ROOT / folder).rglob("*"):
            name = path.relative_to(ROOT)
            if path.suffix not in (".py", ".md", "") or not path.is_file() or path == Path(__file__):
                continue
            if name != SETS_IT and OUTSIDE.search(path.read_text(encoding="utf-8", errors="replace")):
                found.append(str(name))
    assert found == []


def test_ci_names_the_real_data_sets_where_they_are_there():
    assert f"export {VARIABLE}" in (ROOT / SETS_IT).read_text(encoding="utf-8")
