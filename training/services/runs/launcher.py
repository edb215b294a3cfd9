"""Processes of this host: a trainer is started and watched; which run holds which GPU."""

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psutil
from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models.functions import Now
from django.utils.translation import gettext as _

from annotation.errors import Refusal, Unavailable
from training.contract import ContractError
from training.contract.log_lines import tail
from training.contract.methods.policy import PolicyGradientSettings
from training.contract.run import (
    CANCEL_FILE,
    EXIT_FINISHED,
    EXIT_STOPPED,
    OUTPUT_FILE,
    REWARD_KEY_VARIABLE,
    REWARD_URL_VARIABLE,
    RunSpec,
    RunStatus,
    read_spec,
    read_status,
)
from training.models import GpuLease, Run, Worker
from training.services.jobs import gpus

# ── Trainer processes ──
#
# The trainer's standard input is a pipe that this process holds open. When this process
# dies, however it dies, the pipe closes, and the trainer saves its state and stops.


logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.2
_LEAVE_AFTER_CANCEL_SECONDS = 180.0
_LOCK_WAIT_SECONDS = 300
"""An earlier trainer of the same folder may still finish its step and save."""
_DEATHS_WITHOUT_PROGRESS = 3
"""Killed so often in a row without having come further, a trainer is not started again: it may want too much
memory, and then it dies each time at the same place."""
_INHERITED = (
    "PATH",
    "HOME",
    "LANG",
    "TZ",
    "TMPDIR",
    "TEMP",
    "USER",
    "LOGNAME",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "DYLD_LIBRARY_PATH",
    "SSL_CERT_FILE",
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
    "TOKENIZERS_PARALLELISM",
)
_OF_REWARDS = ("RONDO_REWARD_FUNCTIONS", "RONDO_JUDGE_URL", "RONDO_JUDGE_KEY")
"""Variables that `training.rlhf.rewards.combination` asks of the machine's owner, one key among them."""
_OF_SERVED_REWARDS = (REWARD_URL_VARIABLE, REWARD_KEY_VARIABLE)
"""Variables that a reward of kind `served` asks of them, one key among them."""
_OF_ROLLOUTS = ("RONDO_ROLLOUT_URL", "RONDO_ROLLOUT_KEY", "RONDO_ROLLOUT_FOLDER")
"""Variables that `training.rlhf.policy_gradient.rollout_servers` asks of them, one key among them."""
_OF_ENVIRONMENTS = ("RONDO_ENVIRONMENT_URL",)
"""Variable that `training.rlhf.environments` asks of them."""
_OF_TEACHERS = ("RONDO_TEACHER_URL", "RONDO_TEACHER_KEY")
"""Variables that `training.rlhf.policy_gradient.teacher` asks of them, one key among them."""
_NAMED = frozenset(
    {*_INHERITED, *_OF_REWARDS, *_OF_SERVED_REWARDS, *_OF_ROLLOUTS, *_OF_ENVIRONMENTS, *_OF_TEACHERS}
)
_INHERITED_PREFIXES = (
    "LC_",
    "PYTHON",
    "OMP_",
    "MKL_",
    "KMP_",
    "OPENBLAS_",
    "TORCH",
    "PYTORCH_",
    "CUDA_",
    "NVIDIA_",
    "NCCL_",
    "XDG_",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerExit:
    """Exit of a trainer."""

    code: int
    status: RunStatus | None
    """The last status that this very process wrote; None if it wrote none."""
    output_tail: str
    reason: str = ""
    """Reason for its end and what to do, where a cluster knows; else see the status and the output."""

    @property
    def finished(self) -> bool:
        """Return whether `checkpoint/` exists."""
        return self.code == EXIT_FINISHED

    @property
    def stopped(self) -> bool:
        """Return whether state was saved on request: the same folder can be started again."""
        return self.code == EXIT_STOPPED

    @property
    def killed(self) -> bool:
        """Return whether a signal ended it before it could save, sent by the system or a person."""
        return self.code < 0

    @property
    def message(self) -> str:
        """Return the reason of its end, for people."""
        if self.status and self.status.message and self.status.state == "failed":
            return self.status.message
        if self.reason:
            return self.reason
        if self.killed:
            return (
                f"The trainer was killed by signal {-self.code}, again and again. If the machine ran out of "
                "memory, lower micro_batch_tokens or max_tokens in the recipe; otherwise start again: "
                "training goes on from the last saved step."
            )
        return f"The trainer ended with status {self.code}. It said last: {self.output_tail or 'nothing'}"


def run_trainer(
    folder: Path, *, watch: Callable[[RunStatus | None], bool], gpus: Sequence[int] | None = None
) -> TrainerExit:
    """Start or resume the run in `folder` and stay until its trainer ends.

    `watch` is called several times a second with the latest status; once it returns True
    the trainer is asked to save and stop. When `watch` raises, the trainer is asked to save
    and stop too, is not waited for, and the exception goes on: the run's own lock keeps the
    next trainer of this folder waiting until this one has ended.

    One that is killed by a signal is started again and goes on from the last saved step, unless it was asked
    to stop or dies three times in a row without coming further. gpus: those of this machine that it sees;
    None leaves it as it is.
    """
    (folder / CANCEL_FILE).unlink(missing_ok=True)
    furthest = deaths = 0
    while True:
        ending, was_asked_to_stop = _run_once(folder, watch, gpus)
        reached = ending.status.step if ending.status else 0
        deaths = 1 if reached > furthest else deaths + 1
        furthest = max(furthest, reached)
        if not ending.killed or was_asked_to_stop or deaths >= _DEATHS_WITHOUT_PROGRESS:
            return ending
        logger.warning(
            "%s: killed by signal %d at step %d; started again", folder.name, -ending.code, reached
        )


def _run_once(
    folder: Path, watch: Callable[[RunStatus | None], bool], gpus: Sequence[int] | None
) -> tuple[TrainerExit, bool]:
    """Run one trainer to its end; return its exit, and whether it was asked to stop."""
    spec = read_spec(folder)
    processes = spec.processes
    started_at = time.time()
    asked_to_stop: float | None = None
    with (folder / OUTPUT_FILE).open("wb") as output:
        process = subprocess.Popen(
            [
                *trainer_command(processes),
                str(folder),
                "--stop-with-parent",
                f"--wait-for-lock={_LOCK_WAIT_SECONDS}",
            ],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=settings.BASE_DIR,
            env=trainer_environment(reward_server(spec) | os.environ) | devices_of(gpus),
            # Ctrl-C in the terminal reaches the worker alone; the trainer learns of it by the pipe.
            start_new_session=True,
        )
    assert process.stdin is not None  # noqa: S101 - asked for above
    with process.stdin:
        while process.poll() is None:
            if watch(_fresh_status(folder, started_at)) and asked_to_stop is None:
                (folder / CANCEL_FILE).touch()
                asked_to_stop = time.monotonic()
            if asked_to_stop is not None and time.monotonic() - asked_to_stop > _LEAVE_AFTER_CANCEL_SECONDS:
                _kill(process)
            _wait(process, _POLL_SECONDS)
    status = _fresh_status(folder, started_at)
    ending = TrainerExit(
        code=_code_of(process.returncode, processes, status, was_asked_to_stop=asked_to_stop is not None),
        status=status,
        output_tail=tail(folder / OUTPUT_FILE, lines=5),
    )
    return ending, asked_to_stop is not None


def trainer_command(processes: int) -> list[str]:
    """Return the command that starts a trainer, or several that find each other by torchrun."""
    if processes == 1:
        return [*settings.RONDO_TRAINER_COMMAND]
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(processes),
    ]
    return [*torchrun, "--no-python", *settings.RONDO_TRAINER_COMMAND]


