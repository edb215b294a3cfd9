"""Command line, keys and socket of the model server, for one base and for several. Imports no torch."""

from __future__ import annotations

import argparse
import ipaddress
import logging
import math
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from training.rlhf.starter import STARTER_NAME

# ── Capacity limits of the model server. Imports no torch ──


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds that the command line sets."""

    max_adapters: int = 8
    """Checkpoints in memory besides the base."""
    max_rows: int = 32
    """Answers that are written at a time; the others wait."""
    cache_tokens: int = 32768
    """Places for keys and values of prompts and answers, each as long as the longest running with it may
    become; the context's length at least. A place of SmolLM2-135M takes 46 KB in float32."""
    kept_tokens: int = 16384
    """Further places for what was read and written before, so that the next turn of a conversation reads
    only what is new."""
    queue: int = 32
    """Requests that may wait."""
    per_key: int = 64
    """Requests with one key that may wait and run."""
    seconds_per_request: float = 600.0
    """Default time limit of a request; it can ask for less, not for more."""


# ── Options ──


KEY_VARIABLE = "RONDO_MODEL_SERVER_KEY"
MORE_KEYS_VARIABLE = "RONDO_MODEL_SERVER_MORE_KEYS"
"""Further keys, a comma between them: one for each program that the bound per key is to count by itself."""
STORE_VARIABLE = "RONDO_STORE_URL"

logger = logging.getLogger("training.serving")


def keys_of_environment() -> list[str]:
    """Return the keys that clients may send, the web application's first; none where that is not set."""
    key = os.environ.get(KEY_VARIABLE, "")
    more = [other.strip() for other in os.environ.get(MORE_KEYS_VARIABLE, "").split(",")]
    return [key, *filter(None, more)] if key else []


def socket_url(listening: socket.socket) -> str:
    """Return the URL of a socket."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def build_parser(
    *, prog: str = "python -m training.serving", description: str = "Rondo's model server."
) -> argparse.ArgumentParser:
    """Return the command line that the server of one base and the router share."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
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
    add("--until-stdin-ends", action="store_true", help="stop when standard input ends, as its parent dies")
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


def listen(host: str, port: int) -> socket.socket:
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
