"""Runs a program that nobody has read: a model's answer to a programming task.

What holds on Linux (x86-64, ARM64), without root and without any tool installed:

- no network, no other process reached or started, no program executed, nothing of the machine's
  settings changed: a seccomp filter
- files: with Landlock (Linux 6.2, not turned off) only Python's own can be read; without it all that the
  account may read, though it can be sent nowhere. Nothing can be written, unless `Limits.write_files`
  allows it, with Landlock alone, in a folder of the program's own
- processor time, memory, size of a file, open files: resource limits; wall-clock time: it is killed
- threads are bounded by memory, not by number

Elsewhere (macOS) only times and sizes are bounded: `isolation` reports it, and `run_program` refuses
unless `trust` is set. It is no virtual machine: a hole in the kernel is a hole here, so for programs of a
hostile author add one.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import platform
import secrets
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NoReturn

# ── Seccomp filter of the system calls that a sandboxed program is denied. Linux on x86-64 and ARM64 ──
#
# A list of what is denied, not of what is allowed: the aim is that a program harms nothing outside itself
# (no network, no other process, no file), not that it cannot find out where it runs. The kernel keeps the
# filter on for good, for root too. Numbers are those of the kernel's `asm/unistd.h`; a call denied gives
# EPERM.

# linux/bpf_common.h and linux/seccomp.h: what a filter instruction may be, and what it may answer.
_LOAD, _JUMP_EQUAL, _JUMP_FROM, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE = 0, 4
_CLONE_THREAD = 0x00010000
# O_WRONLY, O_RDWR, O_CREAT and O_TRUNC; the same on both machines.
_OPEN_TO_WRITE = 0x1 | 0x2 | 0x40 | 0x200
# Calls of the x32 interface begin here: the same kernel functions under other numbers.
_X32 = 0x40000000


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One processor's numbers."""

    audit: int
    """AUDIT_ARCH_…, by which a filter recognises the caller's architecture."""
    clone: int
    clone3: int
    openat: int
    openat2: int
    prlimit: int
    open: int | None
    """ARM64 has no plain `open`."""
    denied: tuple[int, ...]
    """Network, other processes, the machine, and a file's owner, mode, times and attributes (which
    Landlock does not watch): denied whatever the arguments."""
    writing: tuple[int, ...]
    """Calls that change a file or its name without opening it; denied where nothing may be written."""


# The calls since 2019 have one number everywhere: pidfd_send_signal 424, io_uring 425 to 427,
# the mount calls 428 to 433, 442 and 467, pidfd_open 434, pidfd_getfd 438, process_madvise 440,
# quotactl_fd 443, memfd_secret 447, process_mrelease 448, fchmodat2 452, setxattrat 463,
# removexattrat 466, file_setattr 469.
_NEW = (*range(424, 435), 438, 440, 442, 443, 447, 448, 452, 463, 466, 467, 469)

