"""Programs that are not Django's write lines of the same form."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.webapp.running import free_port

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("kind", ["json", "text"])
def test_gunicorns_own_lines_have_the_form_of_all_others(tmp_path: Path, kind: str):
    (tmp_path / "tiny.py").write_text("def application(environ, start_response):\n    raise SystemExit\n")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "gunicorn", "tiny:application", "--chdir", str(tmp_path)),
            *("--bind", f"127.0.0.1:{free_port()}", "--error-logfile", "-"),
            *("--logger-class", "webapp.operations.gunicorn.Lines"),
        ],
        cwd=ROOT,
        env={**os.environ, "RONDO_LOG_FORMAT": kind, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = next(line for line in process.stderr if "Listening at" in line)
    finally:
        process.terminate()
        process.communicate()
    if kind == "json":
        assert (json.loads(line)["level"], json.loads(line)["logger"]) == ("INFO", "gunicorn.error")
    else:
        assert " INFO gunicorn.error: Listening at" in line


def test_a_program_without_django_writes_them_too():
    finished = subprocess.run(
        [
            sys.executable,
            "-c",
            "import logging; from training.contract.log_lines import log_to_stderr; "
            "log_to_stderr(logging.INFO); "
            "logging.getLogger('training.serving').info('the key is %s', 'opensesame')",
        ],
        cwd=ROOT,
        env={**os.environ, "RONDO_LOG_FORMAT": "json", "RONDO_MODEL_SERVER_KEY": "opensesame"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(finished.stderr)["message"] == "the key is [secret]"
    assert logging.getLevelName(logging.INFO) == json.loads(finished.stderr)["level"]
