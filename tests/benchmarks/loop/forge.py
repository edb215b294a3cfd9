"""A process that has torch loaded and forks itself: a trainer or model server starts in a moment.

Eight seconds of imports for each of a loop's trainings would be most of its time. A child does just what
`python -m MODULE ARGUMENTS` does. The client (`python -S forge.py SOCKET MODULE ARGUMENT…`) passes its
standard streams on and ends with the child's exit status, so that whoever started it notices no difference.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_STREAMS = (0, 1, 2)
_MOST_BYTES = 65536
ROOT = Path(__file__).resolve().parents[3]


# ── Client ────────────────────────────────────────────────────────────────────────────


def ask(address: str, module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Have a module run in a child with this process's streams; return its exit status."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(address)
        request = json.dumps([module, list(arguments), dict(environment)]).encode()
        streams = array.array("i", _STREAMS)
        link.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
        link.shutdown(socket.SHUT_WR)
        answer = link.recv(64)
    return int(answer) if answer else 1


def command(address: str, module: str) -> tuple[str, ...]:
    """Return the command line that stands for `python -m MODULE`."""
    return (sys.executable, "-S", "-E", str(Path(__file__).resolve()), address, module)


# ── Server ────────────────────────────────────────────────────────────────────────────


def load() -> None:
    """Load what trainers and model servers need."""
    import training.rlhf.train
    import training.serving.app  # noqa: F401 - both are loaded for the children


def serve(address: str) -> None:
    """Fork for everyone who asks, until standard input ends, as it does when whoever started this is killed:
    then end with all of this session."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        while listening in select.select([listening, sys.stdin], [], [])[0]:
            link, _ = listening.accept()
            with link:
                if os.fork() == 0:
                    listening.close()
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os._exit(_answer(link))
    os.killpg(0, signal.SIGTERM)


def _answer(link: socket.socket) -> int:
    """Read a request, run it in a child, tell its status."""
    rights = socket.CMSG_SPACE(len(_STREAMS) * array.array("i").itemsize)
    request, ancillary, _, _ = link.recvmsg(_MOST_BYTES, rights)
    streams = array.array("i")
    for _, _, passed in ancillary:
        streams.frombytes(passed)
    while piece := link.recv(_MOST_BYTES):
        request += piece
    child = os.fork()
    if child == 0:
        link.close()
        module, arguments, environment = json.loads(request)
        os._exit(_run(module, arguments, environment, list(streams)))
    for stream in streams:
        os.close(stream)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        link.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    return 0


def _run(module: str, arguments: list[str], environment: dict[str, str], streams: list[int]) -> int:
    """Do as `python -m module` does."""
    for descriptor, passed in zip(_STREAMS, streams, strict=True):
        os.dup2(passed, descriptor)
        os.close(passed)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(stream, mode, closefd=False) for stream, mode in zip(_STREAMS, "rww", strict=True)
    )
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    code: object = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else 0 if code is None else 1


# ── Whoever starts it ─────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def running_forge(folder: Path, *, threads: int) -> Iterator[str]:
    """Run a forge with its socket in a folder; its children end with it, and it with this process."""
    address = str(folder / "forge.sock")
    variables = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    log = folder / "forge.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.loop.forge", address],
            cwd=ROOT,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    try:
        yield address
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def wait_for(address: str, *, seconds: float = 600) -> None:
    """Wait until a forge listens. Raises when it has ended or takes too long."""
    until = time.monotonic() + seconds
    log_file = Path(address).with_name("forge.log")
    while not Path(address).exists():
        log = log_file.read_text() if log_file.exists() else ""
        if time.monotonic() > until or "Traceback" in log:
            raise SystemExit(f"The process that starts trainers does not answer.\n{log}")
        time.sleep(0.05)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        load()
        serve(sys.argv[1])
    else:
        # Of its own environment a trainer gets nothing more than what the launcher let through.
        code = ask(sys.argv[1], sys.argv[2], sys.argv[3:], {})
        if code < 0:
            os.kill(os.getpid(), -code)
        sys.exit(code)
