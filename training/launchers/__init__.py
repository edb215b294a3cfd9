"""Launchers start a run's trainer: as a process here, or as a job of Ray, or of any scheduler by commands.

Knows folders, commands and HTTP; no database, no torch, no Ray.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal, Protocol

from annotation.record.base import Figure, record
from training.contract import ContractError
from training.contract.files import canonical_json, read_record, write_atomically

# Files that worker and node exchange through a run's folder, or through the store that carries it.

JOB_FILE = "job.json"
BEAT_FILE = "heartbeat.json"
CANCELS = "cancels"
"""Folder of the store with an entry for each job that is asked to save and stop."""
BEAT_SECONDS = 5.0


@record
class JobFile:
    """For the node: `job.json`, written before a job is submitted."""

    job: str
    needs: tuple[str, ...] = ()
    """Folders below RONDO_HOME that the trainer reads besides its own."""
    trainer: tuple[str, ...] = ()
    """Command of the trainer; empty for `python -m training.rlhf`."""


@record
class Beat:
    """From the node: `heartbeat.json`, replaced every few seconds while the job runs."""

    job: str
    number: int
    """Counts up; a reader compares it with the last one that it saw, so that clocks need not agree."""
    host: str
    started_at: Figure
    """By the clock of the node, as `updated_at` of the trainer's status."""
    code: int | None = None
    """The trainer's exit status, negative for a signal; None while it runs."""


def write_job_file(folder: Path, job: JobFile) -> None:
    """Write `job.json`."""
    write_atomically(folder / JOB_FILE, canonical_json(dataclasses.asdict(job)) + "\n")


def read_job_file(folder: Path) -> JobFile:
    """Read `job.json`."""
    return read_record(JobFile, folder / JOB_FILE)


def write_beat(folder: Path, beat: Beat) -> None:
    """Replace the heartbeat."""
    write_atomically(folder / BEAT_FILE, canonical_json(dataclasses.asdict(beat)) + "\n")


def read_beat(folder: Path, job: str) -> Beat | None:
    """Return the heartbeat of a job; None before its first, also where an earlier job left one."""
    try:
        beat = read_record(Beat, folder / BEAT_FILE)
    except ContractError:
        return None
    return beat if beat.job == job else None


# ──   init   ──

JobState = Literal["waiting", "running", "ended", "cancelled", "failed", "unknown"]
"""`ended`: no process of it runs any more, for a reason that the run's folder may hold. `cancelled`: somebody
took it out of the queue or ended it. `failed`: the scheduler refuses to run it again as it is, for want of
memory. `unknown`: the scheduler knows no such job any more."""


class LauncherError(Exception):
    """A launcher refused, in words for people: what is wrong and what to do."""


class LauncherUnreachableError(LauncherError):
    """The launcher does not answer; the same may be tried again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """Resources of a job. `processes`, `gpus` and `memory_gb` are per node."""

    nodes: int = 1
    processes: int = 1
    gpus: int = 0
    memory_gb: float | None = None
    hours: float | None = None
    queue: str = ""
    servers: int = 0
    """Rollout servers in addition to the nodes, each on a place of its own."""
    gpus_per_server: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterPaths:
    """Paths of Rondo on the nodes of a cluster."""

    python: str
    """Interpreter with torch."""
    code: str
    """Folder that holds the package `training`; the job's working folder."""
    home: str
    """RONDO_HOME there: the same folder over a shared file system, or each node's own copy of the store."""
    shares_files: bool
    """True if the run's folder here and there is the same one. Else the store carries it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchJob:
    """A run to be started."""

    name: str
    """Unique among all jobs of the installation: lower case, digits and dashes."""
    run: str
    """Name of the run's folder below `runs`."""
    resources: Resources
    base_model: str = ""
    """Folder of the base model on the nodes, for rollout servers."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for the trainer; some are secrets and appear in no script."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobReport:
    """A job as its launcher sees it."""

    state: JobState
    reason: str = ""
    """The scheduler's own words for why it waits or how it ended."""
    nodes: tuple[str, ...] = ()


class Launcher(Protocol):
    """A way to start jobs. Methods raise `LauncherError` or `LauncherUnreachableError`."""

    @property
    def name(self) -> str:
        """Return the name by which recipes choose it."""

    def script(self, job: LaunchJob) -> str:
        """Return what would be submitted, for people to read. Holds no secret."""

    def submit(self, job: LaunchJob) -> str:
        """Submit a job; return the handle by which it is known from then on."""

    def find(self, name: str) -> str | None:
        """Return the handle of a job by its name, for one that was submitted by a worker that died."""

    def poll(self, handle: str) -> JobReport:
        """Return the state of a job."""

    def cancel(self, handle: str) -> None:
        """End a job, waiting or running; nothing happens to one that has ended."""

    def logs(self, handle: str, *, lines: int) -> str:
        """Return the last lines that the job wrote; empty where there are none yet."""

    def look(self) -> Sequence[str]:
        """Return what it has to offer, a line each, for the status page."""


# ── The command that a node of a job runs, and the script around it ──


_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|CONNECTION_STRING")


def run_folder(job: LaunchJob, place: ClusterPaths) -> str:
    """Return the run's folder as the nodes see it."""
    return str(PurePosixPath(place.home) / "runs" / job.run)


def node_command(job: LaunchJob, place: ClusterPaths) -> list[str]:
    """Return the command of every node, without its number and the first node's address."""
    command = [place.python, "-m", "training.launchers.node", run_folder(job, place), "--job", job.name]
    command += ["--nodes", str(job.resources.nodes), "--processes", str(job.resources.processes)]
    return command


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that others may read; the cluster has the rest from its own settings."""
    return {name: value for name, value in environment.items() if not _SECRET.search(name)}
