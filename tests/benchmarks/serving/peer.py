"""`transformers serve` in an environment of its own: started, waited for, stopped."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SECONDS_TO_START = 90.0


@contextmanager
def transformers_serve(python: Path, model: Path, *, threads: int) -> Iterator[str]:
    """Its address with /v1. Continuous batching on, float32, on the CPU, as we are."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code = "import sys; from transformers.cli.transformers import main; sys.argv[0] = 'transformers'; main()"
    # fmt: off
    command = [
        str(python), "-c", code, "serve", str(model), "--device", "cpu",
        "--dtype", "float32", "--host", "127.0.0.1", "--port", str(port),
    ]
    # fmt: on
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait(process, f"http://127.0.0.1:{port}/health")
            yield f"http://127.0.0.1:{port}/v1"
        except Exception:
            log.seek(0)
            print(log.read().decode(errors="replace")[-3000:], flush=True)
            raise
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: subprocess.Popen[bytes], address: str) -> None:
    deadline = time.monotonic() + _SECONDS_TO_START
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            urllib.request.urlopen(address, timeout=5).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise RuntimeError("transformers serve did not start; its log is above")
