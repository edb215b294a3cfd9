"""Make .venv and install the packages: what `make install` runs.

On the standard library alone, and in words that Python 3.7 still understands: it must be able to
tell an old Python that it is too old.
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
from pathlib import Path
from typing import NoReturn

OLDEST = (3, 11)
NEWER_FIRST = ("python3.14", "python3.13", "python3.12", "python3.11")
ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
# A CPU build of torch and the rest unpack to about 1.6 GB; pip needs room for the wheels beside it.
FREE_BYTES = 3 * 1024**3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--group", action="append", default=[], help="a dependency group of pyproject.toml")
    groups = parser.parse_args().group
    if sys.version_info < OLDEST:
        _go_on_with_a_newer_python()
    wanted = _fingerprint(groups)
    stamp = VENV / ".".join(["installed", *sorted(groups)])
    if _python().exists() and stamp.exists() and stamp.read_text() == wanted:
        return
    _make_venv()
    _install(groups)
    stamp.write_text(wanted)


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


def _fingerprint(groups: list[str]) -> str:
    digest = hashlib.sha256(sys.version.encode())
    digest.update((ROOT / "requirements.txt").read_bytes())
    if groups:
        text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        digest.update(text.partition("[dependency-groups]")[2].partition("\n[")[0].encode())
    return digest.hexdigest()


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
    return subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == 0


def _install(groups: list[str]) -> None:
    started = time.monotonic()
    command = [str(_python()), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    if groups:
        # Dependency groups came with pip 25.1; the pip that a Python ships may be older.
        _run([*command, "--quiet", "pip>=25.1"])
    requirements = ["--requirement", str(ROOT / "requirements.txt")]
    _run([*command, *requirements, *(word for group in groups for word in ("--group", group))])
    _say(f"installed in {time.monotonic() - started:.0f} s")
    if sys.stdout.isatty():
        print()


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