def _code_of(code: int, processes: int, status: RunStatus | None, *, was_asked_to_stop: bool) -> int:
    """Return the exit status of a run: torchrun returns 1 for every end but success.

    Processes that stopped unasked have lost one of their own, which the system killed.
    """
    if processes == 1 or code <= 0 or (status is not None and status.state == "failed"):
        return code
    if was_asked_to_stop:
        return EXIT_STOPPED
    return -signal.SIGKILL if status is not None else code


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a trainer that does not stop, and with torchrun those that it has started."""
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()


def trainer_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a trainer's environment: threads, devices, library paths, and the keys of the judge and of the
    servers that draw and score answers.

    Threads that wait sleep instead of spinning: the model server and the web process share
    these cores, and beside another busy process spinning costs both a multiple of their time.
    """
    inherited = {
        name: value
        for name, value in environment.items()
        if name in _NAMED or name.startswith(_INHERITED_PREFIXES)
    }
    return {"OMP_WAIT_POLICY": "PASSIVE", **inherited}


def reward_server(spec: RunSpec) -> dict[str, str]:
    """Return the variables by which a trainer on this machine asks Rondo's model server for scores.

    Empty for a run that asks no server, which needs no key of it, and where the environment names another
    server, whose key is not this one.
    """
    if not isinstance(spec.settings, PolicyGradientSettings) or REWARD_URL_VARIABLE in os.environ:
        return {}
    if all(part.kind != "served" for part in spec.settings.rewards_of_all):
        return {}
    return {
        REWARD_URL_VARIABLE: settings.RONDO_MODEL_SERVER_URL,
        REWARD_KEY_VARIABLE: settings.RONDO_MODEL_SERVER_KEY,
    }


