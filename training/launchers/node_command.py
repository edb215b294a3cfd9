"""The command that a node of a job runs, and the script around it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from training.launchers.protocol import Job, Place

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|CONNECTION_STRING")


def run_folder(job: Job, place: Place) -> str:
    """Return the run's folder as the nodes see it."""
    return str(PurePosixPath(place.home) / "runs" / job.run)


def node_command(job: Job, place: Place) -> list[str]:
    """Return the command of every node, without its number and the first node's address."""
    command = [place.python, "-m", "training.launchers.node", run_folder(job, place), "--job", job.name]
    command += ["--nodes", str(job.resources.nodes), "--processes", str(job.resources.processes)]
    return command


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that others may read; the cluster has the rest from its own settings."""
    return {name: value for name, value in environment.items() if not _SECRET.search(name)}
