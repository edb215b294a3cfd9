"""Starts a trainer as a process of its own and watches it. Knows folders, no database.

The trainer's standard input is a pipe that this process holds open. When this process
dies, however it dies, the pipe closes, and the trainer saves its state and stops.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from django.conf import settings

from training.contract import (
    CANCEL_FILE,
    EXIT_FINISHED,
    EXIT_STOPPED,
    OUTPUT_FILE,
    ContractError,
    PolicyGradientSettings,
    RunSpec,
    RunStatus,
    read_spec,
    read_status,
)
from training.contract.log_lines import tail
from training.contract.run import REWARD_KEY_VARIABLE, REWARD_URL_VARIABLE

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
"""Variables that `training.rlhf.rewards.from_settings` asks of the machine's owner, one key among them."""
_OF_SERVED_REWARDS = (REWARD_URL_VARIABLE, REWARD_KEY_VARIABLE)
"""Variables that a reward of kind `served` asks of them, one key among them."""
_OF_ROLLOUTS = ("RONDO_ROLLOUT_URL", "RONDO_ROLLOUT_KEY", "RONDO_ROLLOUT_FOLDER")
"""Variables that `training.rlhf.policy_gradient.rollout_servers` asks of them, one key among them."""
_NAMED = frozenset({*_INHERITED, *_OF_REWARDS, *_OF_SERVED_REWARDS, *_OF_ROLLOUTS})
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