MACHINES = {
    "x86_64": Machine(
        audit=0xC000003E,
        clone=56,
        clone3=435,
        open=2,
        openat=257,
        openat2=437,
        prlimit=302,
        denied=(
            # socket, connect, accept, sendto, sendmsg, bind, listen, accept4, sendmmsg
            *(41, 42, 43, 44, 46, 49, 50, 288, 307),
            # fork, vfork, execve, execveat, kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo
            *(57, 58, 59, 322, 62, 200, 234, 129, 297),
            # ptrace, process_vm_readv, process_vm_writev, kcmp, setpriority, sched_setparam,
            # sched_setscheduler, sched_setaffinity, sched_setattr, ioprio_set, migrate_pages, move_pages
            *(101, 310, 311, 312, 141, 142, 144, 203, 314, 251, 256, 279),
            # shmget, shmat, semget, semop, semctl, msgget, msgsnd, msgrcv, msgctl, shmctl, mq_open, mq_unlink
            *(29, 30, 64, 65, 66, 68, 69, 70, 71, 31, 240, 241),
            # unshare, setns, mount, umount2, pivot_root, chroot, swapon, swapoff, reboot, sethostname,
            # setdomainname, init_module, finit_module, delete_module, kexec_load, kexec_file_load, acct
            *(272, 308, 165, 166, 155, 161, 167, 168, 169, 170, 171, 175, 313, 176, 246, 320, 163),
            # settimeofday, adjtimex, clock_settime, clock_adjtime, iopl, ioperm, quotactl, syslog,
            # add_key, request_key, keyctl, perf_event_open, bpf, userfaultfd, fanotify_init, vhangup
            *(164, 159, 227, 305, 172, 173, 179, 103, 248, 249, 250, 298, 321, 323, 300, 153),
            # chmod, fchmod, chown, fchown, lchown, utime, utimes, fchownat, futimesat, fchmodat, utimensat
            *(90, 91, 92, 93, 94, 132, 235, 260, 261, 268, 280),
            # setxattr, lsetxattr, fsetxattr, removexattr, lremovexattr, fremovexattr, name_to_handle_at,
            # open_by_handle_at, memfd_create (memory that no limit counts)
            *(188, 189, 190, 197, 198, 199, 303, 304, 319),
            *_NEW,
        ),
        writing=(
            # truncate, rename, mkdir, rmdir, creat, link, unlink, symlink, mknod
            *(76, 82, 83, 84, 85, 86, 87, 88, 133),
            # mkdirat, mknodat, unlinkat, renameat, linkat, symlinkat, renameat2
            *(258, 259, 263, 264, 265, 266, 316),
        ),
    ),
    "aarch64": Machine(
        audit=0xC00000B7,
        clone=220,
        clone3=435,
        open=None,
        openat=56,
        openat2=437,
        prlimit=261,
        denied=(
            # socket, bind, listen, accept, connect, sendto, sendmsg, accept4, sendmmsg
            *(198, 200, 201, 202, 203, 206, 211, 242, 269),
            # execve, execveat, kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo
            *(221, 281, 129, 130, 131, 138, 240),
            # ptrace, process_vm_readv, process_vm_writev, kcmp, setpriority, sched_setparam,
            # sched_setscheduler, sched_setaffinity, sched_setattr, ioprio_set, migrate_pages, move_pages
            *(117, 270, 271, 272, 140, 118, 119, 122, 274, 30, 238, 239),
            # mq_open, mq_unlink, and the System V calls from msgget to shmdt
            *(180, 181, *range(186, 198)),
            # unshare, setns, mount, umount2, pivot_root, chroot, swapon, swapoff, reboot, sethostname,
            # setdomainname, init_module, finit_module, delete_module, kexec_load, kexec_file_load, acct
            *(97, 268, 40, 39, 41, 51, 224, 225, 142, 161, 162, 105, 273, 106, 104, 294, 89),
            # settimeofday, adjtimex, clock_settime, clock_adjtime, quotactl, syslog, add_key,
            # request_key, keyctl, perf_event_open, bpf, userfaultfd, fanotify_init, vhangup
            *(170, 171, 112, 266, 60, 116, 217, 218, 219, 241, 280, 282, 262, 58),
            # fchmod, fchmodat, fchownat, fchown, utimensat, name_to_handle_at, open_by_handle_at
            *(52, 53, 54, 55, 88, 264, 265),
            # setxattr, lsetxattr, fsetxattr, removexattr, lremovexattr, fremovexattr, and memfd_create
            # (memory that no limit counts)
            *(5, 6, 7, 14, 15, 16, 279),
            *_NEW,
        ),
        # truncate, mknodat, mkdirat, unlinkat, symlinkat, linkat, renameat, renameat2
        writing=(45, 33, 34, 35, 36, 37, 38, 276),
    ),
}


def _argument(index: int) -> int:
    """Return the offset of an argument's low half in the filter's data; both machines are little-endian."""
    return 16 + 8 * index


