"""Run rounds on a real Slurm or a real Ray of this machine: what `make test-slurm` and `make test-ray` run.

    .ci/clusters.py slurm   installs Debian's Slurm where it is missing (as root), starts three nodes
    .ci/clusters.py ray     makes a virtual environment with Ray in ~/.cache/rondo/ray, starts three nodes

Other arguments are handed on to pytest. Ends with a verdict; the exit status is that of the tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RAY = "ray[default]~=2.60"
FOLDER = Path.home() / ".cache" / "rondo" / "ray"
TESTS = {
    "slurm": "tests/training/launchers/test_on_slurm.py",
    "ray": "tests/training/launchers/test_on_ray.py",
}


def main() -> int:
    """Install, test, say how it went."""
    if len(sys.argv) < 2 or sys.argv[1] not in TESTS:
        sys.exit(__doc__)
    name, *arguments = sys.argv[1:]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment.pop("DATABASE_URL", None)
    version = install_slurm() if name == "slurm" else install_ray(environment)
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-v", "--clusters", TESTS[name], *arguments]
    code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    took = time.monotonic() - began
    verdict = "PASSED" if code == 0 else "FAILED"
    print(f"\nRondo on {version}: {verdict} after {took:.0f} s on {os.cpu_count()} cores", flush=True)
    return code


def install_slurm() -> str:
    """Install Slurm and munge where they are missing; return the version."""
    os.environ["PATH"] += ":/usr/sbin"
    if not all(shutil.which(program) for program in ("slurmctld", "slurmd", "sbatch", "munged")):
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            sys.exit("Slurm is missing. Install it: apt install slurm-wlm munge. Its daemons need root here.")
        for command in (["update"], ["install", "-y", "--no-install-recommends", "slurm-wlm", "munge"]):
            subprocess.run(["apt-get", "-q", *command], check=True)  # noqa: S607 - whichever it has
    if os.geteuid() != 0:
        sys.exit("The test starts slurmctld and slurmd of its own, which need root.")
    found = shutil.which("slurmd") or "slurmd"
    return subprocess.run([found, "-V"], capture_output=True, text=True, check=True).stdout.strip()


def install_ray(environment: dict[str, str]) -> str:
    """Make a virtual environment with Ray; return the version. The product's own has none."""
    python = FOLDER / "bin" / "python"
    if not python.exists():
        venv.create(FOLDER, with_pip=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", RAY], check=True)
    environment["TEST_RAY_PYTHON"] = str(python)
    ask = [str(python), "-c", "import ray; print(ray.__version__)"]
    return f"Ray {subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()}"


if __name__ == "__main__":
    sys.exit(main())
