"""supervisor (supervisord.org) as a child of `manage.py up`.

supervisor restarts programs and rotates their logs; this module writes its configuration and calls it by
XML-RPC. Procfile runners such as honcho stop all programs when one ends.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xmlrpc.client
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, TextIO, cast

import httpx
from supervisor.xmlrpc import SupervisorTransport

from webapp.supervision.family import Family, UpError
from webapp.supervision.programs import Program, environment, working_folder

# The output of `manage.py up`: one line per step, rewritten in place.


_NAME_WIDTH = 15
# Seconds between lines of progress where they cannot be rewritten (a log file, CI).
_SECONDS_BETWEEN_PLAIN_LINES = 5.0


class StepScreen:
    """One line per step. On a terminal a step's line is rewritten until the step is done."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._rewrites = self._stream.isatty()
        self._open: tuple[str, str] | None = None
        self._last_plain = 0.0

    def progress(self, name: str, text: str, *, announce: bool = False) -> None:
        """Report the progress of a step. On a terminal this replaces the step's line.

        Elsewhere a line is written every few seconds, and with `announce` also at once when the words change
        and not only the figures.
        """
        if self._open == (name, text):
            return
        is_new = self._open is None or self._open[0] != name
        has_new_words = is_new or self._open is None or _words(self._open[1]) != _words(text)
        is_due = not is_new and time.monotonic() - self._last_plain >= _SECONDS_BETWEEN_PLAIN_LINES
        if self._rewrites:
            self._write(("\n" if is_new and self._open else "") + f"\r\033[K{_line(name, text)}")
        elif is_due or (announce and has_new_words):
            self._write(f"{_line(name, text)}\n")
        if is_due or is_new or has_new_words:
            self._last_plain = time.monotonic()
        self._open = (name, text)
        self._flush()

    def done(self, name: str, text: str) -> None:
        """Close a step's line with its result."""
        if self._rewrites and self._open:
            self._write("\r\033[K" if self._open[0] == name else "\n")
        self._write(f"{_line(name, text)}\n")
        self._open = None
        self._flush()

    def text(self, text: str = "") -> None:
        """Print lines that belong to no step."""
        if self._rewrites and self._open:
            self._write("\n")
        self._open = None
        self._write(f"{text}\n")
        self._flush()

    def _write(self, text: str) -> None:
        # Where the output is a file on a full disk, a line is lost and no process.
        with suppress(OSError):
            self._stream.write(text)

    def _flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    @contextmanager
    def step(self, name: str, while_at_it: str) -> Iterator[list[str]]:
        """Show a step while it runs; the caller appends its result to the list."""
        outcome: list[str] = []
        self.progress(name, while_at_it)
        yield outcome
        self.done(name, outcome[-1] if outcome else "done")


def _line(name: str, text: str) -> str:
    return f"  {name:<{_NAME_WIDTH}} {text}"


def _words(text: str) -> str:
    return re.sub(r"\d+", "", text)


_LOG_BYTES = "10MB"
_LOG_BACKUPS = 3
_GROUP = "rondo"
_SOCKET_NAME = "supervisor.sock"
_COMPLAINTS_KEPT = 50
"""Lines of supervisord's standard error."""
_LONGEST_SOCKET_PATH = 90
"""Characters: a path has at most 103 on macOS, and supervisor appends its process number at first."""


@dataclass(frozen=True)
class ProgramState:
    """A program's state as supervisor reports it; `state` is RUNNING, BACKOFF, ..."""

    name: str
    state: str
    pid: int


class ProcessManagerGoneError(UpError):
    """The process manager does not answer: it was killed, or could not start."""


