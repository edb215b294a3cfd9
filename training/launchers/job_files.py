"""Files that worker and node exchange through a run's folder, or through the store that carries it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from annotation.record.base import Figure, record
from training.contract import ContractError
from training.contract.files import canonical_json, read_record, write_atomically

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
