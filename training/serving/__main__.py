"""Start the model server.

    RONDO_MODEL_SERVER_KEY=… python -m training.serving --models var/models --checkpoints var/checkpoints

Answers at once; GET /health says how far the fetching and loading of the model is.
"""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import logging
import math
import os
import signal
import socket
import sys
from pathlib import Path

import uvicorn

from training.contract.log_lines import log_to_stderr
from training.rlhf.starter import STARTER_NAME
from training.serving.app import Server, build_application
from training.serving.catalogue import Catalogue
from training.serving.limits import Limits
from training.serving.metrics import Metrics
from training.serving.shared import SharedModels
from training.serving.startup import Startup
from training.serving.worker import Worker
from training.store import Store, StoreError

KEY_VARIABLE = "RONDO_MODEL_SERVER_KEY"
MORE_KEYS_VARIABLE = "RONDO_MODEL_SERVER_MORE_KEYS"
"""Further keys, a comma between them: one for each program that the bound per key is to count by itself."""
STORE_VARIABLE = "RONDO_STORE_URL"

_SECONDS_TO_STOP_COMPUTING = 3.0

logger = logging.getLogger("training.serving")


def main(arguments: list[str] | None = None) -> int:
    """Serve until a signal; 0 after a graceful stop, 2 when it cannot start."""
    options = _parser().parse_args(arguments)
    log_to_stderr(logging.INFO)
    key = os.environ.get(KEY_VARIABLE, "")
    if not key:
        print(f"{KEY_VARIABLE} is not set. Set it to the key that clients must send.", file=sys.stderr)
        return 2
    # Threads that wait while they spin take the CPU from the trainer and the web process: with
    # one other busy process on 2 cores, spinning made generation four times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        listening = _listen(options.host, options.port)
    except OSError as error:
        print(
            f"Cannot listen on {options.host} port {options.port}: {error.strerror or error}. "
            "Stop the program that holds the port, or choose another with --port.",
            file=sys.stderr,
        )
        return 2
    more = [other.strip() for other in os.environ.get(MORE_KEYS_VARIABLE, "").split(",") if other.strip()]
    try:
        _serve(options, [key, *more], listening)
    except StoreError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m training.serving", description="Rondo's model server.")
    add = parser.add_argument
    add("--models", type=Path, required=True, help="models folder; the starter model is fetched into it")
    add("--checkpoints", type=Path, required=True, help="folder of checkpoint folders")
    add("--base", default=STARTER_NAME, help="base model: a folder in the models folder")
    add(
        "--store",
        default=os.environ.get(STORE_VARIABLE, "").rstrip("/"),
        metavar="URL",
        help=f"store that machines share, to fetch models from (default: {STORE_VARIABLE})",
    )
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--port", type=int, default=8001, help="port to listen on; 0 takes a free one")
    add("--status", type=Path, help="file that always says what /health says")
    add("--device", default="auto", choices=["auto", "cpu", "cuda", "mps"])
    add("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    limits = Limits()
    # fmt: off
    add("--max-adapters", type=_count, default=limits.max_adapters,
        help="checkpoints held in memory; those in use and the last used stay")
    add("--max-rows", type=_count, default=limits.max_rows, help="answers written at a time")
    add("--cache-tokens", type=_count, default=limits.cache_tokens,
        help="places for keys and values of prompts and answers; what does not fit waits")
    add("--kept-tokens", type=_count_or_none, default=limits.kept_tokens,
        help="places for earlier turns of conversations, which are then not read again; 0 keeps none")
    add("--queue", type=_count, default=limits.queue,
        help="requests that may wait; more are told to come back")
    add("--requests-per-key", type=_count, default=limits.per_key,
        help="requests of one key that may wait and run; more are told to come back")
    add("--seconds-per-request", type=_seconds, default=limits.seconds_per_request,
        help="what a request gets that asks for no less")
    # fmt: on
    add("--max-body-bytes", type=int, default=1024 * 1024)
    add("--seconds-to-stop", type=int, default=7, help="what running requests get to end in, after SIGTERM")
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _count_or_none(text: str) -> int:
    return 0 if int(text) == 0 else _count(text)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError("must be a number above 0")
    return value


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket bound before anything else begins, so that a taken port is the first thing said."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        if not ipaddress.ip_address(address[0]).is_loopback:
            logger.warning("Listening on %s: other machines can reach this server, with the key", host)
    except OSError:
        listening.close()
        raise
    return listening


def _limits(options: argparse.Namespace) -> Limits:
    return Limits(
        max_adapters=options.max_adapters,
        max_rows=options.max_rows,
        cache_tokens=options.cache_tokens,
        kept_tokens=options.kept_tokens,
        queue=options.queue,
        per_key=options.requests_per_key,
        seconds_per_request=options.seconds_per_request,
    )


def _serve(options: argparse.Namespace, keys: list[str], listening: socket.socket) -> None:
    host, port = listening.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
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
    worker = Worker(limits.queue, per_client=limits.per_key, observe=metrics.observe)
    metrics.watch(worker, startup)
    server = Server(
        keys=tuple(keys),
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
    logger.info("Listening on %s", url)
    # uvicorn raises the signal again once it has stopped; a stop that was asked for is no failure.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    asyncio.run(uvicorn.Server(configuration).serve(sockets=[listening]))


if __name__ == "__main__":
    sys.exit(main())