def devices_of(gpus: Sequence[int] | None) -> dict[str, str]:
    """Return the variables by which a trainer sees these GPUs and no others."""
    if gpus is None:
        return {}
    # By the order of nvidia-smi, which numbers them.
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))}


def _fresh_status(folder: Path, started_at: float) -> RunStatus | None:
    try:
        status = read_status(folder)
    except ContractError:
        return None
    return status if status and status.updated_at >= started_at else None


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return


# ── Child processes of a job, run to their end with heartbeats ──


_CHILD_POLL_SECONDS = 0.5
_MOST_CHARACTERS = 2000
_MOST_BYTES = 64 * 1024**2
TIMED_OUT = 124
"""The code of a process that was killed because it took too long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A process that has ended."""

    code: int
    output: str
    last_line: str
    """The last line that it wrote to stderr, shortened; empty where it wrote none."""


def run_process(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    beat: Callable[[], object],
    seconds: float | None = None,
) -> Ended:
    """Run a command; `beat` is called until it ends, and may raise, which kills it and what it started.

    With `seconds` a process that takes longer is killed, too: it ends with `TIMED_OUT` and says so. Of the
    output a bounded part is read.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            cwd=settings.BASE_DIR,
            env=dict(environment),
            start_new_session=True,
        )
        deadline = None if seconds is None else time.monotonic() + seconds
        try:
            while True:
                beat()
                if deadline is not None and time.monotonic() > deadline:
                    return Ended(
                        code=TIMED_OUT, output="", last_line=f"it took more than {seconds:.0f} seconds"
                    )
                try:
                    process.wait(timeout=_CHILD_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    continue
        finally:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        errors.seek(0)
        error_text = errors.read(_MOST_BYTES).decode("utf-8", errors="replace").strip()
        return Ended(
            code=process.returncode,
            output=output.read(_MOST_BYTES).decode("utf-8", errors="replace"),
            last_line=error_text.splitlines()[-1].strip()[:_MOST_CHARACTERS] if error_text else "",
        )


def refuse_failed(status: int, output: str) -> None:
    """Refuse what a process that ended with this status should do, with the last line that it wrote."""
    if status == 0:
        return
    if lines := output.strip().splitlines():
        raise Refusal("process_failed", f"{lines[-1][:1].upper()}{lines[-1][1:]}")
    raise Refusal("process_failed", _("The process ended with status %(status)d."), status=status)


# ── Leases of GPUs: which run trains on which GPU of which host ──


def visible_gpus() -> list[int]:
    """Return the numbers of this host's GPUs that the worker may use: CUDA_VISIBLE_DEVICES limits them."""
    here = [int(gpu["index"]) for gpu in gpus()]
    limit = os.environ.get("CUDA_VISIBLE_DEVICES")
    if limit is None:
        return here
    allowed = {part.strip() for part in limit.split(",")}
    return [index for index in here if str(index) in allowed]


