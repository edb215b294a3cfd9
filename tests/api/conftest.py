"""A project with one of everything; the limits are set so that tests meet none by chance."""

from collections.abc import Iterator

import pytest
from django.core.cache import cache
from django.core.signals import request_finished, request_started
from django.db import close_old_connections
from pytest_django import Settings

from annotation.models import Project, User
from tests.api.scene import Asker, Scene, make_scene


@pytest.fixture(autouse=True)
def no_limits(settings: Settings) -> None:
    """Tests about limits set their own."""
    cache.clear()
    settings.RONDO_TOKEN_REQUESTS_PER_MINUTE = 100_000
    settings.RONDO_API_REQUESTS_PER_MINUTE = 100_000
    # Nobody answers there.
    settings.RONDO_MODEL_SERVER_URL = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def connections_stay() -> Iterator[None]:
    """A request by way of WSGI must not close the connection whose transaction holds the test's rows.

    Django's own test client sees to that in the same way.
    """
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@pytest.fixture
def scene(project: Project, alice: User, carol: User, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """One of everything, in `project`."""
    return make_scene(project, alice, carol)


@pytest.fixture
def as_alice(alice: User) -> Asker:
    """A program of Alice's, who annotates."""
    return Asker(alice)


@pytest.fixture
def as_carol(carol: User) -> Asker:
    """A program of Carol's, who manages."""
    return Asker(carol)


@pytest.fixture
def as_admin(admin: User) -> Asker:
    """A program of the superuser's."""
    return Asker(admin)
