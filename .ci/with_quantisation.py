"""Run the tests that need bitsandbytes and torchao: `make test-quantised`.

Both are optional (the extra `gpu`) and no part of the usual environment. They go into a small one of their
own, in var/quantised, which sees the packages of `.venv`. Other arguments are handed on to pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "var" / "quantised"
PACKAGES = ("bitsandbytes==0.50.2", "torchao==0.18.0")


def main() -> None:
    python = _installed()
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    command = [str(python), "-m", "pytest", "-m", "quantised", "-n", "0", "-rA", *sys.argv[1:]]
    sys.exit(subprocess.run([*command, "tests/rlhf"], cwd=ROOT, env=environment, check=False).returncode)


def _installed() -> Path:
    """Return the Python that has the packages; install them where they are not."""
    python = FOLDER / "bin" / "python"
    if not (FOLDER / "installed").exists():
        print(f"Installing {' and '.join(PACKAGES)} into {FOLDER}", flush=True)
        venv.create(FOLDER, with_pip=True, clear=True)
        [own] = FOLDER.glob("lib/python*/site-packages")
        (own / "usual.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
        pip = [str(python), "-m", "pip", "-q", "--disable-pip-version-check"]
        # torch and all else that they want is in the usual environment.
        subprocess.run([*pip, "install", "--no-deps", *PACKAGES], check=True)
        (FOLDER / "installed").touch()
    return python


if __name__ == "__main__":
    main()
