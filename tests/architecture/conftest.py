"""Fixtures of the scene of addresses: its parts, and a browser for each role."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from pytest_django import DjangoDbBlocker, Settings

from tests import factories
from tests.architecture.address_scene import Scene, parts_of, session_of
from tests.architecture.address_table import ROLES
from tests.shared_rows import folders_in, made_in, shared_rows


@pytest.fixture(scope="module")
def scene(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """The parts of every address, and everybody signed in: made once for a module."""
    home = tmp_path_factory.mktemp("addresses")
    with shared_rows(django_db_blocker):
        with made_in(home):
            users = {name: factories.make_user(name) for name in ("oscar", "alice", "bob", "carol")}
            users["admin"] = factories.make_user("admin", superuser=True)
            project = factories.make_project(
                annotators=[users["alice"], users["bob"]], managers=[users["carol"]]
            )
            parts_by_view = parts_of(project, users["alice"], users["carol"])
            sessions = {name: session_of(user) for name, user in users.items()}
        yield Scene(home, parts_by_view, sessions)


@pytest.fixture
def home_of_scene(scene: Scene, settings: Settings) -> Path:
    """The home of the scene, whose files the pages read."""
    for name, value in folders_in(scene.home).items():
        setattr(settings, name, value)
    return scene.home


@pytest.fixture
def everybody(home_of_scene: Path, scene: Scene, db: None) -> Mapping[str, Client]:
    """A browser for each role."""
    clients = {role: Client() for role in ROLES}
    for username, session in scene.sessions.items():
        clients[username].cookies[settings.SESSION_COOKIE_NAME] = session
    return clients


@pytest.fixture
def parts(home_of_scene: Path, scene: Scene, db: None) -> dict[str, dict[str, Any]]:
    """The parts of every address."""
    return scene.parts
