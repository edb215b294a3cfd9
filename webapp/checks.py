"""System checks: report wrong settings at start, each with its remedy.

`manage.py check` checks settings and files; `manage.py check --database default` the database too; `manage.py
check --deploy` an installation that other machines reach.
"""

import os
import re
import socket
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import DatabaseError, connections
from django.db.migrations.executor import MigrationExecutor

from training.launchers import LauncherError
from training.launchers.command import OF_OTHERS, OF_SUBMIT, command_arguments
from training.store import Objects, StoreError
from webapp.database.history import REMEDY, unfinished_apps
from webapp.environment.table import REMOVED

TAG = "rondo"
_BROKER_PORTS = {"redis": 6379, "rediss": 6379, "amqp": 5672, "pyamqp": 5672, "amqps": 5671}
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")


@register(TAG)
def home_is_writable(app_configs: Any, **_: Any) -> list[CheckMessage]:
    """Check that files can be written below RONDO_HOME."""
    home = Path(settings.RONDO_HOME)
    if home.is_dir() and os.access(home, os.W_OK | os.X_OK):
        return []
    return [
        Error(
            f"RONDO_HOME is {home}, and that is no folder that this user may write.",
            hint="Make the folder, change its owner, or set RONDO_HOME to another one.",
            id="rondo.E001",
        )
    ]


@register(TAG)
def store_can_be_opened(app_configs: Any, **_: Any) -> list[CheckMessage]:
    """Check the store's address and its package, without connecting."""
    url = str(settings.RONDO_STORE_URL)
    try:
        if url and "://" not in url:
            raise StoreError(f"RONDO_STORE_URL is {url!r}, and that is no address.")
        if url:
            Objects(url)
    except StoreError as error:
        hint = "Write it as s3://bucket/prefix or file:///folder; leave it unset on one machine."
        return [Error(str(error), hint=hint, id="rondo.E021")]
    return []


@register(TAG)
def secrets_are_private(app_configs: Any, **_: Any) -> list[CheckMessage]:
    """Check that only the owner can read the secret key, which signs sessions."""
    messages: list[CheckMessage] = []
    for name in ("secret_key", "model_server_key"):
        path = Path(settings.RONDO_HOME) / name
        if path.exists() and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            messages.append(
                Error(
                    f"{path} can be read by other users of this machine.",
                    hint=f"Run `chmod 600 {path}`; if somebody may have read it, delete it and start again.",
                    id="rondo.E002",
                )
            )
    if len(settings.SECRET_KEY) < 32:
        messages.append(
            Error(
                "RONDO_SECRET_KEY is shorter than 32 characters.",
                hint="Leave it unset, and a long one is drawn and kept in RONDO_HOME/secret_key.",
                id="rondo.E003",
            )
        )
    return messages


@register(TAG)
def model_server_url_is_one(app_configs: Any, **_: Any) -> list[CheckMessage]:
    """Check the address that the worker and Compare ask for completions."""
    url = str(settings.RONDO_MODEL_SERVER_URL)
    if not _is_server(url):
        return [
            Error(
                f"RONDO_MODEL_SERVER_URL is {url!r}, and that is no address of a server.",
                hint="Write it as http://host:port, or leave it unset to have `manage.py up` start one.",
                id="rondo.E004",
            )
        ]
    if url.startswith("http:") and urlsplit(url).hostname not in _LOOPBACK:
        return [
            Warning(
                f"The model server at {url} is asked in the clear: key and answers cross the network.",
                hint="Put it behind a proxy with TLS and write https:// here.",
                id="rondo.W005",
            )
        ]
    return []


@register(TAG)
def rewards_can_be_had(app_configs: Any, **_: Any) -> list[CheckMessage]:
    """Check the reward functions and judge, which a run would need only after hours of training."""
    messages: list[CheckMessage] = []
    for path in settings.RONDO_REWARD_FUNCTIONS:
        if not _DOTTED.fullmatch(path.strip()):
            messages.append(
                Error(
                    f"RONDO_REWARD_FUNCTIONS names {path!r}, and that is no function of a module.",
                    hint="Write dotted paths, commas between them: acme.rewards.polite,acme.rewards.short",
                    id="rondo.E016",
                )
            )
    url = str(settings.RONDO_JUDGE_URL)
    if url and not _is_server(url):
        messages.append(
            Error(
                f"RONDO_JUDGE_URL is {url!r}, and that is no address of a server.",
                hint="Write it as https://host:port, without /v1.",
                id="rondo.E017",
            )
        )
    if settings.RONDO_JUDGE_KEY and not url:
        messages.append(
            Warning(
                "RONDO_JUDGE_KEY is set without RONDO_JUDGE_URL, so it is sent to nobody.",
                hint="Set RONDO_JUDGE_URL to the judge that the key belongs to, or take the key away.",
                id="rondo.W018",
            )
        )
    if settings.RONDO_JUDGE_KEY and url.startswith("http:") and urlsplit(url).hostname not in _LOOPBACK:
        messages.append(
            Warning(
                f"The judge at {url} is asked in the clear: its key crosses the network.",
                hint="Write https:// in RONDO_JUDGE_URL.",
                id="rondo.W019",
            )
        )
    return messages