@contextmanager
def leased_gpus(run: Run, *, processes: int, requested: int | None) -> Iterator[list[int] | None]:
    """Hold GPUs for a run on this host; None where it trains without any.

    requested: GPUs; None takes one for each process where the host has some. Raises `Refusal` where neither
    this host nor another worker's has as many, and `Unavailable` while they are in use.
    """
    here = visible_gpus()
    count = (processes if here else 0) if requested is None else requested
    if not count:
        yield [] if here else None
        return
    if count > len(here):
        raise _too_few(count, len(here))
    indices = _take(run, here, count)
    try:
        yield indices
    finally:
        GpuLease.objects.filter(run=run, worker=run.worker).delete()


def renew(run: Run) -> None:
    """Say that the run's GPUs are still in use; part of its heartbeat."""
    GpuLease.objects.filter(run=run, worker=run.worker).update(heartbeat_at=Now())


def forget_silent() -> None:
    """Delete leases whose worker has been silent for `RONDO_STALE_SECONDS`."""
    GpuLease.objects.filter(heartbeat_at__lt=Now() - timedelta(seconds=settings.RONDO_STALE_SECONDS)).delete()


def _take(run: Run, here: list[int], count: int) -> list[int]:
    """Write a row for each GPU; the constraint decides between two workers that want the same."""
    host = socket.gethostname()
    forget_silent()
    # An earlier worker of this run is dead or has lost its claim.
    GpuLease.objects.filter(run=run).delete()
    indices: list[int] = []
    with transaction.atomic():
        for gpu in here:
            if len(indices) == count:
                break
            if _take_one(run, host, gpu):
                indices.append(gpu)
        if len(indices) < count:
            transaction.set_rollback(True)
    if len(indices) < count:
        raise _all_in_use(host, count, len(indices))
    return indices


def _take_one(run: Run, host: str, gpu: int) -> bool:
    for slot in range(settings.RONDO_JOBS_PER_GPU):
        try:
            with transaction.atomic():
                GpuLease.objects.create(
                    host=host, gpu=gpu, slot=slot, run=run, worker=run.worker, heartbeat_at=Now()
                )
        except IntegrityError:
            continue
        return True
    return False


def _all_in_use(host: str, count: int, free: int) -> Unavailable:
    holders = GpuLease.objects.filter(host=host).values_list("run__name", flat=True)
    return Unavailable(
        "waiting_for_gpus",
        _("waiting for GPUs of %(host)s: %(count)d needed, %(free)d free; the others train %(runs)s"),
        count=count,
        host=host,
        free=free,
        runs=", ".join(sorted(set(holders))) or "–",
    )


def _too_few(count: int, here: int) -> Refusal:
    """Return the refusal, or where another worker has enough the word to wait for it."""
    live = Worker.objects.filter(heartbeat_at__gte=Now() - timedelta(seconds=settings.RONDO_STALE_SECONDS))
    most = max((len(worker.machine.get("gpus") or ()) for worker in live), default=0)
    if most >= count:
        return Unavailable(
            "waiting_for_gpus",
            _("waiting for a worker with %(count)d GPUs: this one has %(here)d"),
            count=count,
            here=here,
        )
    return Refusal(
        "too_few_gpus",
        _(
            "The recipe asks for %(count)d GPUs on one machine, one for each process, and the largest has "
            "%(most)d: lower processes or gpus under compute, or choose a cluster as launcher."
        ),
        count=count,
        most=max(here, most),
    )
