"""Write the pages of the guide that follow from the code: settings, recipe fields, keys, events, formats.

.venv/bin/python .ci/reference.py
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")

import django  # noqa: E402 - the checkout is no installed package

django.setup()

from webapp.guide.generated import documents  # noqa: E402

for path, text in documents().items():
    path.write_text(text, encoding="utf-8")
    print(path.relative_to(ROOT))
