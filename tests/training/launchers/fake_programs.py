#!/usr/bin/env python
"""Programs of Slurm and `kubectl` in a few lines each, which start a job's processes on this machine.

The name by which it is called says which program it is; jobs lie in `$FAKE_CLUSTER`. Files in that folder
make the cluster misbehave: `down` (does not answer), `refuse` (takes no job, or no Service), `hold` (jobs
wait). A file with a program's name holds what that program writes in place of its own words.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ["FAKE_CLUSTER"])


def main() -> int:
    """Do what the program would."""
    program, arguments = Path(sys.argv[0]).name, sys.argv[1:]
    with (FOLDER / "calls").open("a") as calls:
        calls.write(shlex.join([program, *arguments]) + "\n")
    if (FOLDER / "down").exists() and program not in ("srun", "scontrol"):
        return _fail("Unable to contact slurm controller" if program != "kubectl" else "Unable to connect")
    if (FOLDER / program).exists():
        print((FOLDER / program).read_text())
        return 0
    return {
        "sbatch": sbatch,
        "srun": srun,
        "scontrol": scontrol,
        "squeue": squeue,
        "sacct": sacct,
        "scancel": scancel,
        "kubectl": kubectl,
    }[program](*arguments)


# Slurm


def sbatch(*arguments: str) -> int:
    """Start the script of standard input with the variables that `--export` names."""
    text = sys.stdin.read()
    if (FOLDER / "refuse").exists():
        return _fail("sbatch: error: invalid partition specified: gold")
    options = _options(arguments)
    number = str(len(list(FOLDER.glob("*.json"))) + 1)
    nodes = int(options["nodes"])
    script = FOLDER / f"{number}.sh"
    script.write_text(text)
    job: dict[str, Any] = {"options": options, "nodes": nodes}
    if not (FOLDER / "hold").exists():
        names = ["FAKE_CLUSTER", *options["export"].split(",")]
        variables = {name: os.environ[name] for name in names}
        variables |= {"SLURM_JOB_ID": number, "SLURM_NNODES": str(nodes), "SLURM_JOB_NODELIST": "n[0-9]"}
        variables["SLURM_EXPORT_ENV"] = options["export"]
        output = Path(options["output"].replace("%j", number))
        job["pids"] = [_start(["bash", str(script)], variables, output, FOLDER / f"{number}.code")]
    _write(number, job)
    print(f"{number};fake")
    return 0


def srun(*arguments: str) -> int:
    """Run a command once for each node; wait for all of them.

    As with Slurm, tasks get no other variables than those of `sbatch --export`, unless `--export` says so.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    command = [argument for argument in arguments if not argument.startswith("--")]
    variables = dict(os.environ)
    if "--export=ALL" not in arguments:
        exported = ("FAKE_CLUSTER", "SLURM_NNODES", *os.environ["SLURM_EXPORT_ENV"].split(","))
        variables = {name: os.environ[name] for name in exported}

    def restore() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    tasks = [
        subprocess.Popen(command, env={**variables, "SLURM_NODEID": str(node)}, preexec_fn=restore)
        for node in range(int(os.environ["SLURM_NNODES"]))
    ]
    return max(task.wait() for task in tasks)


def scontrol(*arguments: str) -> int:
    """Name the nodes of an allocation, or describe one."""
    described = "NodeName=n0 Arch=x86_64 NodeAddr=127.0.0.1 NodeHostName=n0"
    print(described if "node" in arguments else "n0\nn1")
    return 0


def squeue(*arguments: str) -> int:
    """Write the state of a job by the columns `%T|%r|%N`."""
    number = _options(arguments)["jobs"]
    if not (FOLDER / f"{number}.json").exists():
        return _fail("slurm_load_jobs error: Invalid job id specified")
    job = _read(number)
    code = FOLDER / f"{number}.code"
    if job.get("cancelled"):
        print("CANCELLED|None|")
    elif "pids" not in job:
        print("PENDING|Priority|")
    elif code.exists():
        print(f"{'COMPLETED' if code.read_text().strip() == '0' else 'FAILED'}|None|n0")
    else:
        print("RUNNING|None|n0")
    return 0


def sacct(*arguments: str) -> int:
    """Keep no accounts."""
    return _fail("Slurm accounting storage is disabled")


