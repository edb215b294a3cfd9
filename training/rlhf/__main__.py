"""Train the run in a folder: `python -m training.rlhf RUN_DIR`.

Needs nothing but the folder and what its `spec.json` names; goes on from the last saved step;
starts unchanged under `torchrun` and `accelerate launch`. Exit status: 0 finished, 1 failed
(`status.json` and `log.txt` say why), 3 stopped on request with its state saved.

`--status` trains nothing: it prints whether the run waits, runs, was interrupted (its trainer was killed),
stopped, failed or finished. Exit status then: 0 running or finished, 1 failed, 3 can be started.
"""

from __future__ import annotations

import argparse
import gc
import sys
from pathlib import Path

from training.contract import EXIT_FAILED, EXIT_FINISHED, EXIT_STOPPED, SPEC_FILE, ContractError, report_of
from training.rlhf.runtime.allocation import keep_freed_memory
from training.rlhf.runtime.stopping import StopRequest

_LOCK_WAIT_SECONDS = 30.0


def main() -> int:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(
        prog="python -m training.rlhf", description="Train the run in a folder, or go on with it."
    )
    parser.add_argument("run_folder", type=Path, metavar="RUN_DIR", help="folder that holds spec.json")
    parser.add_argument(
        "--stop-with-parent",
        action="store_true",
        help="save and stop when standard input ends, as it does when the process that holds it dies",
    )
    parser.add_argument(
        "--wait-for-lock",
        type=float,
        default=_LOCK_WAIT_SECONDS,
        metavar="SECONDS",
        help="how long to wait for another trainer of this folder to end (default: %(default)s)",
    )
    parser.add_argument(
        "--status",
        action="store_true",
        help="print the state of the run and end: a run whose trainer was killed is shown as interrupted",
    )
    arguments = parser.parse_args()
    if arguments.status:
        return print_status(arguments.run_folder.resolve())
    keep_freed_memory()
    folder = arguments.run_folder.resolve()
    stop = StopRequest(folder)
    stop.listen_to_signals()
    if arguments.stop_with_parent:
        stop.listen_to_parent()
    return _train(folder, stop, arguments.wait_for_lock)


def _train(folder: Path, stop: StopRequest, lock_wait_seconds: float) -> int:
    """Load torch and train. Nothing that is loaded is ever freed, so that no search for rubbish goes through
    it: half a second less to the first step."""
    gc.disable()
    from training.rlhf.train import train_run

    gc.freeze()
    gc.enable()
    return train_run(folder, stop=stop, lock_wait_seconds=lock_wait_seconds)


def print_status(folder: Path) -> int:
    """Print the state of the run in one line; the exit status for the process."""
    try:
        if not (folder / SPEC_FILE).is_file():
            raise ContractError(f"{folder}: this is no run folder, {SPEC_FILE} is missing")
        report = report_of(folder)
    except ContractError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_FAILED
    sys.stdout.write(f"{report.sentence}\n")
    if report.state in ("waiting", "interrupted", "stopped"):
        return EXIT_STOPPED
    return EXIT_FAILED if report.state == "failed" else EXIT_FINISHED


if __name__ == "__main__":
    sys.exit(main())
