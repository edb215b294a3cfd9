"""The time a newcomer waits: from `make run` on a fresh clone to the first comparison on screen.

    python -m tests.benchmarks.first_comparison [--cold] [--keep-venv]

Clones the last commit into a temporary folder, runs `make run` there, signs in as the annotator and
asks for the labelling screen once a second until a comparison is on it. Then measures memory, and
how long a second `make run` takes. `--cold` gives uv
and pip empty caches, `--keep-venv` lends the clone this checkout's .venv, to leave
out the time of pip.
"""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import httpx

from tests.benchmarks.memory import measure, table

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 1800.0


class MakeRun:
    """One `make run` in a folder, with the time at which each of its lines came."""

    def __init__(self, folder: Path, port: int, model_server_port: int, caches: Path | None = None) -> None:
        self.folder = folder
        self.began = time.monotonic()
        self.address = f"http://127.0.0.1:{port}"
        self._log = (folder / "make-run.log").open("w+")
        self.process = subprocess.Popen(
            ["make", "run"],
            cwd=folder,
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith("RONDO_")},
                "RONDO_PORT": str(port),
                "RONDO_MODEL_SERVER_PORT": str(model_server_port),
                "PYTHONUNBUFFERED": "1",
                **({name: str(caches) for name in ("UV_CACHE_DIR", "PIP_CACHE_DIR")} if caches else {}),
            },
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def output(self) -> str:
        return Path(self._log.name).read_text()

    def wait_for(self, pattern: str) -> tuple[re.Match[str], float]:
        """The first match in the output, and the seconds since the start."""
        while self.seconds < LIMIT:
            if match := re.search(pattern, self.output()):
                return match, self.seconds
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise SystemExit(f"`make run` never said {pattern!r}:\n{self.output()}")

    def stop(self) -> float:
        """Stop as Ctrl-C does; the seconds that it took."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=120)
        self._log.close()
        return time.monotonic() - began


def first_comparison(address: str, password: str, run: MakeRun) -> float:
    """Sign in as the annotator and look at the labelling screen until there is something to judge."""
    with httpx.Client(base_url=address, follow_redirects=True, trust_env=False, timeout=60) as client:
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', client.get("/login/").text)
        if token is None:
            raise SystemExit("The sign-in page has no form.")
        form = {"username": "annotator", "password": password, "csrfmiddlewaretoken": token[1]}
        client.post("/login/", data=form, headers={"Referer": f"{address}/login/"})
        while run.seconds < LIMIT:
            if re.search(r"/label/\d+/submit/", client.get("/projects/first-project/label/").text):
                return run.seconds
            time.sleep(1)
    raise SystemExit(f"No comparison came:\n{run.output()}")


def free_ports() -> tuple[int, int]:
    """Two ports that nobody listens on now."""
    with socket.socket() as first, socket.socket() as other:
        first.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return first.getsockname()[1], other.getsockname()[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--keep-venv", action="store_true", help="lend the clone this checkout's .venv")
    parser.add_argument("--cold", action="store_true", help="give uv and pip empty caches")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rondo-benchmark-") as temporary:
        folder = Path(temporary) / "rondo"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
        if options.keep_venv:
            os.symlink(ROOT / ".venv", folder / ".venv")
        caches = Path(temporary) / "caches" if options.cold else None
        run = MakeRun(folder, *free_ports(), caches)
        try:
            figures(run)
        finally:
            seconds = run.stop()
        print(f"| then | seconds |\n|---|---|\n| all stopped after Ctrl-C | {seconds:.1f} |")
        again = MakeRun(folder, *free_ports())
        try:
            _, up = again.wait_for("Rondo is at")
            _, ready = again.wait_for(r"model .*is ready")
            print(f"| second `make run`: pages answer | {up:.1f} |")
            print(f"| second `make run`: model ready | {ready:.1f} |")
        finally:
            again.stop()


def figures(run: MakeRun) -> None:
    """Print the first start's rows of the table, and the memory of every part afterwards."""
    _, checks = run.wait_for(r"checks .*packages")
    _, up = run.wait_for("Rondo is at")
    password, _ = run.wait_for(r"sign in as annotator with (\S+)")
    _, ready = run.wait_for(r"model .*is ready")
    seen = first_comparison(run.address, password[1], run)
    print("| from `make run` until | seconds |\n|---|---|")
    print(f"| packages installed | {checks:.1f} |")
    print(f"| pages answer | {up:.1f} |")
    print(f"| starter model fetched and loaded | {ready:.1f} |")
    print(f"| first comparison on screen | {seen:.1f} |", flush=True)
    pid = json.loads((run.folder / "var" / "up.lock").read_text())["pid"]
    print(f"\n{table(measure(pid))}\n", flush=True)


if __name__ == "__main__":
    main()
