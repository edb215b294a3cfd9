"""Start the model server.

    RONDO_MODEL_SERVER_KEY=… python -m training.serving --models var/models --checkpoints var/checkpoints

Answers at once; GET /health says how far the fetching and loading of the model is.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
import threading

import uvicorn

from training.serving.app import ServerComponents, build_application
from training.serving.catalogue import Catalogue, SharedModels
from training.serving.http import Keys
from training.serving.metrics import Metrics
from training.serving.startup import (
    ServerLimits,
    Startup,
    build_parser,
    run_server,
    socket_url,
)
from training.serving.worker import WorkerThread
from training.store import Store

_SECONDS_TO_STOP_COMPUTING = 3.0

logger = logging.getLogger("training.serving")


def main(arguments: list[str] | None = None) -> int:
    """Serve until a signal; 0 after a graceful stop, 2 when it cannot start."""
    # Threads that wait while they spin take the CPU from the trainer and the web process: with
    # one other busy process on 2 cores, spinning made generation four times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return run_server(build_parser().parse_args(arguments), _serve)


def _limits(options: argparse.Namespace) -> ServerLimits:
    return ServerLimits(
        max_adapters=options.max_adapters,
        max_rows=options.max_rows,
        cache_tokens=options.cache_tokens,
        kept_tokens=options.kept_tokens,
        queue=options.queue,
        per_key=options.requests_per_key,
        seconds_per_request=options.seconds_per_request,
    )


def _serve(options: argparse.Namespace, keys: list[str], listening: socket.socket) -> None:
    url = socket_url(listening)
    limits = _limits(options)
    shared = SharedModels(Store(options.store)) if options.store else None
    catalogue = Catalogue(options.models / options.base, options.checkpoints, shared)
    startup = Startup(
        catalogue,
        device=options.device,
        dtype=options.dtype,
        limits=limits,
        url=url,
        status_file=options.status,
    )
    metrics = Metrics()
    worker = WorkerThread(limits.queue, per_client=limits.per_key, observe=metrics.observe)
    metrics.watch(worker, startup)
    server = ServerComponents(
        keys=Keys(tuple(keys)),
        catalogue=catalogue,
        startup=startup,
        worker=worker,
        metrics=metrics,
        seconds_per_request=limits.seconds_per_request,
        max_body_bytes=options.max_body_bytes,
        seconds_to_stop=_SECONDS_TO_STOP_COMPUTING,
    )
    configuration = uvicorn.Config(
        build_application(server),
        log_level="info",
        log_config=None,
        timeout_graceful_shutdown=options.seconds_to_stop,
        server_header=False,
    )
    if options.until_stdin_ends:
        threading.Thread(target=_stop_with_stdin, name="stdin", daemon=True).start()
    logger.info("Listening on %s", url)
    # uvicorn raises the signal again once it has stopped; a stop that was asked for is no failure.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    asyncio.run(uvicorn.Server(configuration).serve(sockets=[listening]))


def _stop_with_stdin() -> None:
    """Ask this process to stop once whoever started it is gone."""
    while os.read(sys.stdin.fileno(), 1024):
        continue
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
