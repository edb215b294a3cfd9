"""Monitoring in `manage.py up`: starts, crashes, and the model's progress."""

import time
from collections.abc import Callable

import httpx

from webapp.supervision.errors import UpError
from webapp.supervision.family import Family
from webapp.supervision.process_manager import ProcessManager, ProcessManagerGoneError, ProgramState
from webapp.supervision.screen import Screen

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

    def __init__(self, manager: ProcessManager, screen: Screen) -> None:
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

    def __init__(self, url: str, key: str, screen: Screen) -> None:
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
