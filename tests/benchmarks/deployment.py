"""Check that the command lines of `.deploy/compose.yaml` start here, on a real PostgreSQL and Redis.

    python -m tests.benchmarks.deployment postgres://user:password@host:5432/EMPTY redis://host:6379/NUMBER

Each service of ours runs as the file says, with its variables, and no others of this shell: only addresses
and folders are those of this machine. Then its health check runs. Ends with 1 where one does not come.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from tests.tiny import tiny_model_folder
from tests.webapp.running import free_port

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 180.0


class Deployment:
    """The services of the file, on this machine."""

    def __init__(self, home: Path, database: str, broker: str) -> None:
        self.services: dict[str, dict[str, Any]] = yaml.safe_load(
            (ROOT / ".deploy" / "compose.yaml").read_text(encoding="utf-8")
        )["services"]
        self._home = home
        self._ports = {"8000": str(free_port()), "8001": str(free_port())}
        self._database, self._broker = database, broker

    def environment(self, name: str) -> dict[str, str]:
        """The variables of a service, and no other but where programs are."""
        variables = self.services[name]["environment"]
        values = {key: self._here(name, str(value)) for key, value in variables.items() if value is not None}
        if "DATABASE_URL" in values:
            values |= {"DATABASE_URL": self._database, "RONDO_BROKER_URL": self._broker}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {"PATH": path, "HOME": str(self._home), "LANG": "C.UTF-8", **values}

    def start(self, name: str) -> "subprocess.Popen[bytes]":
        """One service, by its command line."""
        command = [self._here(name, word) for word in self.services[name]["command"]]
        if command[0] == "python":
            command[0] = sys.executable
        self.folder(name).mkdir(exist_ok=True)
        log = (self._home / f"{name}.log").open("wb")
        return subprocess.Popen(
            command, cwd=ROOT, env=self.environment(name), stdout=log, stderr=subprocess.STDOUT
        )

    def is_healthy(self, name: str) -> bool:
        """Return whether the service's health check succeeds."""
        test = [self._here(name, word) for word in self.services[name]["healthcheck"]["test"][1:]]
        return subprocess.run([sys.executable, *test[1:]], capture_output=True, check=False).returncode == 0

    def output(self, name: str) -> str:
        """Return what the service has written so far."""
        return (self._home / f"{name}.log").read_text(errors="replace")

    def folder(self, name: str) -> Path:
        """Its RONDO_HOME; `release` and `web` have one in common, as in the file."""
        return self._home / ("web" if name == "release" else name)

    def _here(self, name: str, value: str) -> str:
        value = re.sub(r"\$\{(\w+)(:[-?][^}]*)?\}", lambda match: self._variable(match), value)
        value = value.replace("/var/lib/rondo-store", str(self._home / "store"))
        value = value.replace("/var/lib/rondo", str(self.folder(name))).replace("model-server:", "127.0.0.1:")
        for theirs, ours in self._ports.items():
            value = value.replace(f":{theirs}", f":{ours}").replace(f"port={theirs}", f"port={ours}")
        return value.replace("0.0.0.0", "127.0.0.1").replace("SmolLM2-135M-Instruct", "tiny")

    def _variable(self, match: "re.Match[str]") -> str:
        written = {"RONDO_DOMAIN": "rondo.example.org"}
        default = match[2] or ""
        return default[2:] if default.startswith(":-") else written.get(match[1], "0123456789abcdef" * 3)


def main() -> int:
    """Start everything, ask for its health, stop it."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        there = Deployment(Path(folder), sys.argv[1], sys.argv[2])
        tiny_model_folder(there.folder("model-server") / "models" / "tiny")
        if there.start("release").wait() != 0:
            print(there.output("release"))
            return 1
        print("release: done")
        for name in ("web", "worker", "gpu-worker", "model-server"):
            process = there.start(name)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        waiting = {
            "web": lambda: there.is_healthy("web"),
            "model-server": lambda: there.is_healthy("model-server"),
            "worker": lambda: " ready." in there.output("worker"),
            "gpu-worker": lambda: " ready." in there.output("gpu-worker"),
        }
        began = time.monotonic()
        while waiting and time.monotonic() - began < SECONDS:
            for name in [service for service, is_there in waiting.items() if is_there()]:
                del waiting[name]
                print(f"{name}: healthy after {time.monotonic() - began:.0f} s", flush=True)
            time.sleep(0.5)
        for name in waiting:
            print(f"{name}: did not come\n{there.output(name)[-3000:]}")
        return 1 if waiting else 0


if __name__ == "__main__":
    sys.exit(main())