_NEEDS: dict[str, tuple[str, ...]] = {
    "local": (),
    "ray": ("RONDO_RAY_URL",),
    "command": ("RONDO_COMMAND_SUBMIT", "RONDO_COMMAND_POLL", "RONDO_COMMAND_CANCEL"),
}
"""By launcher, the settings that it cannot do without."""


@register(TAG)
def launchers_are_set_up(app_configs: Any, **_: Any) -> list[CheckMessage]:
    """Check launchers, which a run would need only after its snapshot is frozen. Asks no cluster."""
    messages: list[CheckMessage] = []
    for name in settings.RONDO_LAUNCHER or [""]:
        if name not in _NEEDS:
            hint = (
                f"Write one or more of {', '.join(_NEEDS)}, commas between them; the first is the default. "
                "Slurm and Kubernetes are reached by command: see the guide, how-to/train-on-a-cluster."
            )
            messages.append(
                Error(f"RONDO_LAUNCHER names {name!r}, which is no launcher.", hint=hint, id="rondo.E022")
            )
        for variable in _NEEDS.get(name, ()):
            if not getattr(settings, variable):
                hint = f"Set {variable}, or take {name} out of RONDO_LAUNCHER."
                messages.append(Error(f"The launcher {name} needs {variable}.", hint=hint, id="rondo.E023"))
    commands = {"SUBMIT": OF_SUBMIT, "POLL": OF_OTHERS, "CANCEL": OF_OTHERS, "LOGS": OF_OTHERS}
    for part, placeholders in commands.items():
        variable = f"RONDO_COMMAND_{part}"
        try:
            command_arguments(getattr(settings, variable), dict.fromkeys(placeholders, ""))
        except LauncherError as error:
            messages.append(
                Error(f"{variable}: {error}.", hint="See the guide on commands.", id="rondo.E024")
            )
    return messages


@register(TAG)
def no_removed_setting_is_set(app_configs: Any, **_: Any) -> list[CheckMessage]:
    """Warn about variables that an earlier release read."""
    return [
        Warning(f"{name} is set, and nothing reads it any more.", hint=f"{instead}.", id="rondo.W025")
        for name, instead in REMOVED.items()
        if os.environ.get(name)
    ]


@register(TAG)
def listed_hosts_are_hosts(app_configs: Any, **_: Any) -> list[CheckMessage]:
    """Check that allowed hosts are listed without a scheme, which would make them ineffective."""
    return [
        Error(
            f"{name} lists {host!r}, and that is no host.",
            hint="Write hosts alone or with a port, commas between them: gpu-box,10.0.0.7:8000",
            id="rondo.E020",
        )
        for name in ("RONDO_MODEL_SERVER_HOSTS", "RONDO_WEBHOOK_HOSTS")
        for host in getattr(settings, name)
        if "/" in host or not host.strip()
    ]


def _is_server(url: str) -> bool:
    """Return True for an http(s) URL with a host and nothing after its path."""
    try:
        parts = urlsplit(url)
        return (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.port != 0
            and not (parts.query or parts.fragment)
        )
    except ValueError:
        return False


@register(TAG)
def timings_fit_together(app_configs: Any, **_: Any) -> list[CheckMessage]:
    """Check that the heartbeat is faster than the time after which a worker counts as dead."""
    if settings.RONDO_STALE_SECONDS >= 3 * settings.RONDO_HEARTBEAT_SECONDS > 0:
        return []
    return [
        Error(
            f"RONDO_STALE_SECONDS ({settings.RONDO_STALE_SECONDS:g}) is less than three times "
            f"RONDO_HEARTBEAT_SECONDS ({settings.RONDO_HEARTBEAT_SECONDS:g}).",
            hint="A worker that is only slow would be taken for dead. Raise the first or lower the second.",
            id="rondo.E006",
        )
    ]


