"""A scheduler of a few lines, for the command template: `fake_scheduler.py FOLDER submit|poll|cancel|logs …`.

Starts a job's script as a process of its own. Files in its folder make it misbehave: `down` (does not
answer), `refuse` (takes no job), `hold` (jobs wait), `taken_out` (says that jobs were cancelled).
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def main() -> int:
    """Do one command."""
    folder, command, *arguments = Path(sys.argv[1]), *sys.argv[2:]
    if (folder / "down").exists():
        sys.stderr.write("no route to the scheduler\n")
        return 7
    commands: dict[str, Callable[..., int]] = {
        "submit": submit,
        "poll": poll,
        "cancel": cancel,
        "logs": logs,
    }
    return commands[command](folder, *arguments)


def submit(folder: Path, name: str, script: str, *wants: str) -> int:
    if (folder / "refuse").exists():
        sys.stderr.write("queue gold: you have no account there\n")
        return 1
    number = len(list(folder.glob("*.json"))) + 1
    job = {"name": name, "script": script, "wants": wants, "pid": 0}
    if not (folder / "hold").exists():
        with (folder / f"{number}.log").open("wb") as log:
            job["pid"] = subprocess.Popen(
                ["sh", script], stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            ).pid
    (folder / f"{number}.json").write_text(json.dumps(job))
    print(number)
    return 0


def poll(folder: Path, handle: str) -> int:
    job = json.loads((folder / f"{handle}.json").read_text())
    if job.get("cancelled") or (folder / "taken_out").exists():
        print("cancelled by root")
    elif not job["pid"]:
        print("waiting for a free node")
    else:
        print("running" if _lives(job["pid"]) else "ended")
    return 0


def cancel(folder: Path, handle: str) -> int:
    path = folder / f"{handle}.json"
    job = json.loads(path.read_text())
    if job["pid"]:
        with suppress(ProcessLookupError):
            os.killpg(job["pid"], signal.SIGTERM)
    path.write_text(json.dumps({**job, "cancelled": True}))
    return 0


def logs(folder: Path, handle: str, lines: str) -> int:
    path = folder / f"{handle}.log"
    print("\n".join(path.read_text().splitlines()[-int(lines) :]) if path.exists() else "")
    return 0


def _lives(pid: int) -> bool:
    # One whose parent has ended is nobody's child, or a zombie of a container's init.
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


if __name__ == "__main__":
    sys.exit(main())
