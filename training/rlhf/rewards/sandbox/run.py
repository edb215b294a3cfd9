"""Starts a sandboxed process, feeds it a program and a test, and returns the outcome.

What holds on Linux (x86-64, ARM64), without root and without any tool installed:

- no network, no other process reached or started, no program executed, nothing of the machine's
  settings changed: a seccomp filter (`system_calls.py`)
- files: with Landlock (Linux 6.2, not turned off) only Python's own can be read; without it all that the
  account may read, though it can be sent nowhere. Nothing can be written, unless `Limits.write_files`
  allows it, with Landlock alone, in a folder of the program's own
- processor time, memory, size of a file, open files: resource limits; wall-clock time: it is killed
- threads are bounded by memory, not by number

Elsewhere (macOS) only times and sizes are bounded: `isolation` reports it, and `run_program` refuses
unless `trust` is set. It is no virtual machine: a hole in the kernel is a hole
here, so for programs of a hostile author add one.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import secrets
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from training.rlhf.rewards.sandbox.system_calls import MACHINES, seccomp_filter

_CHILD = Path(__file__).with_name("child.py")
_LANDLOCK_CREATE_RULESET = 444
# Earlier versions let a program truncate files that it cannot write.
_LANDLOCK_VERSION = 3
_OUTPUT_BYTES = 1024**2

End = Literal["passed", "failed", "time", "output"]


class SandboxError(RuntimeError):
    """The machine cannot isolate a program, and `trust` is not set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Resource limits of one run."""

    cpu_seconds: int = 5
    wall_seconds: float = 10.0
    memory_bytes: int = 512 * 1024**2
    """Address space, Python's own 30 MB and every thread's stack (8 MB) included."""
    file_bytes: int = 16 * 1024**2
    """Most bytes of its output, and of each file that it writes."""
    open_files: int = 64
    write_files: bool = False
    """True if it has a folder to write to, where Landlock holds it there. Each file is bounded then,
    but not their number: in its few seconds a program can fill a disk."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """Isolation available on this host."""

    system_calls: bool
    """No network, no other processes, nothing of the machine."""
    files: bool
    """Landlock: reads nothing but Python, and can be held to one folder for writing."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one run."""

    end: End
    """passed: the test (or, without one, the program) ran to its end. failed: it raised, left
    early or was killed by a limit. time: by the clock. output: it printed too much."""
    output: str
    """Text that it printed to standard output; its first 1 MiB."""


@cache
def isolation() -> Isolation:
    """Return the isolation that the kernel supports here."""
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        return Isolation(system_calls=False, files=False)
    libc = ctypes.CDLL(None, use_errno=True)
    prctl_get_seccomp = 21
    return Isolation(
        system_calls=libc.prctl(prctl_get_seccomp, 0, 0, 0, 0) >= 0,
        files=libc.syscall(_LANDLOCK_CREATE_RULESET, None, 0, 1) >= _LANDLOCK_VERSION,
    )


def run_program(
    program: str,
    *,
    test: str | None = None,
    stdin: str = "",
    limits: Limits | None = None,
    trust: bool = False,
) -> Outcome:
    """Run Python source in a process of its own, then, in the same process, a test of it.

    stdin: what the program reads from standard input. The process starts with an empty
    environment, in an empty folder that is deleted afterwards, with the standard library alone.
    The test is not in the process while the program runs, and must run to its end; a program
    that leaves early, prints "passed" or reads its own source has not passed. It could still
    cheat an assertion from within (an object that equals everything): where that matters,
    compare its output instead. trust: run even where nothing holds it in.

    Raises `SandboxError` where the machine cannot hold it in.
    """
    holds = isolation()
    if not holds.system_calls and not trust:
        raise SandboxError(
            "this machine cannot keep a program from network and files (Linux on x86-64 or ARM64 can); "
            "run it in a virtual machine and set trust, or leave unit tests out of the rewards"
        )
    limits = limits or Limits()
    token = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="rondo-program-") as folder, tempfile.TemporaryFile() as sent:
        lines = [_message(program, stdin, limits, holds, folder)]
        lines += [{"test": test, "token": token}] if test is not None else []
        sent.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        sent.seek(0)
        with tempfile.TemporaryFile() as printed:
            code = _run(folder, sent, printed, limits)
            size = printed.seek(0, os.SEEK_END)
            printed.seek(0)
            output = printed.read(_OUTPUT_BYTES)
            printed.seek(max(0, size - len(token)))
            ending = printed.read()
    if code is None:
        return Outcome("time", _text(output))
    if size >= limits.file_bytes:
        return Outcome("output", _text(output))
    confirmed = test is None or ending == token.encode()
    text = _text(output)
    return Outcome("passed" if code == 0 and confirmed else "failed", text.removesuffix(token))


def _message(program: str, stdin: str, limits: Limits, holds: Isolation, folder: str) -> dict[str, Any]:
    filtered = b""
    may_write = holds.files and limits.write_files
    if holds.system_calls:
        filtered = seccomp_filter(MACHINES[platform.machine()], may_write=may_write)
    return {
        "program": program,
        "input": stdin,
        "linux": holds.system_calls,
        "landlock": holds.files,
        "filter": filtered.hex(),
        "readable": [folder, sys.base_prefix, "/usr/lib", "/lib", "/lib64", "/dev/urandom", "/dev/null"],
        "writable": [folder] if may_write else [],
        "limits": {
            "CPU": limits.cpu_seconds,
            "AS": limits.memory_bytes,
            "FSIZE": limits.file_bytes,
            "NOFILE": limits.open_files,
            "CORE": 0,
            # It would forbid threads too, which a filter tells from processes.
            **({} if holds.system_calls else {"NPROC": 0}),
        },
    }


def _run(folder: str, sent: Any, printed: Any, limits: Limits) -> int | None:
    """Return the exit code; None where the clock ran out."""
    process = subprocess.Popen(
        # -I: no environment, no user's packages, no current folder to import from. -S: no site's packages.
        [sys.executable, "-I", "-S", "-B", str(_CHILD)],
        stdin=sent,
        stdout=printed,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={},
        start_new_session=True,
    )
    try:
        return process.wait(limits.wall_seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _text(output: bytes) -> str:
    return output.decode(errors="replace")
