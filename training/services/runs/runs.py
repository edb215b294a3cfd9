"""Runs: created, driven to their end, and their results stored."""

import functools
import logging
import math
import os
import subprocess
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Literal

from django.conf import settings
from django.db import transaction
from django.db.models.functions import Coalesce, Now
from django.utils.translation import gettext as _

from annotation.choices import WebhookEvent
from annotation.errors import Refusal, Unavailable
from annotation.services.jobs import Heartbeat, held, still_held, write
from training.choices import RunState
from training.contract import ContractError
from training.contract.methods import Settings
from training.contract.run import RunSpec, RunStatus, read_evaluation, write_spec
from training.files.shared import folder_of
from training.models import Checkpoint, Round, Run, Snapshot
from training.recipe.recipe import ComputeSettings
from training.selectors.runs import folded_of
from training.services.jobs import InterruptedStepError, StopAskedError, tell_of_run
from training.services.runs import launcher
from training.services.runs.clusters import LOCAL, resources_of, run_on_cluster
from training.services.runs.files import Sender, gather, spec_here

# ── Summaries: the last number of each metric, by which lists of runs are sorted ──


logger = logging.getLogger(__name__)

MOST_METRICS = 300
"""A trainer that names more metrics fills no row with them."""
_AT_A_SWEEP = 50
_ENDED = (RunState.FINISHED, RunState.STOPPED, RunState.FAILED)


def summary_of(run: Run, *, most_seconds: float = math.inf) -> dict[str, float]:
    """Return the last finite number of each metric.

    Held-out figures are those of the state that is, or would be, the checkpoint.
    """
    numbers = dict(folded_of(run, most_seconds=most_seconds).latest)
    try:
        report = read_evaluation(folder_of(run))
    except (ContractError, OSError) as error:
        logger.warning("the evaluation of %s cannot be read: %s", run, error)
        report = None
    if report is not None:
        numbers |= {name: value for name, value in report.figures.items() if value is not None}
    finite = {name: float(value) for name, value in sorted(numbers.items()) if math.isfinite(value)}
    return dict(list(finite.items())[:MOST_METRICS])


def summarise(run: Run) -> None:
    """Store the summary of a run."""
    run.summary = summary_of(run)
    Run.objects.filter(pk=run.pk).update(summary=run.summary)


def sweep_summaries() -> None:
    """Summarise runs that ended without a summary: those of before summaries, and those of lost workers."""
    for run in Run.objects.filter(summary__isnull=True, state__in=_ENDED).order_by("-pk")[:_AT_A_SWEEP]:
        summarise(run)


# ── Runs ──


_MOST_SECONDS_OF_METRICS = 0.06
"""Longest reading of new metrics at a heartbeat; the next one continues."""


def create_run(
    *,
    name: str,
    snapshot: Snapshot,
    settings_of_method: Settings,
    base_model: str,
    parent: Checkpoint | None,
    seed: int,
    judgments: Literal["all", "policy", "evaluator"] = "all",
    compute: ComputeSettings | None = None,
) -> Run:
    """Write down a run that waits for its trainer. The name must be unused: see `unused_name`.

    judgments: the part of the training judgments that it learns from (`RunSpec.judgments`). compute:
    processes, precision and sharding; None is one process.
    """
    if parent is not None and parent.base_model != base_model:
        raise Refusal(
            "base_model_differs",
            _(
                "%(parent)s stands on %(other)s: training on %(base_model)s cannot continue it. "
                "Begin the round from a checkpoint of that base."
            ),
            parent=parent,
            other=parent.base_model,
            base_model=base_model,
        )
    compute = compute or ComputeSettings()
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
        dtype=compute.dtype,
        sharding=compute.sharding,
        quantization=compute.quantization,
        processes=compute.processes,
        cache=os.path.relpath(Path(settings.RONDO_HOME) / "cache", folder),
    )
    with transaction.atomic():
        run = Run.objects.create(
            name=name,
            method=settings_of_method.method,
            snapshot=snapshot,
            parent=parent,
            spec=spec.to_json(),
            resources=resources_of(compute),
            folder=str(folder.relative_to(settings.RONDO_HOME)),
        )
        tell_of_run(run, WebhookEvent.RUN_CREATED)
    return run


def unused_name(preferred: str) -> str:
    """`preferred`, or the first of preferred-2, preferred-3, … that no run and no checkpoint bears."""
    number = 1
    name = preferred
    while Run.objects.filter(name=name).exists() or Checkpoint.objects.filter(name=name).exists():
        number += 1
        name = f"{preferred}-{number}"
    return name


def trl_is_gone(subject: Run | Round) -> str:
    """Return why a run or a round of 1.0 that TRL was to train cannot be trained, and what to do."""
    return _(
        "%(subject)s is to be trained by TRL, which Rondo no longer starts. Take the round back to "
        "labelling, save its recipe and start it: Rondo’s trainer trains it, or yours "
        "(RONDO_TRAINER_COMMAND)."
    ) % {"subject": subject}


def _nothing() -> None:
    """Attend to nothing."""


