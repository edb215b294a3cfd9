"""A command template: any other scheduler, by commands that the settings name. No shell reads them."""

from __future__ import annotations

import os
import re
import shlex
import string
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from training.contract.files import write_atomically
from training.launchers import (
    ClusterPaths,
    JobReport,
    JobState,
    LauncherError,
    LauncherUnreachableError,
    LaunchJob,
    node_command,
    run_folder,
)

# ── Programs of a scheduler: run without a shell, with a limit of time, their errors in plain words ──


_SECONDS = 30.0
_MOST_CHARACTERS = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """The output of a program, and its exit status."""

    code: int
    text: str
    error: str

    @property
    def error_text(self) -> str:
        """Return what it wrote, the error first, in one short line."""
        words = " ".join((self.error or self.text).split())
        return words[:_MOST_CHARACTERS] or f"nothing, exit status {self.code}"


def run(
    command: Sequence[str],
    *,
    launcher: str,
    text: str = "",
    environment: Mapping[str, str] | None = None,
    seconds: float = _SECONDS,
) -> Output:
    """Run a program. Raises `LauncherUnreachableError` for one that does not end, `LauncherError` without it.

    environment: the variables that it gets in addition to this process's.
    """
    try:
        done = subprocess.run(
            list(command),
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            env={**os.environ, **(environment or {})},
        )
    except FileNotFoundError:
        raise LauncherError(
            f"{launcher}: the program {command[0]} is not on this machine; install it, or choose another "
            "launcher in the recipe or in RONDO_LAUNCHER"
        ) from None
    except subprocess.TimeoutExpired:
        raise LauncherUnreachableError(
            f"{launcher}: {command[0]} did not answer within {seconds:.0f} seconds; it is tried again"
        ) from None
    except OSError as error:
        raise LauncherError(f"{launcher}: {command[0]} cannot be run ({error.strerror})") from None
    return Output(code=done.returncode, text=done.stdout, error=done.stderr)


# ── Command ──


OF_SUBMIT = (
    "script",
    "name",
    "folder",
    "nodes",
    "processes",
    "gpus",
    "memory_gb",
    "hours",
    "queue",
    "variables",
)
OF_OTHERS = ("handle", "lines")
SCRIPT_FILE = "job.sh"
TRY_AGAIN = 75
"""Exit status by which a command says that the scheduler does not answer (`EX_TEMPFAIL`)."""
_LONGEST_HANDLE = 200
_HANDLE = re.compile(r"[^\s-]\S*")


def command_arguments(template: str, values: Mapping[str, object]) -> list[str]:
    """Return the arguments of a command. A placeholder is a part of one argument, whatever its value holds.

    Raises `LauncherError` for a placeholder that is not known, or quotes that do not close.
    """
    try:
        return [_filled(part, values) for part in shlex.split(template)]
    except ValueError as error:
        raise LauncherError(f"The command {template!r} cannot be read: {error}") from None


def _filled(part: str, values: Mapping[str, object]) -> str:
    filled = ""
    for text, name, form, conversion in string.Formatter().parse(part):
        filled += text
        if name is None:
            continue
        if name not in values or form or conversion:
            known = ", ".join(f"{{{placeholder}}}" for placeholder in values)
            raise LauncherError(f"The placeholder {{{name}}} is not known here; use {known}")
        filled += str(values[name])
    return filled


@dataclass(frozen=True, slots=True)
class CommandTemplate:
    """Commands that submit, poll, cancel and read logs."""

    place: ClusterPaths
    runs: Path
    """Folder of all runs on this machine, into which scripts are written."""
    submit_command: str
    poll_command: str
    cancel_command: str
    logs_command: str = ""
    name: str = "command"

    def script(self, job: LaunchJob) -> str:
        """Return the script that the submit command is handed, as a file and by its standard input."""
        command = shlex.join(node_command(job, self.place))
        if job.resources.nodes > 1:
            command += ' --rank-from RONDO_NODE_RANK --master "${RONDO_MASTER:?host:port of the first node}"'
        return f"#!/bin/sh\nset -eu\ncd {shlex.quote(self.place.code)}\nexec {command}\n"

    def submit(self, job: LaunchJob) -> str:
        """Run the submit command; the first line that it writes is the handle."""
        script = self.runs / job.run / SCRIPT_FILE
        write_atomically(script, self.script(job))
        script.chmod(0o755)
        wants = job.resources
        values = {
            "script": script,
            "name": job.name,
            "folder": run_folder(job, self.place),
            "nodes": wants.nodes,
            "processes": wants.processes,
            "gpus": wants.gpus,
            "memory_gb": "" if wants.memory_gb is None else f"{wants.memory_gb:g}",
            "hours": "" if wants.hours is None else f"{wants.hours:g}",
            "queue": wants.queue,
            "variables": ",".join(sorted(job.environment)),
        }
        output = self._run(
            command_arguments(self.submit_command, values),
            text=script.read_text(),
            environment=job.environment,
        )
        if output.code != 0:
            raise LauncherError(
                f"The submit command refused the job: {output.error_text}. Change compute in the recipe or "
                "RONDO_COMMAND_SUBMIT, and start again"
            )
        handle = (output.text.strip().splitlines() or [""])[0].strip()
        if len(handle) > _LONGEST_HANDLE or not _HANDLE.fullmatch(handle):
            raise LauncherError(
                f"The submit command wrote {handle[:80]!r} as its first line; it must write the handle of "
                "the job, one word. Wrap the scheduler's program in a script that does"
            )
        return handle

    def find(self, name: str) -> str | None:
        """Return None: a command cannot say. A lone job finds another one's folder and ends by itself."""
        return None

    def poll(self, handle: str) -> JobReport:
        """Run the poll command; it writes a line: the state, and why."""
        output = self._run(command_arguments(self.poll_command, {"handle": handle}))
        if output.code != 0:
            raise LauncherUnreachableError(f"The poll command failed: {output.error_text}; it is tried again")
        word, _, reason = (output.text.strip().splitlines() or [""])[0].strip().partition(" ")
        states: dict[str, JobState] = {state: state for state in get_args(JobState)}
        if word not in states:
            raise LauncherError(
                f"The poll command wrote {word[:80]!r}; it must write one of {', '.join(states)}, and then "
                "may say why"
            )
        return JobReport(state=states[word], reason=reason.strip())

    def cancel(self, handle: str) -> None:
        """Run the cancel command."""
        output = self._run(command_arguments(self.cancel_command, {"handle": handle}))
        if output.code != 0:
            raise LauncherError(f"The cancel command failed: {output.error_text}")

    def logs(self, handle: str, *, lines: int) -> str:
        """Return the last lines that the logs command writes; empty without one."""
        if not self.logs_command:
            return ""
        output = self._run(command_arguments(self.logs_command, {"handle": handle, "lines": lines}))
        return "\n".join(output.text.splitlines()[-lines:])

    def look(self) -> Sequence[str]:
        """Return the program that submits."""
        return [f"submits with {shlex.split(self.submit_command)[0]}"]

    def _run(
        self, command: list[str], *, text: str = "", environment: Mapping[str, str] | None = None
    ) -> Output:
        output = run(command, launcher="The command template", text=text, environment=environment)
        if output.code == TRY_AGAIN:
            raise LauncherUnreachableError(f"{command[0]}: {output.error_text}; it is tried again")
        return output
