"""The named cast and the ground that every test stands on.

Alice and Bob label, Carol manages, Rita reviews, Oscar belongs to nothing, and `admin` is the superuser.
All sign in with the password `PASSWORD`.
"""

import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.core.cache import cache
from django.test import Client
from django.utils import translation
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from pytest_django import Settings

from annotation.choices import Role
from annotation.models import Membership, Project, User
from annotation.selectors import cached_counts
from tests import factories

pytest_plugins = [
    "tests.collecting",
    "tests.skips",
    "tests.data_sets",
    "tests.shares",
    "tests.order",
    "tests.emptying",
    "tests.migrated",
    "tests.s3",
]

# A property is not false because the machine is busy.
hypothesis_settings.register_profile(
    "rondo",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=int(os.environ.get("RONDO_TEST_EXAMPLES", "100")),
)
hypothesis_settings.load_profile("rondo")


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear the cache: its primary keys belong to the test before and are drawn again.

    Counts that took long on a busy machine are no slow ones: a test reads them anew.
    """
    cache.clear()
    monkeypatch.setattr(cached_counts, "QUICK_SECONDS", 60.0)


@pytest.fixture(scope="session")
def new_homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """New folders; pytest's own `mktemp` reads through all that are there, thousands in the end."""
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in count(1))


@pytest.fixture(autouse=True)
def rondo_home(settings: Settings, new_homes: Iterator[Path]) -> Path:
    """Files that the code under test writes go to a folder of this test's own, never to var/."""
    home = next(new_homes)
    home.mkdir()
    settings.RONDO_HOME = home
    for name in ("models", "snapshots", "runs", "checkpoints"):
        setattr(settings, f"RONDO_{name.upper()}", home / name)
    return home


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[object]]]:
    """Messages to workers, as task and arguments. None leaves the test."""
    tasks: list[tuple[str, list[object]]] = []
    broker = SimpleNamespace(send_task=lambda task, args, **_: tasks.append((task, args)))
    monkeypatch.setattr("annotation.services.jobs.current_app", broker)
    return tasks


@pytest.fixture(autouse=True)
def own_language() -> Iterator[None]:
    """The language of a test's last request ends with the test: Django keeps it for the whole thread."""
    yield
    translation.deactivate()


@pytest.fixture
def alice(db: None) -> User:
    """Annotates in `project`."""
    return factories.make_user("alice")


@pytest.fixture
def bob(db: None) -> User:
    """The second annotator in `project`."""
    return factories.make_user("bob")


@pytest.fixture
def carol(db: None) -> User:
    """Manages `project`."""
    return factories.make_user("carol")


@pytest.fixture
def oscar(db: None) -> User:
    """The outsider: signs in, but is a member of nothing."""
    return factories.make_user("oscar")


@pytest.fixture
def admin(db: None) -> User:
    """The superuser."""
    return factories.make_user("admin", superuser=True)


@pytest.fixture
def project(alice: User, bob: User, carol: User) -> Project:
    """A project of Alice, Bob and Carol, with a guideline and the three error categories and no prompt."""
    return factories.make_project(annotators=[alice, bob], managers=[carol])


@pytest.fixture
def rita(project: Project) -> User:
    """Reviews in `project` and labels nothing."""
    user = factories.make_user("rita")
    Membership.objects.create(project=project, user=user, role=Role.REVIEWER)
    return user


@pytest.fixture
def client_of() -> Callable[[User], Client]:
    """`client_of(alice)` is a browser that Alice is signed in with."""

    def sign_in(user: User) -> Client:
        client = Client()
        client.force_login(user)
        return client

    return sign_in
