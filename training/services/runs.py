"""Runs: written down, driven to their end, and what they report brought into the database."""

import functools
import os
import subprocess
from pathlib import Path
from typing import Literal

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Coalesce, Now

from annotation.choices import WebhookEvent
from annotation.errors import Refusal
from training import launcher
from training.choices import RunState
from training.contract import RunSpec, RunStatus, Settings, write_spec
from training.models import Checkpoint, Run, Snapshot
from training.selectors_runs import folded_of
from training.services.claims import (
    ClaimLostError,
    InterruptedStepError,
    Pulse,
    StopAskedError,
    still_held,
)
from training.services.run_files import Sender, gather, spec_here
from training.services.telling import tell_of_run


def create_run(
    *,
    name: str,
    snapshot: Snapshot,
    settings_of_method: Settings,
    base_model: str,
    parent: Checkpoint | None,
    seed: int,
    judgments: Literal["all", "policy", "evaluator"] = "all",
) -> Run:
    """Write down a run that waits for its trainer. The name must be unused: see `unused_name`.

    judgments: the part of the training judgments that it learns from (`RunSpec.judgments`).
    """
    folder = Path(settings.RONDO_RUNS) / name
    spec = RunSpec(
        method=settings_of_method.method,
        base_model=str(Path(settings.RONDO_MODELS) / base_model),
        # Relative, so that the folder of all runs and snapshots can be moved as one.
        snapshot=os.path.relpath(snapshot.path, folder),
        snapshot_digest=snapshot.digest,
        settings=settings_of_method,
        seed=seed,
        parent=str(parent.path) if parent else None,
        parent_digest=parent.digest if parent else None,
        name=name,
        commit=version_of_rondo(),
        judgments=judgments,
        cache=os.path.relpath(Path(settings.RONDO_HOME) / "cache", folder),
    )
    with transaction.atomic():
        run = Run.objects.create(
            name=name,
            method=settings_of_method.method,
            snapshot=snapshot,
            parent=parent,
            spec=spec.to_json(),
            folder=str(folder.relative_to(settings.RONDO_HOME)),
        )
        tell_of_run(run, WebhookEvent.RUN_CREATED)
    return run


def unused_name(wanted: str) -> str:
    """`wanted`, or the first of wanted-2, wanted-3, … that no run and no checkpoint bears."""
    number = 1
    name = wanted
    while Run.objects.filter(name=name).exists() or Checkpoint.objects.filter(name=name).exists():
        number += 1
        name = f"{wanted}-{number}"
    return name


def drive_run(run: Run, *, pulse: Pulse) -> None:
    """Start or resume a run's trainer and stay until it ends; the caller holds the step's claim.

    A finished run is left as it is. Raises `Refusal` with the trainer's own words where it
    failed, a `StopAskedError` once it has saved and stopped on request,
    `InterruptedStepError` where it did so on someone else's, and `StoreRefusal` where files cannot be had
    from the store, or what was trained not be sent there.
    """
    if run.state == RunState.FINISHED:
        return
    gather(run, pulse)
    run.path.mkdir(parents=True, exist_ok=True)
    write_spec(run.path, spec_here(run))
    with still_held(pulse.step):
        Run.objects.filter(pk=run.pk).update(
            state=RunState.STARTING,
            error="",
            worker=pulse.step.worker,
            heartbeat_at=Now(),
            started_at=Coalesce("started_at", Now()),
        )
        tell_of_run(run, WebhookEvent.RUN_STARTED)
    run.worker = pulse.step.worker
    with Sender(run) as sender:
        ending = launcher.run_trainer(run.path, watch=functools.partial(_watch, run, pulse, sender))
        _mirror(run, ending.status)
        sender.finish(pulse)
    if ending.finished:
        _settle(run, RunState.FINISHED)
    elif ending.stopped:
        _settle(run, RunState.STOPPED)
        pulse.write()  # raises StopAskedError where that is why
        # A machine that shuts down tells all of its processes to end, the trainer perhaps before us.
        raise InterruptedStepError("the trainer was told to stop, but not from here")
    else:
        _settle(run, RunState.FAILED, error=ending.message)
        raise Refusal(ending.message)


def _watch(run: Run, pulse: Pulse, sender: Sender, status: RunStatus | None) -> bool:
    """Pass progress on; whether the trainer is to stop."""
    try:
        if status is None:
            written = pulse(message="starting the trainer")
        else:
            written = pulse(current=status.step, total=status.total_steps, message=status.message)
    except StopAskedError:
        _held(run).update(message="stopping: the trainer saves its state")
        return True
    if written:
        _mirror(run, status)
        sender.offer()
    return False


def _mirror(run: Run, status: RunStatus | None) -> None:
    if status is None:
        _held(run).update(heartbeat_at=Now())
        return
    _held(run).update(
        heartbeat_at=Now(),
        step=status.step,
        total_steps=status.total_steps,
        seconds_left=status.seconds_left,
        message=status.message,
        **({"state": status.state} if status.state in (RunState.STARTING, RunState.RUNNING) else {}),
    )
    # Folded as it grows, so that no page ever has to read a long file of metrics.
    folded_of(run)


def _settle(run: Run, state: RunState, *, error: str = "") -> None:
    with transaction.atomic():
        if not _held(run).update(state=state, error=error, worker="", seconds_left=None, finished_at=Now()):
            raise ClaimLostError
        tell_of_run(run, WebhookEvent(f"run.{state.value}"))
    run.refresh_from_db()


def _held(run: Run) -> QuerySet[Run]:
    """The run, as long as it is this worker's: one that was cut off writes nothing over what another does."""
    return Run.objects.filter(pk=run.pk, worker=run.worker)


@functools.cache
def version_of_rondo() -> str:
    """The commit that this code is of; empty where the code is no Git checkout."""
    command = ["git", "-C", str(settings.BASE_DIR), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()
