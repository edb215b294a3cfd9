"""Checks of the services that Rondo needs: database, migrations, broker, model server, disk."""

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from django.conf import settings
from django.db import DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.urls import reverse
from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from annotation.services import job_runs
from training.contract import log_lines
from training.engine import BaseState, Engine, EngineError, Health
from webapp.operations.health import Finding, OverdueError, attention, fine, within, wrong
from webapp.operations.work import open_broker

SECONDS = 2.0
"""Timeout of each check, in seconds."""
DISK_ATTENTION_BYTES = 5 << 30

Answer = TypeVar("Answer")
_blot = log_lines.Blotter()


def database() -> Finding:
    """Check that the database answers, and report its size."""
    try:
        version, size = _asked_of_database("database", _version_and_size)
    except (DatabaseError, OverdueError) as error:
        return wrong(
            "database",
            _("The database is unavailable: %(why)s.") % {"why": _why(error)},
            _("See that its server runs, that DATABASE_URL is right, and that it lets this user in."),
        )
    return fine(
        "database",
        _("%(version)s is available, %(size)s.") % {"version": version, "size": megabytes(size)},
    )


def migrations() -> Finding:
    """Check that every migration of this code is applied."""
    try:
        applied = _asked_of_database("migrations", _applied_migrations)
    except (DatabaseError, OverdueError) as error:
        return wrong(
            "migrations",
            _("It is not known which migrations are applied: %(why)s.") % {"why": _why(error)},
            _("See to the database first."),
        )
    if missing := sorted(_migrations_of_the_code() - applied):
        return wrong(
            "migrations",
            ngettext(
                "%(count)d migration is not applied: %(first)s.",
                "%(count)d migrations are not applied, the first of them %(first)s.",
                len(missing),
            )
            % {"count": len(missing), "first": ".".join(missing[0])},
            _("Run manage.py migrate; manage.py up runs it automatically."),
        )
    return fine("migrations", _("All migrations are applied."))


def broker() -> Finding:
    """Check that messages can reach the workers."""
    where = _blot(str(settings.CELERY_BROKER_URL))
    try:
        within(SECONDS, "broker", _open_and_close_broker)
    except Exception as error:  # every transport has its own exceptions
        return wrong(
            "broker",
            _("The message broker at %(where)s is unavailable: %(why)s.")
            % {"where": where, "why": _why(error)},
            _(
                "See that it runs and that RONDO_BROKER_URL is right. Until then workers find their work a "
                "few seconds later, by looking."
            ),
        )
    if where.startswith("filesystem:"):
        return fine("broker", _("Messages go through a folder of this machine."))
    return fine("broker", _("The message broker at %(where)s is available.") % {"where": where})


def model_server() -> Finding:
    """Check that the model server answers, and count its models."""
    url = str(settings.RONDO_MODEL_SERVER_URL)
    try:
        health, models = within(SECONDS + 1, "model server", _ask_model_server)
    except OverdueError as error:
        return wrong(
            "model_server",
            _("The model server at %(url)s is unavailable: %(why)s.") % {"url": url, "why": _why(error)},
            _no_model_server(),
        )
    except EngineError as error:
        return wrong(
            "model_server",
            _("The model server at %(url)s cannot respond: %(why)s.")
            % {"url": url, "why": str(error).rstrip(".")},
            _("Check RONDO_MODEL_SERVER_KEY: the model server must have the same key."),
        )
    if not health.ready:
        says = _("The model server at %(url)s cannot respond: %(why)s.") % {"url": url, "why": health.message}
        if health.progress is not None:
            return attention("model_server", says, _("Wait: it is on its way."))
        return wrong("model_server", says, _no_model_server())
    return fine(
        "model_server",
        ngettext(
            "The model server serves %(count)d model.",
            "The model server serves %(count)d models.",
            len(models),
        )
        % {"count": len(models)},
    )


def base_models() -> list[Finding]:
    """Report state and queue of each base model that the model server has; none if it does not answer."""
    try:
        health, _models = within(SECONDS + 1, "base models", _ask_model_server)
    except (OverdueError, EngineError):
        return []
    return [_of_base(base) for base in health.bases]


