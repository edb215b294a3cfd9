"""TRL's process: started, logged, stopped on request, and the metrics that it saves."""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from training.contract import ContractError, read_metrics
from training.contract.log_lines import Blotter, secrets_of_environment
from training.rlhf.runtime.run_folder import RunFolder, log
from training.rlhf.runtime.stopping import StoppedError, StopRequest

STATE_FILE = "trainer_state.json"
_LOOK_SECONDS = 0.5
_LEAVE_SECONDS = 10.0
_TAIL = 12
_LONGEST_LINE = 500
_SAID_LOSS = re.compile(r"\{'(loss|grad_norm)':")
"""Start of the line that transformers prints after a step."""
_ERROR = re.compile(r"(?:\[rank0\]: )?(?:[\w.]+\.)?\w*(?:Error|Exception): ")
"""The line of a traceback that names the error. The first is the cause: the launcher's own follows."""
_NAMES = {
    "grad_norm": "gradient_norm",
    "rewards/accuracies": "accuracy",
    "rewards/margins": "margin",
    "rewards/chosen": "reward_chosen",
    "rewards/rejected": "reward_rejected",
    "completions/mean_length": "length",
    "completions/clipped_ratio": "unfinished",
    "num_tokens": "tokens",
}
"""Rondo's names of TRL's metrics; the others keep theirs, with _ for what is no letter."""
_OF_THE_WHOLE = re.compile(r"train_loss|total_flos|(train|eval)_(runtime|\w+_per_second)")


class TrlProcess:
    """One start of TRL's command line in its working folder."""

    def __init__(self, folder: RunFolder, work: Path, output: Path, *, steps: int, stop: StopRequest) -> None:
        """output: the folder that TRL saves into. steps: of the whole run."""
        self._folder = folder
        self._work = work
        self._output = output
        self._steps = steps
        self._stop = stop
        saved = last_save(output)
        self._step = 0 if saved is None else step_of(saved)
        self._recorded = max((row["step"] for row in read_metrics(folder.path)), default=0)
        self._tail: deque[str] = deque(maxlen=_TAIL)
        self._error = ""
        self._blot = Blotter(secrets_of_environment())

    def run(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        """Run to the end. Raises `StoppedError` once asked to stop, `ContractError` where TRL fails."""
        process = subprocess.Popen(
            list(command),
            cwd=self._work,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        reader = threading.Thread(target=self._read, args=(process,), name="trl", daemon=True)
        reader.start()
        try:
            code = self._watch(process)
        finally:
            _end(process)
            reader.join(_LEAVE_SECONDS)
        self._record()
        if code != 0:
            output = self._error or "; ".join(self._tail)[-1500:] or "nothing"
            raise ContractError(f"TRL ended with status {code}. It said: {output}")

    def _watch(self, process: subprocess.Popen[str]) -> int:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(_LOOK_SECONDS)
            if self._stop.reason:
                _end(process)
                self._record()
                raise StoppedError(self._stop.reason)
            self._record()
            self._folder.tell("running", "TRL is training", step=self._step, total_steps=self._steps)

    def _read(self, process: subprocess.Popen[str]) -> None:
        """Copy TRL's output into the log, and count the steps in it."""
        for line in process.stdout or ():
            text = self._blot(line.strip())[:_LONGEST_LINE]
            if not text:
                continue
            self._tail.append(text)
            if _ERROR.match(text) and not self._error:
                self._error = text
            log.info("TRL: %s", text)
            self._step = min(self._step + bool(_SAID_LOSS.match(text)), self._steps)

    def _record(self) -> None:
        """Write down the metrics of the steps that TRL has saved since the last time."""
        saved = last_save(self._output)
        if saved is None:
            return
        for step, figures in sorted(metrics_of(read_state(saved)).items()):
            if step > self._recorded:
                self._folder.record({"step": step, "skipped": 0, **figures})
                self._recorded = step


def _end(process: subprocess.Popen[str]) -> None:
    """End TRL and all processes that it has started; nothing happens once it has ended."""
    if process.poll() is not None:
        return
    # By psutil, which never takes another process with the same number for one of these.
    with suppress(psutil.NoSuchProcess):
        started = psutil.Process(process.pid)
        family = [started, *started.children(recursive=True)]
        for number in (signal.SIGTERM, signal.SIGKILL):
            for member in family:
                with suppress(psutil.NoSuchProcess):
                    member.send_signal(number)
            _, family = psutil.wait_procs(family, timeout=_LEAVE_SECONDS)
    process.wait()


def last_save(output: Path) -> Path | None:
    """Return the newest whole save of TRL; None before the first. One that was broken off is passed over."""
    for folder in sorted(output.glob("checkpoint-*"), key=step_of, reverse=True):
        # It is written last.
        with suppress(ContractError):
            read_state(folder)
            return folder
    return None


def step_of(save: Path) -> int:
    """Return the number of steps before a save."""
    number = save.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1


def read_state(save: Path) -> dict[str, Any]:
    """Return `trainer_state.json` of a save. Raises `ContractError` where it is missing or not whole."""
    path = save / STATE_FILE
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(state["log_history"], list) and isinstance(state["global_step"], int):
            return dict(state)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ContractError(f"{path}: TRL's state cannot be read ({error})") from None
    raise ContractError(f"{path}: TRL's state cannot be read")


def metrics_of(state: Mapping[str, Any]) -> dict[int, dict[str, float]]:
    """Return the figures of each step in TRL's log history, under Rondo's names."""
    steps: dict[int, dict[str, float]] = {}
    for entry in state["log_history"]:
        step = int(entry.get("step", 0))
        for name, value in entry.items():
            if name != "step" and not _OF_THE_WHOLE.fullmatch(name) and isinstance(value, int | float):
                steps.setdefault(step, {})[name_of(name)] = float(value)
    return {step: figures for step, figures in steps.items() if step > 0 and figures}


def name_of(name: str) -> str:
    """Return Rondo's name of a metric of TRL's: `eval_rewards/margins` is `held_out_margin`."""
    plain = name.removeprefix("eval_")
    rondo_name = _NAMES.get(plain, re.sub(r"\W+", "_", plain))
    return f"held_out_{rondo_name}" if plain != name else rondo_name


def held_out_of(state: Mapping[str, Any], step: int) -> dict[str, float]:
    """Return the held-out figures of the last evaluation at or before a step; none without one."""
    evaluated = {
        number: {name: value for name, value in figures.items() if name.startswith("held_out_")}
        for number, figures in metrics_of(state).items()
        if number <= step
    }
    numbers = [number for number, figures in evaluated.items() if figures]
    last = evaluated[max(numbers)] if numbers else {}
    return {name: value for name, value in last.items() if math.isfinite(value)}


def remove_broken_saves(output: Path) -> None:
    """Remove what a killed TRL left half written."""
    whole = last_save(output)
    for folder in output.glob("checkpoint-*"):
        if whole is None or step_of(folder) > step_of(whole):
            shutil.rmtree(folder, ignore_errors=True)
