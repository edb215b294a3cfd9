"""Write the README's table of settings from the one that declares them.

.venv/bin/python .ci/document_settings.py
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from webapp.environment import documentation  # noqa: E402 - the checkout is no installed package

readme = ROOT / "README.md"
table = re.compile(r"^\| variable \| default \| what it sets \|\n(?:\|.*\n)+", re.MULTILINE)
text, count = table.subn(lambda _: documentation() + "\n", readme.read_text(encoding="utf-8"))
if count != 1:
    sys.exit("README.md holds no table of settings, or more than one.")
readme.write_text(text, encoding="utf-8")
