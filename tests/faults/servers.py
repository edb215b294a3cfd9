"""A PostgreSQL cluster and a Redis of a test's own: on its own ports, in its own folder, to be killed."""

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

from tests.skips import program_of_postgresql
from tests.webapp.running import PATIENCE

_OWNER = "postgres"
"""PostgreSQL refuses to run as root: then it runs as the account that its package made."""
_DATABASE = "rondo"


class Postgres:
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
        self._process: subprocess.Popen[bytes] | None = None
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

    @property
    def pid(self) -> int:
        """The process that the others belong to."""
        return self._process.pid if self._process else 0

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

    def kill(self) -> None:
        """SIGKILL to all of it."""
        _kill_all(self._process)

    def close(self) -> None:
        """End it, and take its folder away."""
        _kill_all(self._process)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _url(self, database: str) -> str:
        return f"postgres://{_OWNER}@{self.host}:{self.port}/{database}"

    def _run(self, command: list[str]) -> None:
        words = [*_as_owner(), _program(command[0]), *command[1:]]
        done = subprocess.run(words, capture_output=True, text=True, cwd="/", check=False)
        assert done.returncode == 0, done.stderr


class Redis:
    """One broker that keeps nothing: what it is killed with is lost."""

    def __init__(
        self, folder: Path, port: int, *, host: str = "127.0.0.1", prefix: Sequence[str] = ()
    ) -> None:
        self.folder = folder / "redis"
        self.folder.mkdir()
        self.host = host
        self.port = port
        self._prefix = tuple(prefix)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """As RONDO_BROKER_URL names it."""
        return f"redis://{self.host}:{self.port}/0"

    @property
    def pid(self) -> int:
        """Its one process."""
        return self._process.pid if self._process else 0

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
        deadline = time.monotonic() + PATIENCE
        while True:
            with suppress(OSError):
                socket.create_connection((self.host, self.port), timeout=2).close()
                return
            assert self._process.poll() is None, (self.folder / "log").read_text()[-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL."""
        _kill_all(self._process)

    def close(self) -> None:
        """End it, and take its folder away."""
        _kill_all(self._process)
        shutil.rmtree(self.folder, ignore_errors=True)


def _kill_all(process: subprocess.Popen[bytes] | None) -> None:
    if process is None:
        return
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(process.pid)
        family = [root, *root.children(recursive=True)]
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)
        psutil.wait_procs(family[1:], timeout=30)
    process.wait()


def _as_owner() -> tuple[str, ...]:
    """What goes before a command of PostgreSQL where this process is root's."""
    if os.getuid() != 0:
        return ()
    account = pwd.getpwnam(_OWNER)
    # `setpriv` becomes the program: no process stands between us and what is to be killed.
    return ("setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups")


def _program(name: str) -> str:
    found = program_of_postgresql(name)
    assert found, f"needs PostgreSQL's {name} (Debian: apt install postgresql)"
    return found
