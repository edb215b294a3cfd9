"""Checks before anything is started. Each refusal names the problem and the remedy."""

import errno
import secrets
import shutil
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from django.conf import settings
from kombu.exceptions import KombuError
from packaging.requirements import Requirement

from annotation.models import User
from webapp.celery import app
from webapp.environment import IS_CHECKOUT
from webapp.supervision.family import UpError

# The starter model, its download, a database and a few checkpoints.
FREE_BYTES_FIRST_START = 2 * 1024**3
# A round writes adapters and a run's state.
FREE_BYTES_LATER = 300 * 1024**2


class PreflightError(UpError):
    """A reason not to start: what is wrong, where, and the remedy."""


def check_packages(required: Sequence[Requirement]) -> int:
    """Check that every required package is installed in its version. Return how many."""
    wrong = [text for requirement in required if (text := _what_is_wrong(requirement))]
    if wrong:
        raise PreflightError(
            f"Packages are missing or of the wrong version: {', '.join(wrong)}. "
            f"Run `{'make install' if IS_CHECKOUT else 'pip install --force-reinstall rondo'}`, "
            "which installs what is missing."
        )
    return len(required)


def _what_is_wrong(requirement: Requirement) -> str:
    if requirement.marker and not requirement.marker.evaluate():
        return ""
    try:
        # A local version label such as 2.13.0+cpu names a build, not another version.
        installed = version(requirement.name).partition("+")[0]
    except PackageNotFoundError:
        return requirement.name
    if requirement.specifier.contains(installed, prereleases=True):
        return ""
    return f"{requirement.name} {installed} (wanted {requirement.specifier})"


def check_home(home: Path) -> None:
    """Check that RONDO_HOME is writable."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=home, prefix=".write-test-"):
            pass
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise PreflightError(_disk_full(home, 0, FREE_BYTES_LATER)) from error
        raise PreflightError(
            f"{home} cannot be written: {error.strerror}. Change its owner or permissions, "
            "or name another folder: RONDO_HOME=/path/to/folder make run."
        ) from error


def check_disk(home: Path, *, starter_is_there: bool) -> int:
    """Check that there is enough free space. Return the free bytes."""
    needed = FREE_BYTES_LATER if starter_is_there else FREE_BYTES_FIRST_START
    free = shutil.disk_usage(home).free
    if free < needed:
        raise PreflightError(_disk_full(home, free, needed))
    return free


def _disk_full(home: Path, free: int, needed: int) -> str:
    return (
        f"The disk that holds {home} is full or nearly so: {free / 1024**2:.0f} MB are free and "
        f"{needed / 1024**2:.0f} MB are needed. Free some space, or name a folder on another disk: "
        "RONDO_HOME=/path/to/folder make run."
    )


def check_starter_folder(named: str) -> None:
    """Check that RONDO_STARTER_MODEL, if set, names a folder with a model."""
    if named and not (Path(named).expanduser() / "config.json").is_file():
        raise PreflightError(
            f"RONDO_STARTER_MODEL is {named}, and there is no model in that folder (no config.json). "
            "Name the folder that holds config.json and the weights, or unset it to have the model fetched."
        )


def check_port(host: str, port: int, *, variable: str, purpose: str) -> None:
    """Check that `purpose` can listen on host:port. `variable` is the setting that changes it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Like the servers: a port whose last connections are closing is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            # On macOS two sockets may bind so; only one may listen.
            probe.listen(1)
        except (OSError, OverflowError) as error:
            raise PreflightError(_port_refused(host, port, variable, purpose, error)) from error


def _port_refused(host: str, port: int, variable: str, purpose: str, error: Exception) -> str:
    example = f"{variable}={port + 80 if port < 60000 else 8080} make run"
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.EADDRINUSE:
        return (
            f"Port {port} on {host}, wanted for {purpose}, is taken by another program. "
            f"Stop that program, or choose another port: {example}."
        )
    if code in (errno.EACCES, errno.EPERM):
        return (
            f"Port {port}, wanted for {purpose}, may only be opened by the system's administrator. "
            f"Choose one above 1023: {example}."
        )
    if code == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return (
            f"{host}, wanted for {purpose}, is no address of this machine. "
            "Set RONDO_HOST to one that is, or to 127.0.0.1."
        )
    return f"{host}:{port}, wanted for {purpose}, cannot be opened: {error}. Set {variable} to another port."


# The first accounts, with random passwords that are shown once.


@dataclass(frozen=True)
class NewAccount:
    """A new account with its password."""

    username: str
    password: str
    purpose: str


def ensure_accounts() -> list[NewAccount]:
    """Create `admin` if there is no superuser, and `annotator` if there are no users. Return both.

    Existing accounts stay unchanged: if `admin` is taken, the new one is `rondo-admin`.
    """
    first_start = not User.objects.exists()
    made = []
    if not User.objects.filter(is_superuser=True, is_active=True).exists():
        free = (name for name in ("admin", "rondo-admin") if not User.objects.filter(username=name).exists())
        made.append(
            _make(next(free, f"admin-{secrets.token_hex(3)}"), "runs rounds, sees all", superuser=True)
        )
    if first_start:
        made.append(_make("annotator", "annotates", superuser=False))
    return made


def _make(username: str, purpose: str, *, superuser: bool) -> NewAccount:
    password = secrets.token_urlsafe(12)
    User.objects.create_user(username=username, password=password, is_superuser=superuser, is_staff=superuser)
    return NewAccount(username, password, purpose)


# Declaration of the broker's queues before a process uses them.


def declare_queues() -> None:
    """Declare the queues of tasks. Raise `PreflightError` if the broker cannot be reached.

    Web server and worker declare them too, but at the same moment: on a first start in a folder one of them
    can read the other's half-written table.
    """
    connection = app.connection_for_write()
    try:
        with connection:
            connection.ensure_connection(max_retries=1, timeout=5)
            for queue in app.amqp.queues.values():
                queue.bind(connection.default_channel).declare()
    except (KombuError, OSError) as error:
        raise PreflightError(
            f"The message broker does not answer at {connection.as_uri()}: {error}. "
            "Check RONDO_BROKER_URL and that the broker runs"
            + (
                f", or that {settings.RONDO_HOME / 'broker'} can be written."
                if str(settings.CELERY_BROKER_URL).startswith("filesystem:")
                else "."
            )
        ) from error