def drive_run(run: Run, *, heartbeat: Heartbeat, attend: Callable[[], None] = _nothing) -> None:
    """Start or resume a run's trainer and stay until it ends; the caller holds the step's claim.

    attend: called with every heartbeat while the trainer works. A finished run is left as it is. Raises
    `Refusal` with the trainer's own words where it failed, a `StopAskedError` once it has saved and stopped
    on request, `InterruptedStepError` where it did so on someone else's, and `StoreRefusal` where files
    cannot be had from the store, or what was trained not be sent there.
    """
    if run.state == RunState.FINISHED:
        return
    if run.spec.get("trl"):
        raise Refusal("trainer_removed", trl_is_gone(run))
    place = run.resources.get("launcher", LOCAL)
    if place == LOCAL:
        _train_here(run, heartbeat, attend)
    else:
        _train_on_cluster(run, place, heartbeat, attend)


def _train_here(run: Run, heartbeat: Heartbeat, attend: Callable[[], None]) -> None:
    """Train as a process of this worker, on GPUs that are leased to it."""
    run.worker = heartbeat.job.worker
    gpu_count = run.resources.get("gpus")
    with launcher.leased_gpus(run, processes=run.spec.get("processes", 1), requested=gpu_count) as gpus:
        gather(run, heartbeat)
        run.path.mkdir(parents=True, exist_ok=True)
        write_spec(run.path, spec_here(run))
        _begin(run, heartbeat)
        with Sender(run) as sender:
            watch = functools.partial(_watch, run, heartbeat, sender, attend)
            devices = {} if gpus is None else {"gpus": gpus}
            ending = launcher.run_trainer(run.path, watch=watch, **devices)
            _mirror(run, ending.status)
            sender.finish(heartbeat)
    _conclude(run, heartbeat, ending)


def _train_on_cluster(run: Run, place: str, heartbeat: Heartbeat, attend: Callable[[], None]) -> None:
    """Train as a job elsewhere, which goes on while no worker watches it."""
    _begin(run, heartbeat)

    def watch(status: RunStatus | None, message: str) -> bool:
        return _watch(run, heartbeat, None, attend, status, message)

    try:
        ending = run_on_cluster(run, name=place, heartbeat=heartbeat, watch=watch)
    except Unavailable as error:
        held(run).update(state=RunState.WAITING, message=str(error))
        raise
    except Refusal as refusal:
        _settle(run, RunState.FAILED, error=refusal.message)
        raise
    _mirror(run, ending.status)
    _conclude(run, heartbeat, ending)


def _begin(run: Run, heartbeat: Heartbeat) -> None:
    with still_held(heartbeat.job):
        Run.objects.filter(pk=run.pk).update(
            state=RunState.STARTING,
            error="",
            worker=heartbeat.job.worker,
            heartbeat_at=Now(),
            started_at=Coalesce("started_at", Now()),
        )
        tell_of_run(run, WebhookEvent.RUN_STARTED)
    run.worker = heartbeat.job.worker


def _conclude(run: Run, heartbeat: Heartbeat, ending: launcher.TrainerExit) -> None:
    """Write down how a run ended, and raise unless it finished."""
    if ending.finished:
        _settle(run, RunState.FINISHED)
    elif ending.stopped:
        _settle(run, RunState.STOPPED)
        heartbeat.write()  # raises StopAskedError where that is why
        # A machine that shuts down tells all of its processes to end, the trainer perhaps before us.
        raise InterruptedStepError("the trainer was told to stop, but not from here")
    else:
        _settle(run, RunState.FAILED, error=ending.message)
        raise Refusal("run_failed", ending.message)


def _watch(
    run: Run,
    heartbeat: Heartbeat,
    sender: Sender | None,
    attend: Callable[[], None],
    status: RunStatus | None,
    message: str = "starting the trainer",
) -> bool:
    """Pass progress on; whether the trainer is to stop."""
    try:
        if status is None:
            written = heartbeat(message=message)
        else:
            written = heartbeat(current=status.step, total=status.total_steps, message=status.message)
    except StopAskedError:
        held(run).update(message="stopping: the trainer saves its state")
        return True
    if written:
        _mirror(run, status, message=message)
        attend()
        if sender is not None:
            sender.offer()
            launcher.renew(run)
    return False


def _mirror(run: Run, status: RunStatus | None, *, message: str = "") -> None:
    if status is None:
        held(run).update(heartbeat_at=Now(), **({"message": message} if message else {}))
        return
    held(run).update(
        heartbeat_at=Now(),
        step=status.step,
        total_steps=status.total_steps,
        seconds_left=status.seconds_left,
        message=status.message,
        **({"state": status.state} if status.state in (RunState.STARTING, RunState.RUNNING) else {}),
    )
    # Folded as it grows, so that no page ever has to read a long file of metrics.
    held(run).update(summary=summary_of(run, most_seconds=_MOST_SECONDS_OF_METRICS))


def _settle(run: Run, state: RunState, *, error: str = "") -> None:
    with transaction.atomic():
        write(
            run,
            worker="",
            state=state,
            error=error,
            seconds_left=None,
            finished_at=Now(),
            summary=summary_of(run),
        )
        tell_of_run(run, WebhookEvent(f"run.{state.value}"))
    run.refresh_from_db()


@functools.cache
def version_of_rondo() -> str:
    """Return the commit of this code, or the version of an installed Rondo; empty for copied files."""
    if not (Path(settings.BASE_DIR) / ".git").exists():
        # Of the folder that Rondo was installed into, Git would tell the commit of somebody else's code.
        try:
            return metadata.version("rondo")
        except metadata.PackageNotFoundError:
            return ""
    command = ["git", "-C", str(settings.BASE_DIR), "rev-parse", "HEAD"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return result.stdout.strip()
