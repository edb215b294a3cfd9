"""The sandboxed process: gives up what it may do, for good, and then runs the program. See `sandbox.py`.

Started as a script, on the standard library alone. The first line of its input says what to give
up and holds the program; the second, which is read after the program has run, holds the test.
What it writes last tells how far it came: the test's token, which no program could know before.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import resource
import struct
import sys
from typing import Any

_NO_NEW_PRIVILEGES, _SECCOMP, _DUMPABLE, _FILTER_MODE = 38, 22, 4, 2
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CAPABILITIES_VERSION = 0x20080522
# The kernel's LANDLOCK_ACCESS_FS_…: read a file, read a folder; write, execute, and all that makes, removes,
# links or truncates, as of version 3.
_READ = 0b1100
_WRITE = 0b111_1111_1111_0011


def main() -> None:
    message = json.loads(_line())
    # Loaded before the doors close: a test's program may well want them.
    libc = ctypes.CDLL(None, use_errno=True)
    _limit(message["limits"])
    if message["linux"]:
        _give_up_privileges(libc)
        if message["landlock"]:
            _restrict_files(libc, message["readable"], message["writable"])
        _restrict_calls(libc, bytes.fromhex(message["filter"]))
    sys.stdin = io.StringIO(message["input"])
    sys.argv = ["program"]
    names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    exec(compile(message["program"], "program", "exec"), names)  # noqa: S102 - what all this is for
    test = _line()
    if test:
        test_case = json.loads(test)
        exec(compile(test_case["test"], "test", "exec"), names)  # noqa: S102
        sys.stdout.flush()
        os.write(1, test_case["token"].encode())


def _line() -> bytes:
    """Return one line of input, byte by byte: what stands behind it stays where no program has seen it."""
    read = bytearray()
    while not read.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            break
        read += byte
    return bytes(read)


def _limit(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        number = getattr(resource, f"RLIMIT_{name}", None)
        # macOS knows fewer, and bounds no address space.
        if number is not None:
            try:
                resource.setrlimit(number, (value, value))
            except (ValueError, OSError):
                if sys.platform == "linux":
                    raise


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"sandbox: {what}")
    return result


def _give_up_privileges(libc: ctypes.CDLL) -> None:
    _checked(libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "no new privileges")
    # Nobody of the same account looks into this process, and root is root in name only.
    _checked(libc.prctl(_DUMPABLE, 0, 0, 0, 0), "not dumpable")
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITIES_VERSION, 0))
    _checked(libc.capset(header, ctypes.create_string_buffer(24)), "capabilities")


def _restrict_files(libc: ctypes.CDLL, readable: list[str], writable: list[str]) -> None:
    """Landlock: nothing but reading below `readable`, and reading and writing below `writable`."""
    handled = _READ | _WRITE
    attributes = ctypes.create_string_buffer(struct.pack("=Q", handled), 8)
    rules = _checked(libc.syscall(_CREATE_RULESET, attributes, 8, 0), "Landlock rules")
    for paths, access in ((readable, _READ), (writable, handled)):
        for path in paths:
            _allow(libc, rules, path, access)
    _checked(libc.syscall(_RESTRICT_SELF, rules, 0), "Landlock restriction")
    os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, path: str, access: int) -> None:
    try:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    if not os.path.isdir(path):
        # What one can do to a file: read it, write it and truncate it.
        access &= 0b100_0000_0000_0110
    attributes = ctypes.create_string_buffer(struct.pack("=Qi", access, folder), 12)
    _checked(libc.syscall(_ADD_RULE, rules, 1, attributes, 0), f"Landlock rule for {path}")
    os.close(folder)


def _restrict_calls(libc: ctypes.CDLL, instructions: bytes) -> None:
    program = ctypes.create_string_buffer(instructions, len(instructions))
    # struct sock_fprog: a count and, aligned, a pointer.
    described = ctypes.create_string_buffer(
        struct.pack("@HP", len(instructions) // 8, ctypes.addressof(program))
    )
    _checked(libc.prctl(_SECCOMP, _FILTER_MODE, described, 0, 0), "system calls")


if __name__ == "__main__":
    main()
