"""Make .venv and install the packages of the lock: what `make install` runs.

On the standard library alone, and in words that Python 3.7 still understands: it must be able to
tell an old Python that it is too old.

uv installs, in parallel, where it is on PATH or can be put into .venv; pip does otherwise. Every file is
checked against the hash in `.ci/locks`. pip's configuration (index, mirror, certificates) is handed to uv.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import NoReturn

OLDEST = (3, 11)
NEWER_FIRST = ("python3.14", "python3.13", "python3.12", "python3.11")
ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCKS = ROOT / ".ci" / "locks"
# Where PyTorch publishes its CPU builds; PyPI has the CUDA build for Linux, ten times as large.
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# A CPU build of torch and the rest unpack to about 1.6 GB; pip needs room for the wheels beside it.
FREE_BYTES = 3 * 1024**3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--group", action="append", default=[], help="a dependency group of pyproject.toml")
    parser.add_argument(
        "--torch", choices=("cpu", "default"), help="the build of torch (default: by the machine)"
    )
    parser.add_argument("--pip", action="store_true", help="install with pip, not with uv")
    options = parser.parse_args()
    if sys.version_info < OLDEST:
        _go_on_with_a_newer_python()
    build = options.torch or torch_build()
    wanted = _fingerprint(options.group, build)
    stamp = VENV / ".".join(["installed", *sorted(options.group)])
    if _python().exists() and stamp.exists() and stamp.read_text() == wanted:
        return
    _make_venv()
    _install(options.group, build, with_uv=not options.pip)
    stamp.write_text(wanted)


def torch_build() -> str:
    """Return "cpu" on Linux without an NVIDIA GPU, where the default build would bring CUDA's libraries."""
    has_gpu = Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi")
    return "cpu" if sys.platform == "linux" and not has_gpu else "default"


def _go_on_with_a_newer_python() -> None:
    """Start again with a newer Python of this machine, or say how to get one."""
    for name in NEWER_FIRST:
        path = shutil.which(name)
        if path:
            os.execv(path, [path, *sys.argv])  # noqa: S606 - found on PATH by a fixed name
    _stop(
        "Rondo needs Python {}.{} or newer; {} is {}.{}. Install one (Debian: apt install python3; "
        "macOS: brew install python3), or name one you have: make run PYTHON=/path/to/python3.".format(
            *OLDEST, sys.executable, *sys.version_info[:2]
        )
    )


def _fingerprint(groups: list[str], build: str) -> str:
    digest = hashlib.sha256(f"{sys.version} {build}".encode())
    for path in sorted(LOCKS.glob("*.txt")):
        digest.update(path.read_bytes())
    digest.update(inputs_digest(groups).encode())
    return digest.hexdigest()


def inputs_digest(groups: list[str]) -> str:
    """Return the digest of what people write and a lock is made of; each lock names it in its first line."""
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    if groups:
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        text += project.partition("[dependency-groups]")[2].partition("\n[")[0]
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return hashlib.sha256("\n".join(line for line in lines if line).encode()).hexdigest()


def _python() -> Path:
    return VENV / "bin" / "python"


def _make_venv() -> None:
    if _python().exists() and _works([str(_python()), "-m", "pip", "--version"]):
        return
    try:
        import ensurepip  # noqa: F401 - Debian ships it apart, and venv fails late and obscurely without
    except ImportError:
        _stop("Python's venv module is not whole here. Debian: apt install python3-venv.")
    free = shutil.disk_usage(str(ROOT)).free
    if free < FREE_BYTES:
        _stop(
            f"The disk that holds {ROOT} has {free / 1024**2:.0f} MB free; the packages need "
            f"{FREE_BYTES / 1024**2:.0f} MB. Free some space first."
        )
    _say("making .venv")
    if not _works([sys.executable, "-m", "venv", "--clear", str(VENV)]):
        _stop(f"The virtual environment {VENV} could not be made. Delete that folder and try again.")


def _works(command: list[str]) -> bool:
    return (
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode
        == 0
    )


def _install(groups: list[str], build: str, *, with_uv: bool) -> None:
    started = time.monotonic()
    if build == "cpu" and not _cpu_build_is_within_reach():
        _say(f"{CPU_INDEX} is out of reach: installing the default build of torch, which is larger")
        build = "default"
    locks = [LOCKS / ("linux-cpu.txt" if build == "cpu" else "default.txt")]
    locks += [LOCKS / f"{group}.txt" for group in groups]
    extra = [CPU_INDEX] if build == "cpu" and not _local_cpu_builds() else []
    if not (with_uv and _install_with_uv(locks, extra)):
        words = [word for lock in locks for word in ("--requirement", str(lock))]
        words += [word for index in extra for word in ("--extra-index-url", index)]
        _run([*_pip(), "install", "--progress-bar", "off", "--require-hashes", *words])
    _install_what_no_lock_has(groups)
    _say(f"installed in {time.monotonic() - started:.0f} s")
    if sys.stdout.isatty():
        print()


