"""Starts a Ray cluster for tests, and kills nodes of it."""

import os
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import httpx
import psutil

PYTHON_VARIABLE = "TEST_RAY_PYTHON"
"""Names the Python of a virtual environment with ray[default]; `make test-ray` sets it."""


class RayCluster:
    """The cluster, with its dashboard at `url`."""

    def __init__(self, log: Path) -> None:
        python = os.environ[PYTHON_VARIABLE]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("RONDO_", "DJANGO_"))
            },
            # Entrypoints say `python`, which is to be Ray's.
            "PATH": f"{Path(python).parent}:{os.environ['PATH']}",
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
        }
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [python, str(Path(__file__).with_name("ray_nodes.py")), str(port)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith('{"raylets"'):
                break
        else:
            raise AssertionError(log.read_text())
        self._wait_for_jobs_api()

    def kill_node_of(self, rank: int) -> None:
        """End the node on which a job's node trains as a power cut does: its raylet, and all below it."""
        agents = self.processes("training.launchers.node")
        raylet = self.raylet_of(next(agent for agent in agents if f"--rank {rank} " in _command_of(agent)))
        dying = [raylet, *raylet.children(recursive=True)]
        for process in dying:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def add_node(self) -> None:
        """Put a new node in the place of one that was killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("add\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith('{"added"'):
                return

    def stop(self) -> None:
        """End everything."""
        children = psutil.Process(self._process.pid).children(recursive=True)
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(30)
        self._process.kill()
        self._process.wait()
        for process in children:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def processes(self, module: str) -> list[psutil.Process]:
        """The processes of the cluster that run a module (`-m`)."""
        matching = []
        for process in psutil.Process(self._process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if process.cmdline()[1:3] == ["-m", module]:
                    matching.append(process)
        return matching

    def raylet_of(self, process: psutil.Process) -> psutil.Process:
        """The node that a process runs on."""
        return next(candidate for candidate in [process, *process.parents()] if candidate.name() == "raylet")

    def _wait_for_jobs_api(self) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/api/jobs/", trust_env=False, timeout=5).status_code == 200:
                    return
            time.sleep(0.5)
        raise AssertionError("no answer of Ray Jobs within a minute")


def _command_of(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline()) + " "
    return ""
