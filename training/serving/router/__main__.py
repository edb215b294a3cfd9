"""Start the model server of several bases.

    python -m training.serving.router --models var/models --checkpoints var/checkpoints

Takes the command line of `python -m training.serving`; --base names the base that is awake from the start.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import signal
import socket
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import httpx
import uvicorn

from training.contract.files import write_atomically
from training.serving.catalogue import Catalogue, SharedModels
from training.serving.http import Keys
from training.serving.router.app import Router, build_application
from training.serving.router.supervisor import Bases, SleepPolicy, Supervisor, needed_bytes, rooms
from training.serving.startup import build_parser, run_server, socket_url
from training.store import Store

_PASSED = (
    *("models", "checkpoints", "store", "device", "dtype", "max_adapters", "max_rows", "cache_tokens"),
    *("kept_tokens", "queue", "requests_per_key", "seconds_per_request", "max_body_bytes", "seconds_to_stop"),
)
"""Options that the server of each base gets as they are."""

logger = logging.getLogger("training.serving")


def main(arguments: list[str] | None = None) -> int:
    """Serve until a signal; 0 after a graceful stop, 2 when it cannot start."""
    options = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="rondo-bases-") as folder:
        return run_server(options, partial(_serve, folder=Path(folder)))


def _parser() -> argparse.ArgumentParser:
    policy = SleepPolicy()
    parser = build_parser(
        prog="python -m training.serving.router", description="Rondo's model server, for several bases."
    )
    add = parser.add_argument
    # fmt: off
    add("--idle-seconds", type=float, default=policy.idle_seconds,
        help="a base without a request for so long sleeps; the one used last stays awake")
    add("--memory-gib", type=float, help="what all bases together may take (default: what the device has)")
    add("--wait-seconds", type=float, default=policy.wait_seconds,
        help="so long a request waits for its base to wake")
    # fmt: on
    return parser


def _command(options: argparse.Namespace, base: str, status: Path) -> list[str]:
    """Return the command of the server of one base, on a free port of this machine."""
    command = [
        sys.executable,
        "-m",
        "training.serving",
        "--base",
        base,
        "--port",
        "0",
        "--status",
        str(status),
    ]
    # However this process ends, its end of the pipe closes.
    command.append("--until-stdin-ends")
    for name in _PASSED:
        value = getattr(options, name)
        if value not in (None, ""):
            command += [f"--{name.replace('_', '-')}", str(value)]
    return command


def _needed(options: argparse.Namespace, base: str) -> int:
    on_gpu = any(room.gpu is not None for room in rooms(options.device))
    places = options.cache_tokens + options.kept_tokens
    return needed_bytes(options.models / base, places=places, dtype=options.dtype, on_gpu=on_gpu)


def _serve(options: argparse.Namespace, keys: list[str], listening: socket.socket, folder: Path) -> None:
    url = socket_url(listening)
    shared = SharedModels(Store(options.store)) if options.store else None
    catalogue = Catalogue(options.models / options.base, options.checkpoints, shared)
    bases = Bases(options.models, catalogue)
    limit = None if options.memory_gib is None else int(options.memory_gib * 2**30)
    supervisor = Supervisor(
        bases,
        SleepPolicy(idle_seconds=options.idle_seconds, memory_bytes=limit, wait_seconds=options.wait_seconds),
        command=partial(_command, options),
        needed=partial(_needed, options),
        rooms=partial(rooms, options.device),
        folder=folder,
    )
    router = Router(
        keys=Keys(tuple(keys)),
        bases=bases,
        supervisor=supervisor,
        client=httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=5.0),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        ),
        max_body_bytes=options.max_body_bytes,
    )
    configuration = uvicorn.Config(
        build_application(router),
        log_level="info",
        log_config=None,
        timeout_graceful_shutdown=options.seconds_to_stop,
        server_header=False,
    )
    logger.info("Listening on %s", url)
    # uvicorn raises the signal again once it has stopped; a stop that was asked for is no failure.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    asyncio.run(_run(uvicorn.Server(configuration), router, listening, url, options.status))


async def _run(
    server: uvicorn.Server, router: Router, listening: socket.socket, url: str, status: Path | None
) -> None:
    telling = asyncio.create_task(_tell(router, url, status)) if status else None
    try:
        await server.serve(sockets=[listening])
    finally:
        if telling is not None:
            telling.cancel()


async def _tell(router: Router, url: str, status: Path) -> None:
    """Keep the status file as /health is."""
    last = ""
    while True:
        health = router.status()
        if json.dumps(health) != last:
            last = json.dumps(health)
            # A full disk must not stop the server from answering.
            with contextlib.suppress(OSError):
                write_atomically(status, json.dumps({**health, "url": url, "updated_at": time.time()}) + "\n")
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
