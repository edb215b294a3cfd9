"""Slurm: jobs by `sbatch`, looked at by `squeue` and `sacct`, ended by `scancel`."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from training.contract.log_lines import tail
from training.launchers.commands import Output, run
from training.launchers.node_command import node_command, run_folder
from training.launchers.protocol import (
    Job,
    JobReport,
    JobState,
    LauncherError,
    LauncherUnreachableError,
    Place,
)

_STATES: dict[str, JobState] = {
    "PENDING": "waiting",
    "CONFIGURING": "waiting",
    "REQUEUED": "waiting",
    "REQUEUE_HOLD": "waiting",
    "SUSPENDED": "waiting",
    "RESV_DEL_HOLD": "waiting",
    "SPECIAL_EXIT": "waiting",
    "RUNNING": "running",
    "COMPLETING": "running",
    "RESIZING": "running",
    "SIGNALING": "running",
    "STAGE_OUT": "running",
    "STOPPED": "running",
    "COMPLETED": "ended",
    "FAILED": "ended",
    "NODE_FAIL": "ended",
    "BOOT_FAIL": "ended",
    "PREEMPTED": "ended",
    "TIMEOUT": "ended",
    "REVOKED": "ended",
    "CANCELLED": "cancelled",
    "OUT_OF_MEMORY": "failed",
    "DEADLINE": "failed",
}
"""Every state of `squeue` and `sacct` (JOB STATE CODES in their manual)."""
_AWAY = re.compile(
    r"unable to contact|connection refused|communication connection failure|connection timed out|"
    r"zero bytes were transmitted|socket timed out|DNS SRV lookup failed|configuration source|munge",
    re.I,
)
_NO_SUCH_JOB = re.compile(r"invalid job id", re.I)
_OUTPUT = "slurm-%j.txt"
_ADDRESS = """\
# The first node of the allocation, by the address at which Slurm reaches it.
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(scontrol --oneliner show node "$first" | sed -n "s/.* NodeAddr=\\([^ ]*\\).*/\\1/p")
port=$((20000 + SLURM_JOB_ID % 10000))"""


@dataclass(frozen=True, slots=True)
class Slurm:
    """The Slurm cluster that this machine's commands belong to."""

    place: Place
    options: tuple[str, ...] = ()
    """More options of `sbatch`, such as `--account=x`."""
    name: str = "slurm"

    def script(self, job: Job) -> str:
        """Return the script that `sbatch` gets."""
        wants = job.resources
        headers = [f"--job-name={job.name}", f"--nodes={wants.nodes}", "--ntasks-per-node=1", "--no-requeue"]
        if wants.gpus:
            headers.append(f"--gpus-per-node={wants.gpus}")
        if wants.memory_gb is not None:
            headers.append(f"--mem={math.ceil(wants.memory_gb * 1024)}M")
        if wants.hours is not None:
            headers.append(f"--time={max(1, math.ceil(wants.hours * 60))}")
        if wants.queue:
            headers.append(f"--partition={wants.queue}")
        headers += [f"--chdir={self.place.code}", f"--output={self._output(job)}", *self.options]
        command = [*node_command(job, self.place), "--rank-from", "SLURM_NODEID", "--master"]
        return "\n".join(
            [
                "#!/bin/bash",
                *(f"#SBATCH {shlex.quote(header)}" for header in headers),
                "set -eu",
                _ADDRESS,
                f'exec srun --wait=0 --kill-on-bad-exit=0 {shlex.join(command)} "${{address:-$first}}:$port"',
                "",
            ]
        )

    def submit(self, job: Job) -> str:
        """Hand the script to `sbatch` by its standard input; return the job's number."""
        # Names alone are on the command line, where others can see it.
        names = ",".join(["PATH", *sorted(job.environment)]) if job.environment else "PATH"
        output = self._run(
            ["sbatch", "--parsable", f"--export={names}"], text=self.script(job), environment=job.environment
        )
        handle = output.text.strip().partition(";")[0]
        if output.code != 0 or not handle.isdecimal():
            raise LauncherError(
                f"Slurm refused the job: {output.error_text}. Change compute in the recipe (queue, nodes, "
                "gpus, memory_gb, hours) or RONDO_SLURM_OPTIONS, and start again"
            )
        return handle

    def find(self, name: str) -> str | None:
        """Return the number of the job with this name."""
        output = self._run(["squeue", "--noheader", "--states=all", f"--name={name}", "--format=%i"])
        numbers = output.text.split() if output.code == 0 else []
        if not numbers and (rows := self._accounted(f"--name={name}", "JobID")):
            numbers = [rows[-1][0]]
        return numbers[-1] if numbers else None

    def poll(self, handle: str) -> JobReport:
        """Ask `squeue`, which forgets a job some minutes after its end, then `sacct`, which not all have."""
        output = self._run(["squeue", "--noheader", "--states=all", f"--jobs={handle}", "--format=%T|%r|%N"])
        if output.code != 0 and not _NO_SUCH_JOB.search(output.error):
            raise LauncherError(f"squeue failed: {output.error_text}")
        lines = [line for line in output.text.splitlines() if line.strip()]
        if output.code == 0 and lines:
            return _report(*[*lines[-1].split("|"), "", ""][:3])
        rows = self._accounted(f"--jobs={handle}", "State,Reason,NodeList")
        return _report(*rows[-1][:3]) if rows else JobReport(state="unknown")

    def cancel(self, handle: str) -> None:
        """End a job. Its trainers get SIGTERM and, after Slurm's KillWait, SIGKILL."""
        output = self._run(["scancel", "--quiet", handle])
        if output.code != 0 and not _NO_SUCH_JOB.search(output.error):
            raise LauncherError(f"scancel failed: {output.error_text}")

    def logs(self, handle: str, *, lines: int) -> str:
        """Return the end of the job's output, where its file is visible here."""
        if not self.place.shares_files:
            return ""
        files = sorted(Path(self.place.home).glob(f"runs/*/{_OUTPUT.replace('%j', handle)}"))
        return tail(files[-1], lines=lines) if files else ""

    def look(self) -> Sequence[str]:
        """Return a line for each partition: nodes by state, GPUs."""
        output = self._run(["sinfo", "--noheader", "--format=%R|%a|%F|%G|%l"])
        if output.code != 0:
            raise LauncherError(f"sinfo failed: {output.error_text}")
        partitions = []
        for line in output.text.splitlines():
            partition, available, nodes, gres, limit = (line.split("|") + [""] * 5)[:5]
            busy, idle, other, total = (nodes.split("/") + ["0"] * 4)[:4]
            has = "" if gres in ("", "(null)") else f", {gres} each"
            partitions.append(
                f"partition {partition} ({available}): {total} nodes, {busy} busy, {idle} idle, {other} "
                f"unavailable{has}, time limit {limit}"
            )
        return partitions

    def _output(self, job: Job) -> str:
        # Without a shared disk the folder does not exist before the job has fetched it.
        return f"{run_folder(job, self.place)}/{_OUTPUT}" if self.place.shares_files else f"{job.name}.txt"

    def _accounted(self, which: str, columns: str) -> list[list[str]]:
        """Return rows of `sacct`; none where the cluster keeps no accounts."""
        command = ["sacct", "--noheader", "--allocations", "--parsable2", which, f"--format={columns}"]
        try:
            output = self._run([*command, "--starttime=now-30days"])
        except LauncherError:
            return []
        return [line.split("|") for line in output.text.splitlines() if line] if output.code == 0 else []

    def _run(
        self, command: list[str], *, text: str = "", environment: Mapping[str, str] | None = None
    ) -> Output:
        output = run(command, launcher="Slurm", text=text, environment=environment)
        if output.code != 0 and _AWAY.search(output.error):
            raise LauncherUnreachableError(f"Slurm does not answer: {output.error_text}; it is tried again")
        return output


def _report(state: str, reason: str = "", nodes: str = "") -> JobReport:
    """Return a report from the columns of `squeue` or `sacct`: `CANCELLED by 0` is a state, too."""
    word = state.split()[0].rstrip("+") if state.split() else ""
    detail = "" if reason in ("", "None", "(null)") else reason
    where = tuple(part for part in (nodes,) if part and part not in ("(null)", "None assigned"))
    ended = _STATES.get(word, "unknown") not in ("waiting", "running")
    return JobReport(
        state=_STATES.get(word, "unknown"),
        reason=", ".join(part for part in (state if ended else "", detail) if part),
        nodes=where,
    )
