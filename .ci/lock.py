"""Write the locks of `.ci/locks`: what `make lock` runs.

One resolution for every platform and Python that Rondo supports, with the hash of every file. Pins stay as
they are unless `--upgrade` is given or a requirement asks for another version.

`default.txt` is for every machine. `linux-cpu.txt` is the same with the CPU build of torch and without CUDA's
libraries; the hashes of that build are in `torch-cpu.json`, since its index is not the one of the other
packages. `s3.txt` is what a store in S3 needs on top of either, and the container has; `dev.txt` what tests
and checks need, and `uv.txt` the installer.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from install import LOCKS, ROOT, inputs_digest, uv_command

OLDEST_PYTHON = "3.11"
CUDA = re.compile(r"(nvidia|cuda|triton)[-=]")
"""Names of packages that only a GPU build of torch needs."""
Entries = dict[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that are allowed")
    upgrade = parser.parse_args().upgrade
    if not uv_command():
        sys.exit("uv writes the locks, and it is neither in .venv nor on PATH: run `make install` first.")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        kept = "" if upgrade else "".join(_read(name) for name in ("default.txt", "dev.txt"))
        everything = _compile(folder, ["requirements.txt", "--group", "dev"], kept)
        default = _compile(folder, ["requirements.txt"], everything)
        with_s3 = _compile(folder, ["requirements.txt", "-"], everything, "\n".join(_extra("s3")))
    base, joint = entries(default), entries(everything)
    # A package that tests need on more platforms is in both, with the wider marker here.
    added = {pin: text for pin, text in joint.items() if pin not in base}
    _write("default.txt", base)
    _write("linux-cpu.txt", cpu_entries(base, json.loads((LOCKS / "torch-cpu.json").read_text())))
    _write("dev.txt", added)
    _write("s3.txt", {pin: text for pin, text in entries(with_s3).items() if pin not in base})
    with tempfile.TemporaryDirectory() as temporary:
        _write("uv.txt", entries(_compile(Path(temporary), ["-"], "" if upgrade else _read("uv.txt"), "uv")))


def _extra(name: str) -> list[str]:
    """Return the requirements of an extra of the package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements: list[str] = project["optional-dependencies"][name]
    return requirements


def _read(name: str) -> str:
    path = LOCKS / name
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _compile(folder: Path, sources: list[str], pins: str, typed: str = "") -> str:
    """Resolve the sources by the public index alone; `pins` are preferred versions.

    Folders and further indexes of this machine are left out: they may hold other builds.
    """
    output = folder / "lock.txt"
    output.write_text(pins, encoding="utf-8")
    command = [
        *uv_command(),
        *("pip", "compile", "--quiet", "--universal", "--python-version", OLDEST_PYTHON),
        *("--generate-hashes", "--no-header", "--no-emit-index-url", "--no-emit-find-links"),
        *("--annotation-style", "line", "--output-file", str(output)),
        *sources,
    ]
    subprocess.run(command, cwd=ROOT, input=typed, text=True, check=True)
    return output.read_text(encoding="utf-8")


def entries(lock: str) -> Entries:
    """Return the text of each pin of a lock: pin and marker, then the hashes and what needs it."""
    found: Entries = {}
    for text in re.split(r"\n(?=[A-Za-z0-9])", "\n" + lock):
        pin = text.partition("\n")[0].rstrip(" \\")
        if "==" in pin and not pin.startswith("#"):
            found[pin] = text.rstrip("\n")
    return found


def cpu_entries(default: Entries, hashes: dict[str, str]) -> Entries:
    """Return the entries of a lock for Linux without a GPU: another build of torch, nothing of CUDA."""
    chosen = {
        pin: text for pin, text in default.items() if not CUDA.match(pin) and not pin.startswith("torch==")
    }
    (torch,) = (pin for pin in default if pin.startswith("torch=="))
    version = torch.removeprefix("torch==")
    if any(f"-{version}+cpu-" not in name for name in hashes):
        sys.exit(
            f"torch-cpu.json lists another version than {torch}: take the file names and hashes of "
            "that version from the CPU index of PyTorch, https://download.pytorch.org/whl/cpu/torch/."
        )
    pin = f"{torch}+cpu"
    chosen[pin] = " \\\n".join([pin, *(f"    --hash=sha256:{digest}" for digest in hashes.values())])
    return chosen


def _write(name: str, chosen: Entries) -> None:
    body = "\n".join(text for _pin, text in sorted(chosen.items()))
    inputs = inputs_digest(["dev"] if name == "dev.txt" else [])
    header = f"# Written by `make lock`; do not edit. Inputs: sha256:{inputs}\n"
    (LOCKS / name).write_text(header + body + "\n", encoding="utf-8")
    print(f"{name}: {len(chosen)} packages, {hashlib.sha256(body.encode()).hexdigest()[:12]}")


if __name__ == "__main__":
    main()
