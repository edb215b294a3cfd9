"""A Slurm of three nodes on this machine, as root: munge, slurmctld and three slurmd in a folder."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil

NODES = ("n1", "n2", "n3")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")

_CONFIGURATION = """\
ClusterName=rondo
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
KillWait=20
MinJobAge=120
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=2,sched_interval=2
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class SlurmCluster:
    """The cluster; `environment` makes this machine's commands speak to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        ports = [_free_port() for _ in range(4)]
        host = socket.gethostname()
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=2000"
            for name, port in zip(NODES, ports[1:], strict=True)
        )
        self.configuration = folder / "slurm.conf"
        self.configuration.write_text(
            _CONFIGURATION.format(host=host, ports=ports, folder=folder, nodes=nodes)
        )
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (folder / name).mkdir(exist_ok=True)

    @property
    def environment(self) -> dict[str, str]:
        """Variables for Slurm's commands."""
        return {"SLURM_CONF": str(self.configuration)}

    def start(self) -> None:
        """Start everything and wait until all nodes are idle."""
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        files = ("key-file", "key"), ("socket", "socket"), ("pid-file", "pid"), ("log-file", "log")
        munge = [f"--{name}={self.folder}/munge.{suffix}" for name, suffix in files]
        # A cookie of tests may lie below a folder that others can write.
        self._start("munged", "munged", "--foreground", "--force", *munge, f"--seed-file={self.folder}/seed")
        _wait(lambda: (self.folder / "munge.socket").exists(), "munged")
        self.start_controller()
        for node in NODES:
            self.start_node(node)
        _wait(lambda: self._idle() == len(NODES), "three idle nodes")

    def start_controller(self) -> None:
        """Start slurmctld; it goes on with the jobs that it knew."""
        self._start("slurmctld", "slurmctld", "-D")

    def stop_controller(self) -> None:
        """Kill slurmctld: Slurm is unreachable, its jobs run on."""
        self._kill("slurmctld")

    def start_node(self, node: str) -> None:
        """Start a node's slurmd."""
        self._start(node, "slurmd", "-D", "-N", node)

    def kill_node(self, node: str) -> None:
        """End a node as a power cut does: its slurmd, and every process of its jobs."""
        self._kill(node)
        for process in _processes_of(node):
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def stop(self) -> None:
        """End everything."""
        for node in NODES:
            self.kill_node(node)
        for name in list(self._daemons):
            self._kill(name)

    def command(self, *command: str) -> str:
        """Run one of Slurm's programs."""
        return subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, check=True
        ).stdout

    def _idle(self) -> int:
        try:
            return int(self.command("sinfo", "--noheader", "--states=idle", "--format=%D").split()[0])
        except (subprocess.CalledProcessError, IndexError, ValueError):
            return 0

    def _start(self, name: str, program: str, *arguments: str) -> None:
        path = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")
        assert path is not None, program
        with (self.folder / f"{name}.out").open("ab") as output:
            self._daemons[name] = subprocess.Popen(
                [path, *arguments],
                env={**os.environ, **self.environment},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _kill(self, name: str) -> None:
        process = self._daemons.pop(name, None)
        if process is not None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            process.wait()


def missing_programs() -> list[str]:
    """Return the required programs that are not installed."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    return [program for program in PROGRAMS if shutil.which(program, path=path) is None]


def _processes_of(node: str) -> list[psutil.Process]:
    """The tasks of a node, and the slurmstepd above each."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("SLURMD_NODENAME") == node:
                processes.append(process)
                parent = process.parent()
                if parent is not None and parent.name() == "slurmstepd":
                    processes.insert(0, parent)
    return processes


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(condition, what: str, seconds: float = 40.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"no {what} within {seconds} s"
        time.sleep(0.2)
