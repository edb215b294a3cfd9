"""One run from its folder to its checkpoint: read, load, train, write, and report failures."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from transformers.utils import logging as transformers_logging

from training.contract import ContractError, read_manifest
from training.contract.checkpoint import MANIFEST_FILE, manifest_digest
from training.contract.run import (
    CHECKPOINT_FOLDER,
    DROPPED_FILE,
    EXIT_FAILED,
    EXIT_FINISHED,
    EXIT_STOPPED,
    RunSpec,
    read_spec,
)
from training.contract.snapshot import read_snapshot_header
from training.model_server import ServerError
from training.rlhf.loop.run import (
    RunResult,
    TrainingRun,
    refuse_too_many_tokens,
    save_checkpoint,
    train_on_judgments,
)
from training.rlhf.loop.state import resume_key
from training.rlhf.loop.training_loop import DivergedError
from training.rlhf.methods.dpo import DirectPreference
from training.rlhf.methods.kto import KahnemanTversky
from training.rlhf.methods.reward import train_reward_model
from training.rlhf.methods.sft import SupervisedFineTuning
from training.rlhf.model.backbone import Backbone
from training.rlhf.policy_gradient.loop import train_on_samples
from training.rlhf.runtime.processes import Processes, join_processes, lost_another_process
from training.rlhf.runtime.run_folder import (
    FolderInUseError,
    RunFolder,
    has_fast_bfloat16,
    locked,
    log,
    make_deterministic,
    resolve_device,
    resolve_dtype,
)
from training.rlhf.runtime.stopping import StoppedError, StopRequest

METHODS: Mapping[str, Callable[[TrainingRun], RunResult]] = {
    "reward": train_reward_model,
    "preference": partial(train_on_judgments, method=DirectPreference),
    "sft": partial(train_on_judgments, method=SupervisedFineTuning),
    "kto": partial(train_on_judgments, method=KahnemanTversky),
    "policy_gradient": train_on_samples,
}
"""Function that runs each method of `training.contract.Method`."""


def train_run(path: Path, *, stop: StopRequest, lock_wait_seconds: float) -> int:
    """Train the run in `path` until it ends or `stop` asks to stop; the exit status for the process."""
    if not path.is_dir():
        sys.stderr.write(f"{path}: there is no such run folder\n")
        return EXIT_FAILED
    transformers_logging.disable_progress_bar()
    writes = int(os.environ.get("RANK", "0")) == 0
    lock = locked(path, wait_seconds=lock_wait_seconds, give_up=lambda: bool(stop.reason))
    try:
        with lock if writes else contextlib.nullcontext():
            folder = RunFolder(path, writes=writes)
            folder.open_log()
            return _train_and_tell(folder, stop)
    except FolderInUseError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_FAILED


def _train_and_tell(folder: RunFolder, stop: StopRequest) -> int:
    """Train; write the outcome to the status and the log in words."""
    try:
        with join_processes() as processes:
            message = _train(folder, stop, processes)
    except StoppedError as stopped:
        log.info("Stopped (%s); start again to go on", stopped)
        folder.tell("stopped", str(stopped))
        if folder.writes:
            stop.honoured()
        return EXIT_STOPPED
    except (ContractError, DivergedError) as error:
        log.error("Failed: %s", error)
        folder.tell("failed", str(error))
        return EXIT_FAILED
    except Exception as error:
        if lost_another_process(error):
            log.info("Stopped: another process of the run has ended (%s)", str(error).splitlines()[0])
            folder.tell("stopped", "another process of the run has ended; start again to go on")
            return EXIT_STOPPED
        explanation = explain(error)
        message = explanation or f"{type(error).__name__}: {error}; the traceback is in log.txt"
        log.error("Failed: %s", message, exc_info=explanation is None)
        # The disk may be what failed: the log then has to be enough.
        with contextlib.suppress(OSError):
            folder.tell("failed", message)
        return EXIT_FAILED
    folder.tell("finished", message, seconds_left=0.0)
    log.info("Finished: %s", message)
    return EXIT_FINISHED


def explain(error: Exception) -> str | None:
    """Return an explanation and remedy for an error of host or server; None for any other error."""
    text = f"{type(error).__name__}: {error}"
    full = isinstance(error, OSError) and error.errno == errno.ENOSPC
    # What safetensors could not write is no OSError.
    if full or "No space left on device" in str(error):
        return (
            f"the disk is full ({text}); free some space and start again: training goes on from the last save"
        )
    if isinstance(error, ServerError):
        return f"{error}; once that is mended start again: training goes on from the last save"
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error):
        return f"out of memory ({text}); lower micro_batch_tokens or max_tokens and start again"
    return None


def _train(folder: RunFolder, stop: StopRequest, processes: Processes) -> str:
    """Train from the spec to `checkpoint/`. Return the final message."""
    folder.tell("starting", "reading the run")
    spec = read_spec(folder.path)
    if _already_finished(folder.path, spec):
        return "the checkpoint was already there"
    snapshot = _checked_snapshot(folder.path, spec)
    device = resolve_device(spec.device, local_rank=processes.local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    make_deterministic(device)
    stop.check()
    folder.tell("starting", "loading the base model")
    dtype = resolve_dtype(spec.dtype, device)
    if dtype == torch.bfloat16 and not has_fast_bfloat16(device):
        log.info(
            "This processor has no instructions for bfloat16: torch multiplies such matrices several times "
            "slower than float32 ones. Set dtype to 'float32', unless memory is short"
        )
    backbone = Backbone.load(
        Path(spec.base_model),
        device=device,
        dtype=dtype,
        quantization=spec.quantization,
        shard_over=None if spec.sharding == "none" else processes,
        sharding=spec.sharding,
    )
    if backbone.turnstile is not None:
        processes = replace(processes, rest=backbone.turnstile.rest)
    elif spec.sharding != "none":
        log.info("The base is not cut: this run has one process; torchrun or accelerate start several")
    stop.check()
    refuse_too_many_tokens(backbone, spec.settings)
    result = METHODS[spec.method](TrainingRun(backbone, spec, snapshot, folder, stop, processes))
    processes.wait()
    weights = backbone.gathered(result.adapter, keep=processes.first)
    if processes.first:
        save_checkpoint(
            folder.path / CHECKPOINT_FOLDER,
            backbone=backbone,
            adapter=result.adapter,
            kind=result.kind,
            spec=spec,
            steps=result.steps,
            metrics=result.held_out,
            dropped=result.dropped,
            warnings=result.warnings,
            weights=weights,
        )
    processes.wait()
    parts = [result.summary]
    parts += [f"{len(result.dropped)} entries were left out, see {DROPPED_FILE}"] if result.dropped else []
    return "; ".join(parts + folder.warnings)


def _already_finished(path: Path, spec: RunSpec) -> bool:
    """Return whether `checkpoint/` is there and is this spec's. Raises `ContractError` if it is another's."""
    folder = path / CHECKPOINT_FOLDER
    if not (folder / MANIFEST_FILE).is_file():
        return False
    manifest = read_manifest(folder, verify=True)
    trained = resume_key(RunSpec.from_json(manifest.spec), manifest.base_digest)
    if trained != resume_key(spec, manifest.base_digest):
        raise ContractError(
            f"{folder}: the checkpoint here was trained from another spec; start the new one in a new folder"
        )
    return True


def _checked_snapshot(path: Path, spec: RunSpec) -> Path:
    """Return the snapshot's folder, once it and the parent are known to be those that the spec means."""
    snapshot = path / spec.snapshot
    digest = read_snapshot_header(snapshot).digest
    if digest != spec.snapshot_digest:
        raise ContractError(
            f"{snapshot}: the snapshot's digest is {digest[:12]}, the spec asks for "
            f"{spec.snapshot_digest[:12]}; name the snapshot that the run was made for"
        )
    if spec.parent is not None and spec.parent_digest is not None:
        actual = manifest_digest(Path(spec.parent))
        if actual != spec.parent_digest:
            raise ContractError(
                f"{spec.parent}: the parent's digest is {actual[:12]}, the spec asks for "
                f"{spec.parent_digest[:12]}; name the checkpoint that the run was made for"
            )
    return snapshot
