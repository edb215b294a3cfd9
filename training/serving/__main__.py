"""Start the model server.

    RONDO_MODEL_SERVER_KEY=… python -m training.serving --models var/models --checkpoints var/checkpoints

Answers at once; GET /health says how far the fetching and loading of the model is.
"""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import logging
import os
import signal
import socket
import sys
from pathlib import Path

import uvicorn

from training.rlhf.starter import STARTER_NAME
from training.serving.app import Server, build_application
from training.serving.catalogue import Catalogue
from training.serving.startup import Startup
from training.serving.worker import Worker

KEY_VARIABLE = "RONDO_MODEL_SERVER_KEY"

_SECONDS_TO_STOP_COMPUTING = 3.0

logger = logging.getLogger("training.serving")


def main(arguments: list[str] | None = None) -> int:
    """Serve until a signal; 0 after a graceful stop, 2 when it cannot start."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
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
    _serve(options, key, listening)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m training.serving", description="Rondo's model server.")
    add = parser.add_argument
    add("--models", type=Path, required=True, help="models folder; the starter model is fetched into it")
    add("--checkpoints", type=Path, required=True, help="folder of checkpoint folders")
    add("--base", default=STARTER_NAME, help="base model: a folder in the models folder")
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--port", type=int, default=8001, help="port to listen on; 0 takes a free one")
    add("--status", type=Path, help="file that always says what /health says")
    add("--device", default="auto", choices=["auto", "cpu", "cuda", "mps"])
    add("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    add("--max-adapters", type=int, default=8, help="checkpoints held in memory; the last used stay")
    add("--queue", type=int, default=32, help="requests that may wait; more are told to come back")
    add("--max-body-bytes", type=int, default=1024 * 1024)
    add("--seconds-to-stop", type=int, default=7, help="what running requests get to end in, after SIGTERM")
    return parser


def _listen(host: str, port: int) -> socket.socket:
    """A socket bound before anything else begins, so that a taken port is the first thing said."""
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


def _serve(options: argparse.Namespace, key: str, listening: socket.socket) -> None:
    host, port = listening.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    catalogue = Catalogue(options.models / options.base, options.checkpoints)
    startup = Startup(
        catalogue,
        device=options.device,
        dtype=options.dtype,
        max_adapters=max(1, options.max_adapters),
        url=url,
        status_file=options.status,
    )
    server = Server(
        key=key,
        catalogue=catalogue,
        startup=startup,
        worker=Worker(max(1, options.queue)),
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
