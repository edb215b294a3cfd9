"""Ground of the tests of live learning."""

import pytest
from pytest_django import DjangoDbBlocker

from annotation.models import Project, Prompt, User
from tests import factories
from tests.stored_rows import StoredRows
from tests.training.conftest import make_cast, store_rows
from tests.training.engine.fake_server import FakeServer
from tests.training.live.live_scene import EVERY, FAR, label, work
from training.models import LiveLearning
from training.services import live
from training.services.live import set_live
from training.services.rounds.controls import open_first_round
from training.services.rounds.executor import advance_round


@pytest.fixture(autouse=True)
def _served(fake_server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same model server for live learning."""
    monkeypatch.setattr(live, "Engine", fake_server.engine)


def make_learning() -> None:
    """Make round 1 in labelling, with live learning after four judgments and four comparisons ahead."""
    project = make_cast()
    make_many(project)
    carol = User.objects.get(username="carol")
    set_live(project=project, by=carol, is_active=True, every=EVERY, ahead=4)
    advance_round(open_first_round(project=project).pk)


def make_many(project: Project) -> list[Prompt]:
    return [
        factories.make_prompt(project, f"What is {n} and {n}?", split="held-out" if n % 6 == 0 else "train")
        for n in range(36)
    ]


def make_asked() -> None:
    """Make four updates, after the last of which divergence asks people."""
    make_learning()
    learning = LiveLearning.objects.get()
    for _ in range(4):
        label(learning.project, User.objects.get(username="alice"), EVERY)
        work(learning)


@pytest.fixture(scope="session")
def learning_rows(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory
) -> StoredRows:
    """Rows of `learning`."""
    return store_rows(make_learning, django_db_blocker, tmp_path_factory.mktemp("learning") / "home")


@pytest.fixture(scope="session")
def asked_rows(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory
) -> StoredRows:
    """Rows and runs of `asked`."""
    server = FakeServer()
    server.kl = FAR
    return store_rows(make_asked, django_db_blocker, tmp_path_factory.mktemp("asked") / "home", server)


@pytest.fixture
def many(has_rows: bool, project: Project) -> list[Prompt]:
    """Thirty training prompts, and six held-out ones among them."""
    return list(project.prompts.order_by("pk")) if has_rows else make_many(project)


@pytest.fixture
def learning(learning_rows: StoredRows, project: Project) -> LiveLearning:
    """Round 1 in labelling, with live learning after four judgments and four comparisons ahead."""
    return LiveLearning.objects.get()


@pytest.fixture
def asked(asked_rows: StoredRows, project: Project, fake_server: FakeServer) -> LiveLearning:
    """Four updates, after the last of which divergence asks people."""
    fake_server.kl = FAR
    return LiveLearning.objects.get()
