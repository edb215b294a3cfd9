"""Servers of a test's own, on their own ports and in their own folder, to be killed."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg

from tests.skips import RABBITMQ_SERVER, program_of_postgresql
from tests.webapp.running import PATIENCE, free_port

_OWNER = "postgres"
"""PostgreSQL refuses to run as root: then it runs as the account that its package made."""
_DATABASE = "rondo"


class _Server:
    """A program with a folder of its own."""

    folder: Path
    _process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process that the others belong to."""
        return self._process.pid if self._process else 0

    def kill(self) -> None:
        """SIGKILL to all of it."""
        _kill_all(self._process)

    def close(self) -> None:
        """End it, and take its folder away."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait_for(self, host: str, port: int) -> None:
        """Until it listens."""
        deadline = time.monotonic() + PATIENCE
        while True:
            with suppress(OSError):
                socket.create_connection((host, port), timeout=2).close()
                return
            assert self._process.poll() is None, (self.folder / "log").read_text()[-3000:]
            assert time.monotonic() < deadline, (self.folder / "log").read_text()[-3000:]
            time.sleep(0.05)


class Postgres(_Server):
    """One cluster. Killing it kills every process that it has, as a machine that loses its power does.

    `prefix` goes before each command: a network namespace to run in.
    """

    def __init__(
        self, folder: Path, port: int, *, host: str = "127.0.0.1", prefix: Sequence[str] = ()
    ) -> None:
        self.folder = folder / "postgres"
        self.port = port
        self.host = host
        self._prefix = tuple(prefix)
        self.folder.mkdir(mode=0o700)
        if os.getuid() == 0:
            shutil.chown(self.folder, _OWNER)
        data = str(self.folder / "data")
        initdb = ["initdb", "--pgdata", data, "--auth=trust", "--encoding=UTF8", "--no-sync"]
        self._run([*initdb, f"--username={_OWNER}"])
        (self.folder / "data" / "pg_hba.conf").write_text("host all all all trust\nlocal all all trust\n")
        self.start()
        with psycopg.connect(self._url("postgres"), autocommit=True) as server:
            server.execute(f"create database {_DATABASE}")

    @property
    def url(self) -> str:
        """The database, as DATABASE_URL names it."""
        return self._url(_DATABASE)

    def start(self) -> None:
        """Start it, again if need be, and wait until it answers."""
        settings = {
            "port": self.port,
            "listen_addresses": f"{self.host}" if self.host == "127.0.0.1" else "*",
            "unix_socket_directories": self.folder,
            "max_connections": 200,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        deadline = time.monotonic() + PATIENCE
        while True:
            with (self.folder / "log").open("ab") as log:
                self._process = subprocess.Popen(
                    [
                        *self._prefix,
                        *_as_owner(),
                        _program("postgres"),
                        "-D",
                        str(self.folder / "data"),
                        *options,
                    ],
                    stdout=log,
                    stderr=log,
                    cwd="/",
                )
            while self._process.poll() is None:
                with suppress(psycopg.OperationalError):
                    psycopg.connect(self._url("postgres"), connect_timeout=2).close()
                    return
                assert time.monotonic() < deadline, (self.folder / "log").read_text()[-3000:]
                time.sleep(0.05)
            # Children of the one that was killed may still hold its shared memory: they end by themselves.
            assert time.monotonic() < deadline, (self.folder / "log").read_text()[-3000:]
            time.sleep(0.1)

    def _url(self, database: str) -> str:
        return f"postgres://{_OWNER}@{self.host}:{self.port}/{database}"

    def _run(self, command: list[str]) -> None:
        words = [*_as_owner(), _program(command[0]), *command[1:]]
        done = subprocess.run(words, capture_output=True, text=True, cwd="/", check=False)
        assert done.returncode == 0, done.stderr


class Redis(_Server):
    """One broker that keeps nothing: what it is killed with is lost."""

    def __init__(
        self, folder: Path, port: int, *, host: str = "127.0.0.1", prefix: Sequence[str] = ()
    ) -> None:
        self.folder = folder / "redis"
        self.folder.mkdir()
        self.host = host
        self.port = port
        self._prefix = tuple(prefix)
        self.start()

    @property
    def url(self) -> str:
        """As RONDO_BROKER_URL names it."""
        return f"redis://{self.host}:{self.port}/0"

    def start(self) -> None:
        """Start it, again if need be, and wait until it answers."""
        options = {
            "port": self.port,
            "bind": self.host,
            "dir": self.folder,
            "save": "",
            "protected-mode": "no",
        }
        words = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        with (self.folder / "log").open("ab") as log:
            command = [*self._prefix, "redis-server", *words]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self._wait_for(self.host, self.port)


class RabbitMQ(_Server):
    """One node; it keeps durable messages on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "rabbitmq"
        self.folder.mkdir()
        self.port = free_port()
        plugins = self.folder / "plugins"
        plugins.write_text("[].")
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RABBITMQ_")},
            "HOME": str(self.folder),
            "RABBITMQ_NODENAME": f"rondo-{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "logs"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            # Erlang nodes find each other by a program of which a machine has one; this is ours alone.
            "ERL_EPMD_PORT": str(free_port()),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        self.start()

    @property
    def url(self) -> str:
        """As RONDO_BROKER_URL names it."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def start(self) -> None:
        """Start it, again if need be, and wait until it answers."""
        with (self.folder / "log").open("ab") as log:
            # Not the one in PATH: Debian's becomes another user first.
            self._process = subprocess.Popen(
                [RABBITMQ_SERVER], env=self._environment, stdout=log, stderr=log, cwd="/"
            )
        self._wait_for("127.0.0.1", self.port)

    def close(self) -> None:
        """End it, and take its folder away."""
        self.kill()
        # It has made itself nobody's child.
        port = self._environment["ERL_EPMD_PORT"]
        subprocess.run(["epmd", "-port", port, "-kill"], capture_output=True, check=False)
        super().close()


def _kill_all(process: subprocess.Popen[bytes] | None) -> None:
    if process is None:
        return
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(process.pid)
        family = [root, *root.children(recursive=True)]
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.send_signal(signal.SIGKILL)
        psutil.wait_procs(family[1:], timeout=30)
    process.wait()


def _as_owner() -> tuple[str, ...]:
    """Return the words that go before a command of PostgreSQL if this process runs as root."""
    if os.getuid() != 0:
        return ()
    account = pwd.getpwnam(_OWNER)
    # `setpriv` becomes the program: no process stands between us and what is to be killed.
    return ("setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups")


def _program(name: str) -> str:
    path = program_of_postgresql(name)
    assert path, f"needs PostgreSQL's {name} (Debian: apt install postgresql)"
    return path