def _instruction(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


def seccomp_filter(machine: Machine, *, may_write: bool) -> bytes:
    """Return the filter as the kernel takes it, eight bytes an instruction.

    Denied: network, other processes and new ones (threads are allowed), executing, the machine's
    settings. Unless `may_write`, files can only be opened to be read, and neither made, renamed
    nor removed; with it, something else must bound where (Landlock).
    """
    deny = _instruction(_RETURN, _ERROR | errno.EPERM)
    absent = _instruction(_RETURN, _ERROR | errno.ENOSYS)
    allow = _instruction(_RETURN, _ALLOW)
    kill = _instruction(_RETURN, _KILL)
    load_number = _instruction(_LOAD, _NUMBER)
    parts = [
        _instruction(_LOAD, _ARCHITECTURE) + _instruction(_JUMP_EQUAL, machine.audit, 1, 0) + kill,
        load_number + _instruction(_JUMP_FROM, _X32, 0, 1) + kill,
    ]
    for number in machine.denied if may_write else (*machine.denied, *machine.writing):
        parts.append(_instruction(_JUMP_EQUAL, number, 0, 1) + deny)
    # Its arguments lie in memory, where a filter cannot look. The C library falls back on clone.
    parts.append(_instruction(_JUMP_EQUAL, machine.clone3, 0, 1) + absent)
    parts.append(_when_argument(machine.clone, 0, _JUMP_SET, _CLONE_THREAD, met=allow, else_=deny))
    # Process 0 is the caller itself.
    parts.append(_when_argument(machine.prlimit, 0, _JUMP_EQUAL, 0, met=allow, else_=deny))
    if not may_write:
        parts.append(_instruction(_JUMP_EQUAL, machine.openat2, 0, 1) + absent)
        parts.append(_when_argument(machine.openat, 2, _JUMP_SET, _OPEN_TO_WRITE, met=deny, else_=allow))
        if machine.open is not None:
            parts.append(_when_argument(machine.open, 1, _JUMP_SET, _OPEN_TO_WRITE, met=deny, else_=allow))
    return b"".join(parts) + allow


def _when_argument(number: int, index: int, test: int, value: int, *, met: bytes, else_: bytes) -> bytes:
    """For one call: `met` or `else_`, as one of its arguments says. Other calls go on behind it."""
    return (
        _instruction(_JUMP_EQUAL, number, 0, 4)
        + _instruction(_LOAD, _argument(index))
        + _instruction(test, value, 0, 1)
        + met
        + else_
    )


# ── The process ──

_CHILD = Path(__file__).with_name("sandbox_child.py")
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
class SandboxResult:
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
) -> SandboxResult:
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
        return SandboxResult("time", _text(output))
    if size >= limits.file_bytes:
        return SandboxResult("output", _text(output))
    confirmed = test is None or ending == token.encode()
    text = _text(output)
    return SandboxResult("passed" if code == 0 and confirmed else "failed", text.removesuffix(token))


class SandboxedProcess:
    """A program in the same confinement that stays, and answers lines with lines.

    The program reads requests from file descriptor 0 and writes answers to 1. Where it breaks a limit it
    ends, and every later request raises.
    """

    def __init__(self, program: str, *, limits: Limits, readable: Sequence[str] = ()) -> None:
        """Start it. readable: folders that it may read beside Python's own.

        Raises `SandboxError` where the machine cannot hold it in.
        """
        holds = isolation()
        if not holds.system_calls:
            raise SandboxError(
                "this machine cannot keep a program from network and files (Linux on x86-64 or ARM64 can); "
                "run it in a virtual machine behind HTTP"
            )
        self._seconds = limits.wall_seconds
        self._folder = tempfile.TemporaryDirectory(prefix="rondo-program-")
        message = _message(program, "", limits, holds, self._folder.name)
        message["readable"] += readable
        self._process = _started(self._folder.name, subprocess.PIPE, subprocess.PIPE)
        self._send(json.dumps(message).encode() + b"\n", time.monotonic() + self._seconds)

    def ask(self, line: bytes, *, most_bytes: int) -> bytes:
        """Send a line and return the line that answers it.

        Raises `SandboxError` where the process has ended, or ends now as the answer takes too long or has
        more than `most_bytes`.
        """
        end = time.monotonic() + self._seconds
        self._send(line, end)
        answer = bytearray()
        while not answer.endswith(b"\n"):
            stream = self._process.stdout
            assert stream is not None  # noqa: S101 - a pipe
            if not select.select([stream], [], [], max(0.0, end - time.monotonic()))[0]:
                self._break(f"it gave no answer within {self._seconds:g} s")
            piece = os.read(stream.fileno(), 65536)
            if not piece:
                self._break("it ended: it raised at its start, or broke a limit of time or memory")
            answer += piece
            if len(answer) > most_bytes:
                self._break(f"its answer is longer than {most_bytes} bytes")
        return bytes(answer)

    def close(self) -> None:
        """End it."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._folder.cleanup()

    def _send(self, line: bytes, end: float) -> None:
        if self._process.poll() is not None:
            raise SandboxError("it has ended")
        stream = self._process.stdin
        assert stream is not None  # noqa: S101 - a pipe
        os.set_blocking(stream.fileno(), False)
        while line:
            if not select.select([], [stream], [], max(0.0, end - time.monotonic()))[1]:
                self._break(f"it read nothing within {self._seconds:g} s")
            try:
                line = line[os.write(stream.fileno(), line) :]
            except BlockingIOError:
                continue
            except OSError:
                self._break("it ended")

    def _break(self, reason: str) -> NoReturn:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        raise SandboxError(reason)


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
    process = _started(folder, sent, printed)
    try:
        return process.wait(limits.wall_seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _started(folder: str, stdin: Any, stdout: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        # -I: no environment, no user's packages, no current folder to import from. -S: no site's packages.
        [sys.executable, "-I", "-S", "-B", str(_CHILD)],
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={},
        start_new_session=True,
    )


def _text(output: bytes) -> str:
    return output.decode(errors="replace")
