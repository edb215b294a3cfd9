"""A wrong setting is reported by `manage.py check`, by its name and with a remedy."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from django.core.checks import run_checks
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from pytest_django import Settings

from tests.webapp.running import free_port
from webapp.checks import TAG
from webapp.environment import read_environment

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def database(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """SQLite, whatever the tests run on, until a test says `database("a server")`."""

    def say(kind: str) -> None:
        monkeypatch.setattr("webapp.checks._is_sqlite", lambda: kind == "SQLite")

    say("SQLite")
    return say


def identifiers(**options: object) -> set[str | None]:
    """The ids of what our checks say now."""
    messages = run_checks(tags=[TAG], **options)  # type: ignore[arg-type]
    assert all(message.hint for message in messages), "every message tells what to do"
    return {message.id for message in messages}


def test_the_defaults_on_one_machine_are_fine(settings):
    assert identifiers() == set()


def test_a_home_that_is_no_folder_is_told(settings, tmp_path: Path):
    settings.RONDO_HOME = tmp_path / "nowhere"
    assert identifiers() == {"rondo.E001"}


def test_a_secret_that_others_can_read_is_told(settings, rondo_home: Path):
    (rondo_home / "secret_key").write_text("x")
    (rondo_home / "secret_key").chmod(0o640)
    assert identifiers() == {"rondo.E002"}
    (rondo_home / "secret_key").chmod(0o600)
    assert identifiers() == set()


def test_a_short_secret_key_is_told(settings):
    settings.SECRET_KEY = "short"
    assert identifiers() == {"rondo.E003"}


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8001", "ftp://host/", "http://", "http://host:notaport", "http://host:8001/?key=1", ""]
)
def test_an_address_of_a_model_server_that_is_none_is_told(settings, url: str):
    settings.RONDO_MODEL_SERVER_URL = url
    assert identifiers() == {"rondo.E004"}


def test_a_model_server_asked_in_the_clear_over_a_network_is_warned_about(settings):
    settings.RONDO_MODEL_SERVER_URL = "http://gpu.example.org:8001"
    assert identifiers() == {"rondo.W005"}
    settings.RONDO_MODEL_SERVER_URL = "https://gpu.example.org"
    assert identifiers() == set()


def test_a_heartbeat_too_slow_for_what_counts_as_dead_is_told(settings):
    settings.RONDO_HEARTBEAT_SECONDS, settings.RONDO_STALE_SECONDS = 10, 20
    assert identifiers() == {"rondo.E006"}


def test_a_broker_that_nobody_answers_for_is_told(database, settings):
    settings.CELERY_BROKER_URL = f"redis://127.0.0.1:{free_port()}/0"
    database("a server")
    assert identifiers() == {"rondo.E009"}


def test_a_database_server_with_a_broker_in_a_folder_is_warned_about(database):
    database("a server")
    assert identifiers() == {"rondo.W008"}


def test_a_broker_beside_an_sqlite_file_is_warned_about(settings):
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        settings.CELERY_BROKER_URL = f"redis://127.0.0.1:{listening.getsockname()[1]}/0"
        assert identifiers() == {"rondo.W007"}


def test_a_folder_of_the_broker_that_is_gone_is_told(settings, tmp_path: Path):
    settings.CELERY_BROKER_TRANSPORT_OPTIONS = {"data_folder_in": str(tmp_path / "gone")}
    assert identifiers() == {"rondo.E009"}


@pytest.mark.django_db
def test_a_migration_that_is_not_applied_is_told(settings):
    assert identifiers(databases=["default"]) == set()
    newest = max(
        name for app, name in MigrationRecorder(connection).applied_migrations() if app == "annotation"
    )
    MigrationRecorder(connection).record_unapplied("annotation", newest)
    assert "rondo.E011" in identifiers(databases=["default"])


def test_what_is_safe_on_loopback_is_told_when_others_are_to_reach_it(settings):
    settings.ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
    settings.RONDO_STATIC_COLLECTED = False
    assert identifiers(include_deployment_checks=True) == {"rondo.E012", "rondo.E013", "rondo.W015"}
    settings.ALLOWED_HOSTS = ["*"]
    settings.RONDO_HTTPS = True
    assert identifiers(include_deployment_checks=True) == {"rondo.E014", "rondo.W015"}
    settings.ALLOWED_HOSTS = ["rondo.example.org"]
    settings.RONDO_STATIC_COLLECTED = True
    assert identifiers(include_deployment_checks=True) == set()


def test_migrate_is_not_refused_for_what_it_is_there_to_do(tmp_path: Path):
    environment = {**os.environ, "RONDO_HOME": str(tmp_path), "RONDO_DEBUG": "1"}
    environment.pop("DATABASE_URL", None)
    command = [sys.executable, "manage.py", "migrate", "contenttypes", "--verbosity", "0"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_store_that_nothing_here_can_open_is_told(settings):
    for url in ("/var/store", "nonsense://bucket"):
        settings.RONDO_STORE_URL = url
        assert "rondo.E021" in identifiers()
    for url in ("", "memory://rondo", "file:///tmp/rondo"):
        settings.RONDO_STORE_URL = url
        assert "rondo.E021" not in identifiers()


def test_a_setting_that_an_earlier_release_read_is_named_with_what_takes_its_place(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("RONDO_SLURM_OPTIONS", "--account=nlp")
    monkeypatch.setenv("RONDO_KUBERNETES_JOBSET", "")
    # Not one that stops the start as misspelt.
    read_environment(os.environ)
    assert identifiers() == {"rondo.W025"}


def test_launchers_that_cannot_work_are_said_at_the_start(settings: Settings):
    settings.RONDO_LAUNCHER = ["local", "ray", "slurm", "command"]
    assert identifiers() == {"rondo.E022", "rondo.E023"}
    settings.RONDO_LAUNCHER = ["ray"]
    settings.RONDO_RAY_URL = "http://ray:8265"
    assert identifiers() == set()
    settings.RONDO_COMMAND_POLL = "poll {job}"
    assert identifiers() == {"rondo.E024"}