def _of_base(base: BaseState) -> Finding:
    link = reverse("base-models")
    if base.state == "asleep":
        says = _("Base model %(name)s is asleep and wakes on demand.") % {"name": base.name}
        return fine("base_models", says, link=link)
    if base.state != "ready":
        says = _("Base model %(name)s: %(message)s.") % {"name": base.name, "message": base.message}
        return attention("base_models", says, _("See the log of the model server."), link=link)
    says = _(
        "Base model %(name)s is awake: %(waiting)d requests wait, %(running)d are in progress, %(memory)s of "
        "memory."
    ) % {
        "name": base.name,
        "waiting": base.waiting,
        "running": max(0, base.in_flight - base.waiting),
        "memory": megabytes(base.memory_bytes),
    }
    return fine("base_models", says, link=link)


def disk() -> Finding:
    """Check the free space below RONDO_HOME."""
    home = Path(settings.RONDO_HOME)
    try:
        usage = shutil.disk_usage(home)
    except OSError as error:
        return wrong(
            "disk",
            _("RONDO_HOME (%(home)s) cannot be used: %(why)s.") % {"home": home, "why": error.strerror},
            _("Make the folder, change its owner, or set RONDO_HOME to another one."),
        )
    says = _("%(free)s of %(total)s are free where Rondo keeps its files.") % {
        "free": megabytes(usage.free),
        "total": megabytes(usage.total),
    }
    remedy = _("Make room: manage.py retention --dry-run lists what the settings do not keep.")
    if job_runs.is_low():
        return wrong("disk", f"{says} {job_runs.sentence()}", remedy)
    return attention("disk", says, remedy) if usage.free < DISK_ATTENTION_BYTES else fine("disk", says)


def megabytes(size: float) -> str:
    """Format a size in bytes: MB below 10 GB, else GB."""
    if size < 10 * (1 << 30):
        return f"{number_format(size / (1 << 20), 0)} MB"
    return f"{number_format(size / (1 << 30), 0)} GB"


def _why(error: Exception) -> str:
    """Describe an error in one short line without secrets."""
    if isinstance(error, OverdueError):
        return _("no response within %(seconds)d seconds") % {"seconds": SECONDS}
    words = " ".join(_blot(str(error)).split()).rstrip(".")
    return words[:300] or type(error).__name__


def _no_model_server() -> str:
    return _(
        "Check that it runs and that RONDO_MODEL_SERVER_URL is right; see its log. Labelling "
        "works without it."
    )


# ── Queries ───────────────────────────────────────────────────────────────────────────


def _asked_of_database(name: str, ask: Callable[[BaseDatabaseWrapper], Answer]) -> Answer:
    """Query PostgreSQL on a separate connection with a timeout; SQLite directly."""
    connection = connections["default"]
    if connection.vendor != "postgresql":
        return ask(connection)

    def on_a_connection_of_its_own() -> Answer:
        separate = connection.copy()
        options = separate.settings_dict.get("OPTIONS", {})
        limits = f"-c statement_timeout={int(1000 * SECONDS)}"
        separate.settings_dict["OPTIONS"] = {**options, "connect_timeout": int(SECONDS), "options": limits}
        try:
            return ask(separate)
        finally:
            separate.close()

    return within(SECONDS, name, on_a_connection_of_its_own)


def _version_and_size(connection: BaseDatabaseWrapper) -> tuple[str, int]:
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT current_setting('server_version'), pg_database_size(current_database())")
            version, size = cursor.fetchone()
            return f"PostgreSQL {str(version).split()[0]}", int(size)
        cursor.execute(
            "SELECT sqlite_version(), page_count * page_size FROM pragma_page_count, pragma_page_size"
        )
        version, size = cursor.fetchone()
        return f"SQLite {version}", int(size)


def _applied_migrations(connection: BaseDatabaseWrapper) -> set[tuple[str, str]]:
    return set(MigrationRecorder(connection).applied_migrations())


@functools.cache
def _migrations_of_the_code() -> frozenset[tuple[str, str]]:
    """Return all migrations of this code without squashed ones, which may stand for others."""
    loader = MigrationLoader(None, load=False)
    loader.load_disk()
    return frozenset(
        name for name, migration in (loader.disk_migrations or {}).items() if not migration.replaces
    )


def _open_and_close_broker() -> None:
    with open_broker(SECONDS):
        return


def _ask_model_server() -> tuple[Health, list[str]]:
    with Engine(timeout=SECONDS) as engine:
        health = engine.health(timeout=SECONDS)
        return health, engine.models() if health.ready else []
