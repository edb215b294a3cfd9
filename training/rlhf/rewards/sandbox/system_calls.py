"""Seccomp filter of the system calls that a sandboxed program is denied. Linux on x86-64 and ARM64.

A list of what is denied, not of what is allowed: the aim is that a program harms nothing outside
itself (no network, no other process, no file), not that it cannot find out where it runs. The
kernel keeps the filter on for good, for root too. Numbers are those of the kernel's
`asm/unistd.h`; a call denied gives EPERM.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass

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
