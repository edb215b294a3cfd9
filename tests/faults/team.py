"""A team's Rondo: two web hosts, two worker hosts, and one with database, broker and model server."""

import signal
import sys
from dataclasses import replace
from pathlib import Path

from tests.faults.ground import Ground
from tests.faults.hosts import Host, Network
from webapp.supervision import programs

_WEB_PORT = 8000
_MODEL_PORT = 8001
_RELAY_PORT = 6000


class Team(Ground):
    """Hosts on a cable, which share a folder. The second web host has a slow line to the database."""

    def __init__(self, folder: Path, models: Path) -> None:
        self.network = Network()
        self.store = self.network.host("store")
        super().__init__(folder, models, host=self.store.address, prefix=self.store.prefix)
        self.webs = [self.network.host(name) for name in ("web1", "web2")]
        self.workers = [self.network.host(name) for name in ("work1", "work2")]
        self.logs_folder = self.home / "log"
        self.logs_folder.mkdir()

    @property
    def variables(self) -> dict[str, str]:
        """Rondo's part of the environment, with quick verdicts over a line on which nothing comes."""
        common = super().variables
        patience = "connect_timeout=1&tcp_user_timeout=2000"
        return {
            **common,
            "DATABASE_URL": f"{common['DATABASE_URL']}?{patience}",
            "RONDO_MODEL_SERVER_URL": f"http://{self.store.address}:{_MODEL_PORT}",
            "RONDO_WEB_PROCESSES": "1",
            "RONDO_MODEL_SERVER_KEY": "only for this team",
            "RONDO_ALLOWED_HOSTS": "127.0.0.1",
        }

    @property
    def places(self) -> list[tuple[str, int]]:
        """Return the addresses and ports of the pages."""
        return [(web.address, _WEB_PORT) for web in self.webs]

    def start(self) -> None:
        """Start every program on its host; whoever needs another waits for it by itself."""
        self._run_here(self.store, self._model_server())
        relay = ("tests.faults.relay", str(_RELAY_PORT), self.store.address, str(self.postgres.port))
        self.webs[1].run((sys.executable, "-m", *relay), self.environment, self.logs_folder / "relay.log")
        far = f"{self.store.address}:{self.postgres.port}"
        slow = self.variables["DATABASE_URL"].replace(far, f"127.0.0.1:{_RELAY_PORT}")
        for web, database in zip(self.webs, (self.variables["DATABASE_URL"], slow), strict=True):
            program = programs.web(web.address, _WEB_PORT)
            self._run_here(web, program, DATABASE_URL=database)
        for worker in self.workers:
            self._run_here(worker, programs.worker())
            self._run_here(worker, programs.short_worker())

    def line(self, *, slow: bool) -> None:
        """Make the line between the second web host and the database slow, or quick again."""
        [relay] = self.webs[1].family("tests.faults.relay")
        relay.send_signal(signal.SIGUSR1 if slow else signal.SIGUSR2)

    def who_does(self, kind: str) -> Host | None:
        """The worker host that holds a step of round 1; None while nobody does."""
        held = self.value(
            f"SELECT worker FROM training_roundstep WHERE kind = '{kind}' AND state = 'running'"
        )
        return next((host for host in self.workers if held and host.holds(held)), None)

    def the_other(self, worker: Host) -> Host:
        """The worker host that is not this one."""
        return self.workers[1 - self.workers.index(worker)]

    def close(self) -> None:
        """Take everything away."""
        self._enough.set()
        super().close()
        self.network.close()

    def _run_here(self, host: Host, program: programs.Program, **variables: str) -> None:
        log = self.logs_folder / f"{host.name}-{program.name}.log"
        host.run(program.command, {**self.environment, **variables}, log)

    def _model_server(self) -> programs.Program:
        program = programs.model_server()
        words = list(program.command)
        options = {
            "--host": self.store.address,
            "--port": str(_MODEL_PORT),
            "--models": str(self.home / "models"),
            "--checkpoints": str(self.home / "checkpoints"),
            "--base": self.variables["RONDO_STARTER_MODEL_NAME"],
        }
        for option, value in options.items():
            words[words.index(option) + 1] = value
        return replace(program, command=tuple(words))