class ProcessManager:
    """Keeps programs running: restarts them, rotates their logs, stops all at the end.

    supervisord runs in its own session, so that Ctrl-C reaches only `up`, which then stops everything in
    order.
    """

    def __init__(self, home: Path, programs: Iterable[Program]) -> None:
        self.programs = tuple(programs)
        self.logs = home / "log"
        self._configuration = home / "supervisord.conf"
        self._socket_folder = _new_socket_folder()
        self._socket = self._socket_folder / _SOCKET_NAME
        self._process: subprocess.Popen[bytes] | None = None
        self._complaints: deque[str] = deque(maxlen=_COMPLAINTS_KEPT)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start supervisord with every program. Raise ProcessManagerGoneError if that fails."""
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            self._socket_folder.mkdir(mode=0o700, exist_ok=True)
            self._configuration.write_text(self._configuration_text())
        except OSError as error:
            raise ProcessManagerGoneError(f"The process manager cannot be started: {error}") from error
        supervisord = (sys.executable, "-m", "supervisor.supervisord", "--nodaemon", "--silent")
        self._process = subprocess.Popen(
            [*supervisord, "--configuration", str(self._configuration)],
            # Log names are relative to this folder: supervisor expands `%` in them twice.
            cwd=self.logs,
            env=environment(),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            # A pipe, not a file: supervisor tells there of a log that a full disk does not take, and a
            # failure to tell it would end supervisor.
            stderr=subprocess.PIPE,
        )
        reader = threading.Thread(target=self._read_complaints, args=(self._process.stderr,), daemon=True)
        reader.start()
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                reader.join(timeout=1)
                output = "\n".join(self._complaints)
                raise ProcessManagerGoneError(f"The process manager ended at once: {output}")
            try:
                self.states()
            except ProcessManagerGoneError:
                # The socket stands a moment before anybody listens.
                time.sleep(0.05)
            else:
                return
        raise ProcessManagerGoneError("The process manager did not come up within 30 seconds.")

    def states(self) -> list[ProgramState]:
        """Return the state of every program. Raise ProcessManagerGoneError without an answer."""
        rows = cast(list[dict[str, Any]], self._call("getAllProcessInfo"))
        return [ProgramState(row["name"], row["statename"], row["pid"]) for row in rows]

    def start_again(self, name: str) -> None:
        """Start a program that was given up, unless it runs meanwhile."""
        try:
            self._call("startProcess", f"{_GROUP}:{name}", False)
        except xmlrpc.client.Fault:
            # It runs or failed at once; the next reading of the states tells which.
            return

    def stop(self) -> None:
        """Stop every program gracefully, then supervisord; kill supervisord's group if it hangs."""
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=max(program.seconds_to_stop for program in self.programs) + 5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._socket_folder, ignore_errors=True)

    def _read_complaints(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                self._complaints.append(line.decode(errors="replace").rstrip())

    def last_log_line(self, name: str) -> str:
        """Return the last non-empty line of a program's log, for a message about its end."""
        try:
            with (self.logs / f"{name}.log").open("rb") as stream:
                stream.seek(max(0, stream.seek(0, os.SEEK_END) - 8192))
                lines = stream.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def _call(self, method: str, *arguments: object) -> Any:
        transport = SupervisorTransport(None, None, f"unix://{self._socket}")
        proxy = xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport)
        try:
            return getattr(proxy.supervisor, method)(*arguments)
        except (OSError, HTTPException) as error:
            raise ProcessManagerGoneError(f"The process manager does not answer: {error}") from error
        finally:
            transport.close()

    def _configuration_text(self) -> str:
        sections: dict[str, dict[str, object]] = {
            "unix_http_server": {"file": self._socket, "chmod": "0700"},
            "rpcinterface:supervisor": {
                "supervisor.rpcinterface_factory": "supervisor.rpcinterface:make_main_rpcinterface"
            },
            "supervisord": {
                "logfile": "supervisord.log",
                "logfile_maxbytes": _LOG_BYTES,
                "logfile_backups": _LOG_BACKUPS,
                "pidfile": "supervisord.pid",
                "minfds": 256,
                # Logs are not for other users of the machine.
                "umask": "077",
            },
        }
        # One group, so that its programs are stopped together.
        sections[f"group:{_GROUP}"] = {"programs": ",".join(program.name for program in self.programs)}
        for program in self.programs:
            sections[f"program:{program.name}"] = self._program_section(program)
        return "\n".join(
            f"[{section}]\n" + "".join(f"{key}={value}\n" for key, value in options.items())
            for section, options in sections.items()
        ).replace("%", "%%")

    def _program_section(self, program: Program) -> dict[str, object]:
        return {
            "command": " ".join(_quoted(word) for word in program.command),
            "directory": working_folder(),
            "autorestart": "true",
            "startsecs": 2,
            "startretries": 8,
            "stopwaitsecs": program.seconds_to_stop,
            "stopasgroup": "true",
            "killasgroup": "true",
            "redirect_stderr": "true",
            "stdout_logfile": f"{program.name}.log",
            "stdout_logfile_maxbytes": _LOG_BYTES,
            "stdout_logfile_backups": _LOG_BACKUPS,
        }


def _new_socket_folder() -> Path:
    """Make a temporary folder for the socket: in `/tmp` where the usual place has too long a name."""
    folder = Path(tempfile.mkdtemp(prefix="rondo-"))
    if len(str(folder / _SOCKET_NAME)) > _LONGEST_SOCKET_PATH:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="rondo-", dir="/tmp"))
    return folder