@register(TAG)
def sqlite_is_for_one_machine(app_configs: Any, **_: Any) -> list[CheckMessage]:
    """Warn about SQLite or the folder broker on several hosts, where their locks do not hold."""
    is_sqlite = _is_sqlite()
    in_folder = str(settings.CELERY_BROKER_URL).startswith("filesystem:")
    if is_sqlite and not in_folder:
        return [
            Warning(
                "Jobs go through a message broker while the database is an SQLite file.",
                hint="With workers on several machines set DATABASE_URL to a PostgreSQL server; "
                "on one machine leave RONDO_BROKER_URL unset.",
                id="rondo.W007",
            )
        ]
    if not is_sqlite and in_folder:
        return [
            Warning(
                "The database is a server while jobs go through a folder of this machine.",
                hint="A worker on another machine hears nothing. Set RONDO_BROKER_URL to Redis or RabbitMQ.",
                id="rondo.W008",
            )
        ]
    return []


@register(TAG)
def broker_answers(app_configs: Any, **_: Any) -> list[CheckMessage]:
    """Check that the broker's folder is writable, or that its port accepts connections."""
    url = str(settings.CELERY_BROKER_URL)
    if url.startswith("filesystem:"):
        folder = Path(str(settings.CELERY_BROKER_TRANSPORT_OPTIONS["data_folder_in"]))
        if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
            return []
        return [
            Error(
                f"The broker's folder {folder} cannot be written.",
                hint="Change its owner, or set RONDO_HOME to a folder that you may write.",
                id="rondo.E009",
            )
        ]
    parts = urlsplit(url)
    host, port = parts.hostname, parts.port or _BROKER_PORTS.get(parts.scheme)
    if not host or not port:
        return []
    try:
        socket.create_connection((host, port), timeout=3).close()
    except OSError as error:
        return [
            Error(
                f"The message broker does not answer at {host}:{port}: {error.strerror or error}.",
                hint="Check RONDO_BROKER_URL, and that the broker runs.",
                id="rondo.E009",
            )
        ]
    return []


@register(TAG, Tags.database)
def database_is_ready(
    app_configs: Any, databases: Sequence[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """Check that the database answers and has all migrations."""
    messages: list[CheckMessage] = []
    for alias in databases or ():
        try:
            executor = MigrationExecutor(connections[alias])
            plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
        except DatabaseError as error:
            messages.append(
                Error(
                    f"The database cannot be used: {str(error).strip()}.",
                    hint="Check DATABASE_URL, that the server runs, and that it lets this user in.",
                    id="rondo.E010",
                )
            )
            continue
        if unfinished := unfinished_apps(connections[alias]):
            what = f"The database lacks tables of {' and '.join(unfinished)} that this release cannot add."
            messages.append(Error(what, hint=REMEDY, id="rondo.E022"))
            continue
        # `migrate`, which is the remedy, runs the checks too.
        if plan and sys.argv[1:2] != ["migrate"]:
            messages.append(
                Error(
                    f"{len(plan)} migrations are not applied, the first of them {plan[0][0]}.",
                    hint="Run `.venv/bin/python manage.py migrate`; `manage.py up` does it by itself.",
                    id="rondo.E011",
                )
            )
    return messages


@register(TAG, Tags.security, deploy=True)
def others_reach_it_safely(app_configs: Any, **_: Any) -> list[CheckMessage]:
    """Check the settings that matter once other machines reach Rondo."""
    messages: list[CheckMessage] = []
    if not settings.RONDO_HTTPS:
        messages.append(
            Error(
                "Passwords and sessions would cross the network in the clear.",
                hint="Put a proxy with TLS before Rondo and set RONDO_HTTPS=true.",
                id="rondo.E012",
            )
        )
    if all(host in _LOOPBACK for host in settings.ALLOWED_HOSTS):
        messages.append(
            Error(
                "Rondo answers only to loopback names.",
                hint="Set RONDO_ALLOWED_HOSTS to the names under which people reach it.",
                id="rondo.E013",
            )
        )
    if "*" in settings.ALLOWED_HOSTS:
        messages.append(
            Error(
                "Rondo answers to any name, and so trusts whatever a request calls it.",
                hint="List the names in RONDO_ALLOWED_HOSTS.",
                id="rondo.E014",
            )
        )
    if not settings.RONDO_STATIC_COLLECTED:
        messages.append(
            Warning(
                "Static files are served from their source folders, uncompressed and without far expiry.",
                hint="Run `manage.py collectstatic` and set RONDO_STATIC_COLLECTED=true.",
                id="rondo.W015",
            )
        )
    return messages


def _is_sqlite() -> bool:
    return connections["default"].vendor == "sqlite"
