"""Arrows between the parts run one way, and the web process stays small."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MEGABYTE = 1024**2

# The web process as gunicorn makes it, with every page's module loaded.
_LOAD_THE_WEB_PROCESS = """
import json, sys

# Packages of the tests that others import where they are installed: an installation has none of them.
sys.modules.update({name: None for name in ("docutils", "greenlet", "markdown", "msgpack")})

import psutil
import webapp.wsgi
from django.urls import get_resolver

get_resolver().reverse_dict  # loads every URL module, and with it every view
heavy = sorted({name.split(".")[0] for name in sys.modules}
               & {"torch", "transformers", "peft", "safetensors", "tokenizers", "numpy", "scipy", "pyarrow"})
rlhf = sorted(name for name in sys.modules if name.startswith(("training.rlhf", "training.serving")))
print(json.dumps({"heavy": heavy, "rlhf": rlhf, "rss": psutil.Process().memory_info().rss}))
"""


def test_the_web_process_loads_no_torch_and_stays_under_160_megabytes(tmp_path: Path):
    finished = subprocess.run(
        [sys.executable, "-c", _LOAD_THE_WEB_PROCESS],
        cwd=ROOT,
        env={"RONDO_HOME": str(tmp_path), "PATH": os.defpath},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    report = json.loads(finished.stdout.splitlines()[-1])
    assert report["heavy"] == []
    assert report["rlhf"] == []
    assert report["rss"] < 160 * MEGABYTE


_COMPUTE_STATISTICS_WITHOUT_SPANS = """
import sys
import webapp.wsgi
import annotation.statistics.compute
from annotation.agreement.intervals import binomial_test, wilson_interval
from training.figures.win_rates import prompts_needed

wilson_interval(3, 4), binomial_test(3, 4), prompts_needed(win_rate=0.7)
print([name for name in ("scipy.stats", "scipy.optimize", "scipy.sparse") if name in sys.modules])
"""


def test_statistics_without_spans_load_only_a_small_part_of_scipy(tmp_path: Path):
    finished = subprocess.run(
        [sys.executable, "-c", _COMPUTE_STATISTICS_WITHOUT_SPANS],
        cwd=ROOT,
        env={"RONDO_HOME": str(tmp_path), "PATH": os.defpath},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[-1] == "[]"