def _quoted(word: str) -> str:
    """Quote a word of a command for supervisor's own shlex."""
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


# Monitoring in `manage.py up`: starts, crashes, and the model's progress.

_SECONDS_BETWEEN_LOOKS = 0.5
# Every check writes a line to the model server's log.
_SECONDS_BETWEEN_LOOKS_WHEN_SETTLED = 10.0
_SETTLED = ("ready", "failed")
# Retry a program that was given up (its database was down, say) this often.
_SECONDS_BEFORE_ANOTHER_TRY = 30.0


class DidNotStartError(UpError):
    """The web server did not start; carries its last output."""


def wait_for_web(manager: ProcessManager, family: Family, address: str, seconds: float = 180.0) -> None:
    """Wait until the web server answers at `address`. Raise DidNotStartError if it does not."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        _look_at_family(manager, family)
        try:
            httpx.get(f"{address}/login/", timeout=5, trust_env=False)
            return
        except httpx.HTTPError:
            states = {state.name: state.state for state in manager.states()}
            if states.get("web") == "FATAL":
                break
            time.sleep(0.1)
    raise DidNotStartError(
        f"The web server did not come up. Its last words: {manager.last_log_line('web')!r}. "
        f"The whole story is in {manager.logs / 'web.log'}."
    )


class ProgramWatch:
    """Reports in one line when a program dies and when it runs again."""

    def __init__(self, manager: ProcessManager, screen: StepScreen) -> None:
        self._manager = manager
        self._screen = screen
        self._titles = {program.name: program.title for program in manager.programs}
        self._pids: dict[str, int] = {}
        self._given_up: dict[str, float] = {}

    def look(self) -> None:
        """Compare each program with its previous state. Raise ProcessManagerGoneError."""
        for now in self._manager.states():
            if now.state == "FATAL":
                self._give_up(now)
            elif now.state in ("STARTING", "RUNNING") and now.pid:
                self._note_start(now)

    def _note_start(self, now: ProgramState) -> None:
        before = self._pids.get(now.name)
        if before not in (None, now.pid):
            self._screen.done(
                self._titles[now.name], f"process {before} died; started again as process {now.pid}"
            )
        self._pids[now.name] = now.pid
        if now.state == "RUNNING":
            self._given_up.pop(now.name, None)

    def _give_up(self, now: ProgramState) -> None:
        last_try = self._given_up.get(now.name)
        if last_try is None:
            self._screen.done(
                self._titles[now.name],
                f"does not stay up. Its last words: {self._manager.last_log_line(now.name)!r}; "
                f"more in {self._manager.logs / f'{now.name}.log'}. Trying on every "
                f"{_SECONDS_BEFORE_ANOTHER_TRY:.0f} seconds.",
            )
            self._given_up[now.name] = time.monotonic()
        elif time.monotonic() - last_try >= _SECONDS_BEFORE_ANOTHER_TRY:
            self._given_up[now.name] = time.monotonic()
            self._manager.start_again(now.name)


class ModelWatch:
    """Reports the state of the model server: fetching, loading, ready, or its error."""

    def __init__(self, url: str, key: str, screen: StepScreen) -> None:
        self._client = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=2, trust_env=False
        )
        self._screen = screen
        self._said: tuple[str, str] | None = None
        self._next_look = 0.0

    def look(self) -> None:
        """Query the model server's health and print changes."""
        if time.monotonic() < self._next_look:
            return
        try:
            report = self._client.get("/health").json()
            state, message = str(report["state"]), str(report.get("message") or report["state"])
            progress = report.get("progress")
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            # Not started, or restarting: the watch over programs reports that.
            return
        if state in _SETTLED:
            self._next_look = time.monotonic() + _SECONDS_BETWEEN_LOOKS_WHEN_SETTLED
            if self._said != (state, message):
                self._screen.done("model", message)
        else:
            share = "" if progress is None else f": {float(progress):.0%}"
            self._screen.progress("model", f"{message}{share}", announce=True)
        self._said = (state, message)


def watch(manager: ProcessManager, family: Family, looks: list[Callable[[], None]]) -> None:
    """Check everything twice a second until a signal or the end of the process manager."""
    while True:
        _look_at_family(manager, family)
        for look in looks:
            look()
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _look_at_family(manager: ProcessManager, family: Family) -> None:
    if manager.pid is None:
        raise ProcessManagerGoneError("The process manager was never started.")
    family.look(manager.pid)