def scancel(*arguments: str) -> int:
    """End a job by SIGTERM."""
    number = arguments[-1]
    if not (FOLDER / f"{number}.json").exists():
        return _fail("scancel: error: Kill job error on job id 9: Invalid job id specified")
    _cancel(number)
    return 0


# Kubernetes


def kubectl(*arguments: str) -> int:
    """Create, get, delete objects and read logs; a Job's pods are processes."""
    options = _options(arguments)
    words = [argument for argument in arguments if not argument.startswith("--")]
    if words[0] == "create":
        return _create(json.load(sys.stdin))
    if words[:2] == ["get", "job"]:
        if (FOLDER / f"{words[2]}.json").exists():
            print(json.dumps(_status(words[2])))
    elif words[:2] == ["get", "pods"]:
        print(json.dumps({"items": _pods(options["selector"].partition("=")[2])}))
    elif words[:2] == ["delete", "job"]:
        if (FOLDER / f"{words[2]}.json").exists():
            _cancel(words[2])
            (FOLDER / f"{words[2]}.json").unlink()
    elif words[0] == "logs":
        name = options["selector"].split(",")[0].partition("=")[2]
        lines = (FOLDER / f"{name}-0.txt").read_text().splitlines()
        print("\n".join(lines[-int(options["tail"]) :]))
    return 0


def _create(manifest: dict[str, Any]) -> int:
    name = manifest["metadata"]["name"]
    (FOLDER / f"{name}.{manifest['kind']}").write_text(json.dumps(manifest))
    if manifest["kind"] == "Service":
        return _fail("services is forbidden") if (FOLDER / "refuse").exists() else 0
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    job: dict[str, Any] = {"nodes": manifest["spec"]["completions"]}
    if not (FOLDER / "hold").exists():
        command = [word.replace("$$(", "$(") for word in container["command"]]
        variables = {entry["name"]: entry["value"] for entry in container["env"]}
        variables |= {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
        job["pids"] = [
            _start(
                command,
                {**variables, "JOB_COMPLETION_INDEX": str(node)},
                FOLDER / f"{name}-{node}.txt",
                FOLDER / f"{name}-{node}.code",
            )
            for node in range(job["nodes"])
        ]
    _write(name, job)
    print(json.dumps({**manifest, "metadata": {**manifest["metadata"], "uid": "11-22"}}))
    return 0


def _codes(name: str) -> list[str]:
    return [path.read_text().strip() for path in sorted(FOLDER.glob(f"{name}-*.code"))]


def _status(name: str) -> dict[str, Any]:
    codes = _codes(name)
    if len(codes) < _read(name)["nodes"]:
        return {"status": {}}
    if set(codes) == {"0"}:
        return {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}
    return {"status": {"conditions": [failed]}}


def _pods(name: str) -> list[dict[str, Any]]:
    job = _read(name)
    if "pids" not in job:
        scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        return [{"spec": {}, "status": {"phase": "Pending", "conditions": [scheduled]}}]
    phase = "Running" if len(_codes(name)) < job["nodes"] else "Succeeded"
    return [{"spec": {"nodeName": "gpu-1"}, "status": {"phase": phase}}]


# Both


def _options(arguments: tuple[str, ...]) -> dict[str, str]:
    pairs = (word[2:].partition("=") for word in arguments if word.startswith("--"))
    return {name: value for name, _, value in pairs}


def _start(command: list[str], variables: dict[str, str], output: Path, code: Path) -> int:
    """Start a command in a session of its own, which notes its exit status."""
    noting = f'trap "" TERM; (trap - TERM; exec "$@"); echo $? > {shlex.quote(str(code))}'
    with output.open("wb") as log:
        return subprocess.Popen(
            ["sh", "-c", noting, "sh", *command],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        ).pid


def _cancel(name: str) -> None:
    job = _read(name)
    for pid in job.get("pids", ()):
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGTERM)
    _write(name, {**job, "cancelled": True})


def _read(name: str) -> dict[str, Any]:
    job: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return job


def _write(name: str, job: dict[str, Any]) -> None:
    (FOLDER / f"{name}.json").write_text(json.dumps(job))


def _fail(words: str) -> int:
    sys.stderr.write(f"{words}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
