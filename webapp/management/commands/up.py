"""`manage.py up`: checks, database, first project, then web, worker and model server until Ctrl-C."""

import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, connection, connections
from django.db.migrations.executor import MigrationExecutor

from training.contract.log_lines import errors_alone
from webapp.database.history import REMEDY, unfinished_apps
from webapp.environment import manage, required_packages
from webapp.first_project import ensure_first_project
from webapp.supervision import programs
from webapp.supervision.family import Family, UpError, only_one, say_where
from webapp.supervision.preflight import (
    NewAccount,
    PreflightError,
    check_disk,
    check_home,
    check_packages,
    check_port,
    check_starter_folder,
    declare_queues,
    ensure_accounts,
)
from webapp.supervision.process_manager import (
    ModelWatch,
    ProcessManager,
    ProcessManagerGoneError,
    ProgramWatch,
    StepScreen,
    wait_for_web,
    watch,
)
from webapp.supervision.programs import collect_if_changed

_SECONDS_BEFORE_ANOTHER_START = 5.0


class _Asked(BaseException):
    """A signal asked `up` to stop. A BaseException, so that no handler of Exception swallows it."""


class Command(BaseCommand):
    help = "Start everything on this machine and keep it running: web server, worker, model server."
    requires_system_checks = []
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default=settings.RONDO_HOST, help="Where the web server listens.")
        parser.add_argument("--port", type=int, default=settings.RONDO_PORT, help="Its port (RONDO_PORT).")
        parser.add_argument(
            "--no-first-project", action="store_true", help="Start with no project of our writing."
        )
        parser.add_argument(
            "--no-model-server",
            action="store_true",
            help="Start none; the one at RONDO_MODEL_SERVER_URL answers.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        os.umask(0o077)
        home = Path(settings.RONDO_HOME)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, _ask)
        try:
            check_home(home)
            # Everything else is in the programs' logs.
            with only_one(home), errors_alone():
                _Up(home, StepScreen(sys.stdout), **_chosen(options)).run()
        except UpError as error:
            raise CommandError(str(error)) from error
        except _Asked:
            # Nothing has been started yet, so there is nothing to stop.
            return


def _ask(_number: int, _frame: FrameType | None) -> NoReturn:
    raise _Asked


def _chosen(options: dict[str, Any]) -> dict[str, Any]:
    return {
        "host": options["host"],
        "port": options["port"],
        "with_first_project": not options["no_first_project"],
        "with_model_server": programs.is_model_server_ours() and not options["no_model_server"],
    }


