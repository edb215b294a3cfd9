"""Launchers start a run's trainer: as a process here, or as a job of Ray, or of any scheduler by commands.

Knows folders, commands and HTTP; no database, no torch, no Ray.
"""

from training.launchers.protocol import (
    Job,
    JobReport,
    JobState,
    Launcher,
    LauncherError,
    LauncherUnreachableError,
    Place,
    Resources,
)

__all__ = [
    "Job",
    "JobReport",
    "JobState",
    "Launcher",
    "LauncherError",
    "LauncherUnreachableError",
    "Place",
    "Resources",
]