def _install_with_uv(locks: list[Path], extra: list[str]) -> bool:
    """Install the locks by uv. False where there is no uv, or it failed: pip tries again and explains."""
    uv = uv_command()
    if not uv and _works([*_pip(), "install", "--quiet", "--require-hashes", "-r", str(LOCKS / "uv.txt")]):
        uv = uv_command()
    if not uv:
        return False
    words = [word for lock in locks for word in ("--requirement", str(lock))]
    words += [word for index in extra for word in ("--index", index)]
    _say("installing with uv")
    command = [*uv, "pip", "install", "--quiet", "--python", str(_python()), "--require-hashes"]
    if subprocess.run([*command, *uv_sources(), *words], cwd=str(ROOT), check=False).returncode == 0:
        return True
    _say("uv could not install the packages; trying pip")
    return False


def _install_what_no_lock_has(groups: list[str]) -> None:
    """Follow a requirement that was edited after the locks were written."""
    for lock, parts in (("default.txt", []), *((f"{group}.txt", [group]) for group in groups)):
        if inputs_digest(parts) in (LOCKS / lock).read_text(encoding="utf-8").partition("\n")[0]:
            continue
        _say(f"{lock} is older than its requirements: run `make lock`")
        if parts:
            # Dependency groups came with pip 25.1; the pip that a Python ships may be older.
            _run([*_pip(), "install", "--quiet", "pip>=25.1"])
        words = [word for group in parts for word in ("--group", group)]
        requirements = ["--requirement", str(ROOT / "requirements.txt")]
        _run([*_pip(), "install", "--progress-bar", "off", *requirements, *words])


def _pip() -> list[str]:
    return [str(_python()), "-m", "pip", "--disable-pip-version-check"]


def uv_command() -> list[str]:
    """Return the command of uv: that of .venv, else that on PATH; empty without one."""
    path = VENV / "bin" / "uv"
    found = str(path) if path.exists() else shutil.which("uv")
    return [found] if found else []


def uv_sources() -> list[str]:
    """Return uv's options for the indexes and folders that pip is configured to use."""
    options = _pip_settings()
    words = ["--index-strategy", "unsafe-best-match"]
    words += [word for url in options.get("index-url", []) for word in ("--default-index", url)]
    words += [word for url in options.get("extra-index-url", []) for word in ("--index", url)]
    words += [word for place in options.get("find-links", []) for word in ("--find-links", place)]
    words += [word for host in options.get("trusted-host", []) for word in ("--allow-insecure-host", host)]
    return words + (["--no-index"] if options.get("no-index") in (["true"], ["1"], ["yes"]) else [])


def _pip_settings() -> dict[str, list[str]]:
    """Return pip's configuration: from its files, then from PIP_* variables, which replace them."""
    python = str(_python()) if _python().exists() else sys.executable
    command = [python, "-m", "pip", "config", "list"]
    listed = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False
    )
    found: dict[str, list[str]] = {}
    for line in listed.stdout.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.partition(".")
        if section in ("global", "install", ":env:"):
            found[key] = value.strip().strip("'\"").replace("\\n", " ").split()
    return found


def _local_cpu_builds() -> list[Path]:
    """Return CPU builds of torch in folders that pip is configured to look into."""
    places = [Path(urllib.parse.urlsplit(place).path) for place in _pip_settings().get("find-links", [])]
    tag = "cp{}{}".format(*sys.version_info[:2])
    return [path for place in places if place.is_dir() for path in place.glob(f"torch-*+cpu-{tag}-*.whl")]


def _cpu_build_is_within_reach() -> bool:
    if _local_cpu_builds():
        return True
    try:
        with urllib.request.urlopen(f"{CPU_INDEX}/torch/", timeout=8) as answer:  # noqa: S310 - https, fixed
            return bool(answer.status == 200)
    except OSError:
        return False


def _run(command: list[str]) -> None:
    """Run pip and show in one line what it is at. Its last words are repeated when it fails."""
    process = subprocess.Popen(
        command, cwd=str(ROOT), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines: list[str] = []
    collected = 0
    for line in process.stdout or ():
        lines.append(line.rstrip())
        found = re.match(r"\s*(Collecting|Downloading|Installing)\s+(\S+)(.*\))?", line)
        if found:
            collected += found.group(1) == "Collecting"
            word, name, size = found.group(1).lower(), found.group(2).rsplit("/", 1)[-1], found.group(3) or ""
            if word == "installing":
                name, size = f"{collected} packages", ""
            _say(f"{word} {name}{size if word == 'downloading' else ''} ({collected})")
    if process.wait():
        errors = [line for line in lines if "error" in line.lower()] or lines
        hint = (
            "The disk is full: free some space and run it again."
            if any("No space left" in line for line in lines)
            else "Is the network, or the package index that PIP_INDEX_URL names, within reach?"
        )
        _stop("pip could not install the packages.\n  {}\n{}".format("\n  ".join(errors[-5:]), hint))


_last_line = [0.0]


def _say(text: str) -> None:
    line = f"  packages        {text}"
    if sys.stdout.isatty():
        print("\r\033[K" + line[: shutil.get_terminal_size().columns - 1], end="", flush=True)
    elif not text.startswith(("collecting", "downloading")) or time.monotonic() - _last_line[0] > 5:
        _last_line[0] = time.monotonic()
        print(line, flush=True)


def _stop(text: str) -> NoReturn:
    if sys.stdout.isatty():
        print()
    sys.exit(text)


if __name__ == "__main__":
    main()