class _Up:
    """One start of Rondo; the methods are in the order of the steps."""

    def __init__(
        self,
        home: Path,
        screen: StepScreen,
        *,
        host: str,
        port: int,
        with_first_project: bool,
        with_model_server: bool,
    ) -> None:
        self.home = home
        self.screen = screen
        self.host = host
        self.port = port
        self.with_first_project = with_first_project
        self.with_model_server = with_model_server
        self.family = Family(home)
        self.new_accounts: list[NewAccount] = []

    @property
    def address(self) -> str:
        # A server on all addresses is reached from this machine by the loopback address.
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)  # noqa: S104 - compared, not bound
        return f"http://{f'[{host}]' if ':' in host and not host.startswith('[') else host}:{self.port}"

    def run(self) -> None:
        self.screen.text("Rondo")
        with ExitStack() as at_the_end:
            self.clear_up_after_the_last_one()
            self.check()
            if self.with_model_server and (fetch := programs.fetch_starter()):
                # Beside the database; the model server goes on with what is there.
                at_the_end.callback(programs.end_fetch, fetch)
            self.prepare_database()
            # From here on, new passwords are shown even if a step fails.
            at_the_end.callback(self.show_new_accounts)
            self.prepare_content()
            self.prepare_static_files()
            manager = ProcessManager(self.home, self.programs())
            at_the_end.callback(self.stop, manager)
            try:
                self.start(manager)
                self.keep_running(manager)
            except _Asked:
                self.screen.text()

    def clear_up_after_the_last_one(self) -> None:
        self.family.recall()
        if ended := self.family.end(seconds=10):
            self.screen.done("last time", f"ended {ended} processes that an `up` killed earlier left behind")

    def check(self) -> None:
        with self.screen.step("checks", "packages, disk, ports") as outcome:
            count = check_packages(required_packages())
            starter = Path(settings.RONDO_MODELS) / settings.RONDO_STARTER_MODEL_NAME
            check_starter_folder(os.environ.get("RONDO_STARTER_MODEL", ""))
            free = check_disk(self.home, starter_is_there=starter.is_dir())
            check_port(self.host, self.port, variable="RONDO_PORT", purpose="the web server")
            if self.with_model_server:
                check_port(
                    "127.0.0.1",
                    settings.RONDO_MODEL_SERVER_PORT,
                    variable="RONDO_MODEL_SERVER_PORT",
                    purpose="the model server",
                )
            outcome.append(f"{count} packages, {free / 1024**3:.0f} GB free, ports free")

    def prepare_database(self) -> None:
        with self.screen.step("database", "migrating") as outcome:
            try:
                if unfinished_apps(connection):
                    raise PreflightError(f"This release cannot bring the database up to date. {REMEDY}")
                executor = MigrationExecutor(connection)
                plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
                if plan:
                    call_command("migrate", verbosity=0, interactive=False)
            except DatabaseError as error:
                raise PreflightError(_database_refused(error)) from error
            outcome.append(f"{connection.display_name}, {len(plan) or 'no'} migrations to apply")

    def prepare_content(self) -> None:
        declare_queues()
        with self.screen.step("accounts", "looking") as outcome:
            self.new_accounts = ensure_accounts()
            names = " and ".join(account.username for account in self.new_accounts)
            outcome.append(f"made {names}" if names else "as they were")
        if self.with_first_project:
            with self.screen.step("first project", "writing prompts and guidelines") as outcome:
                outcome.append(ensure_first_project())
        connections.close_all()

    def prepare_static_files(self) -> None:
        with self.screen.step("static files", "looking") as outcome:
            count, changed = collect_if_changed()
            outcome.append(f"{count}, collected" if changed else f"{count}, unchanged")

    def programs(self) -> list[programs.Program]:
        chosen = [programs.web(self.host, self.port), programs.worker(), programs.short_worker()]
        return [*chosen, programs.model_server()] if self.with_model_server else chosen

    def start(self, manager: ProcessManager) -> None:
        with self.screen.step("web", "starting") as outcome:
            manager.start()
            wait_for_web(manager, self.family, self.address)
            outcome.append("answers")
        say_where(self.home, self.address)
        self.screen.text(f"\n  Rondo is at {self.address}")
        self.show_new_accounts()
        self.screen.text(f"  Ctrl-C stops everything. Logs are in {manager.logs}.\n")

    def show_new_accounts(self) -> None:
        for account in self.new_accounts:
            self.screen.text(
                f"  sign in as {account.username} with {account.password}   "
                f"({account.purpose}; shown only now)"
            )
        if self.new_accounts:
            self.screen.text(f"  to set another password: {manage('changepassword NAME')}")
        self.new_accounts = []

    def keep_running(self, manager: ProcessManager) -> None:
        model = ModelWatch(settings.RONDO_MODEL_SERVER_URL, settings.RONDO_MODEL_SERVER_KEY, self.screen)
        while True:
            try:
                watch(manager, self.family, [ProgramWatch(manager, self.screen).look, model.look])
            except ProcessManagerGoneError as error:
                self.screen.done("process manager", f"{error} Starting it again.")
                self.start_manager_again(manager)

    def start_manager_again(self, manager: ProcessManager) -> None:
        """End what a process manager left, and start it until it stays: there may be no room on the disk."""
        said = ""
        while True:
            manager.stop()
            self.family.end(seconds=10)
            try:
                manager.start()
                break
            except ProcessManagerGoneError as error:
                if str(error) != said:
                    self.screen.done("process manager", f"{error} Trying on.")
                said = str(error)
                time.sleep(_SECONDS_BEFORE_ANOTHER_START)
        self.screen.done("process manager", "started again, with every program")

    def stop(self, manager: ProcessManager) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # Already stopping: a second Ctrl-C must not leave processes running.
            signal.signal(number, signal.SIG_IGN)
        with self.screen.step("stopping", "web, workers, model server") as outcome:
            if manager.pid is not None:
                self.family.look(manager.pid)
            manager.stop()
            self.family.end(seconds=10)
            outcome.append("all stopped; run it again whenever you like, nothing is lost")


def _database_refused(error: DatabaseError) -> str:
    where = settings.DATABASES["default"]
    if connection.vendor == "sqlite":
        return (
            f"The database {where['NAME']} cannot be used: {error}. "
            "Is its disk full, or does it belong to somebody else?"
        )
    server = f"{where['HOST'] or 'the local socket'}:{where['PORT'] or 'default port'}"
    return (
        f"The database {where['NAME']} at {server} cannot be used: {str(error).strip()}. Check "
        f"DATABASE_URL, and that the server runs and lets {where['USER'] or 'you'} in."
    )
