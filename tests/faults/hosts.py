"""Machines on one cable, made of network namespaces: each with processes and an address of its own.

They share this machine's files, as hosts with a common folder do, and nothing else but the cable.
"""

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from tests.webapp.running import ROOT


class Host:
    """One machine: a namespace with one cable to the bridge."""

    def __init__(self, network: "Network", name: str, number: int) -> None:
        self.name = name
        self.address = f"{network.prefix}.{number}"
        self.namespace = f"{network.bridge}-{name}"
        self._cable = f"{network.bridge}{number}"
        self.processes: list[subprocess.Popen[bytes]] = []
        _ip("netns", "add", self.namespace)
        _ip("link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        _ip("link", "set", self._cable, "master", network.bridge, "up")
        _ip("-n", self.namespace, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", self.namespace, "link", "set", device, "up")

    @property
    def prefix(self) -> tuple[str, ...]:
        """Return the words that go before a command to run it here."""
        return ("ip", "netns", "exec", self.namespace)

    def run(self, command: tuple[str, ...], environment: Mapping[str, str], log: Path) -> None:
        """Start a program here."""
        with log.open("ab") as stream:
            process = subprocess.Popen(
                [*self.prefix, *command], env=dict(environment), cwd=ROOT, stdout=stream, stderr=stream
            )
        self.processes.append(process)

    def cut_off(self) -> None:
        """Pull the cable: nothing comes in or goes out, and nobody gets a notice."""
        _ip("link", "set", self._cable, "down")

    def plug_in(self) -> None:
        """Put the cable back."""
        _ip("link", "set", self._cable, "up")

    def freeze(self) -> None:
        """Stop every process here, as a machine that hangs does."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let them go on, as if no time had passed."""
        self._signal(signal.SIGCONT)

    def family(self, words: str = "") -> list[psutil.Process]:
        """The processes that were started here, and theirs; with these words on the line."""
        matches = []
        for started in self.processes:
            with suppress(psutil.Error):
                root = psutil.Process(started.pid)
                for process in [root, *root.children(recursive=True)]:
                    with suppress(psutil.Error):
                        if words in f"{' '.join(process.cmdline())} ":
                            matches.append(process)
        return matches

    def holds(self, worker: str) -> bool:
        """Return whether the worker that a claim names (host:process:draw) is here."""
        parts = worker.split(":")
        return len(parts) > 1 and int(parts[1]) in [process.pid for process in self.processes]

    def close(self) -> None:
        """Kill what runs here and take the machine away."""
        for process in self.family():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for started in self.processes:
            started.wait()
        _ip("netns", "del", self.namespace)

    def _signal(self, number: int) -> None:
        for process in self.family():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


class Network:
    """A bridge that hosts are plugged into; this process reaches them at its own address."""

    def __init__(self) -> None:
        # Two runs at once, on one machine: each has a bridge and a range of addresses of its own.
        number = os.getpid() % 250
        self.bridge = f"rn{number}"
        self.prefix = f"10.213.{number}"
        self.hosts: list[Host] = []
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("addr", "add", f"{self.prefix}.1/24", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")

    def host(self, name: str) -> Host:
        """One more machine."""
        self.hosts.append(Host(self, name, len(self.hosts) + 2))
        return self.hosts[-1]

    def close(self) -> None:
        """Everything is taken away, whatever state it is in."""
        for host in self.hosts:
            host.thaw()
            host.close()
        _ip("link", "del", self.bridge)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
