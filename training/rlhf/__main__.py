"""Train the run in a folder: `python -m training.rlhf RUN_DIR`.

Needs nothing but the folder and what its `spec.json` names; goes on from the last saved step;
starts unchanged under `torchrun` and `accelerate launch`. Exit status: 0 finished, 1 failed
(`status.json` and `log.txt` say why), 3 stopped on request with its state saved.

`--status` trains nothing: it prints whether the run waits, runs, was interrupted (its trainer was killed),
stopped, failed or finished. Exit status then: 0 running or finished, 1 failed, 3 can be started.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import sys
from pathlib import Path

from training.contract import ContractError
from training.contract.run import EXIT_FAILED, EXIT_FINISHED, EXIT_STOPPED, SPEC_FILE, report_of
from training.rlhf.runtime.stopping import StopRequest

# ── Settings of the C library's memory allocation for training ──

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""Numbers of `mallopt` in glibc's malloc.h."""
_NEVER = 2**31 - 1
_LARGE_BYTES = 32 * 1024 * 1024
"""The largest that glibc takes. With larger ones on the heap too, a run grew from 3 to 6 GB: they
leave holes."""
_PAD_BYTES = 64 * 1024 * 1024


def keep_freed_memory() -> bool:
    """Keep what tensors below 32 MB leave free for the next ones, until the process ends; whether that could
    be set.

    glibc asks the system again for every such tensor, and every page of it is filled with zeros at its
    first touch: a tenth of a training step on a CPU. Elsewhere than on glibc nothing changes, and nothing
    does where the environment says how memory is to be handed out (`MALLOC_…_`, `GLIBC_TUNABLES`).
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    try:
        library = ctypes.CDLL("libc.so.6")
        library.gnu_get_libc_version()
        settings = {_MMAP_THRESHOLD: _LARGE_BYTES, _TRIM_THRESHOLD: _NEVER, _TOP_PAD: _PAD_BYTES}
        accepted = [library.mallopt(name, value) == 1 for name, value in settings.items()]
        return all(accepted)
    except (OSError, AttributeError):
        return False


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
