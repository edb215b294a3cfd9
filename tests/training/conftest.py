"""Ground of the training tests: no broker, a trainer and a model server that are quick and scripted."""

import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from django.conf import settings
from pytest_django import DjangoDbBlocker, Settings

from annotation.models import Comparison, Judgment, Project, Prompt, User
from annotation.services import jobs
from annotation.services.assignments.next import assign_next
from annotation.services.judgments.submission import submit_judgment
from tests import factories
from tests.records import judgment_record
from tests.stored_rows import StoredRows
from tests.training.engine.fake_server import FakeServer
from tests.training.runs.fake_trainer import train
from tests.training.runs.trained_here import train_here
from training.choices import RoundState, TrainingTask
from training.engine import Engine
from training.models import Round
from training.services import chat_templates, live
from training.services.rounds import executor
from training.services.rounds.controls import open_first_round, start_round
from training.services.rounds.executor import advance_round
from training.services.runs import launcher


@pytest.fixture
def rings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ids of the rounds for which a message was sent."""
    ids: list[int] = []

    def send_task(task: str, args: list[int], **_: object) -> None:
        if task == TrainingTask.ADVANCE_ROUND:
            ids.extend(args)

    monkeypatch.setattr("annotation.services.jobs.current_app.send_task", send_task)
    return ids


@pytest.fixture(autouse=True)
def quick_heartbeats(settings: Settings) -> Iterator[None]:
    """A heartbeat writes at every call, so that no test waits for a heartbeat."""
    settings.RONDO_HEARTBEAT_SECONDS = 0
    jobs.worker_is_stopping.clear()
    yield
    jobs.worker_is_stopping.clear()


@pytest.fixture(autouse=True)
def patient_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child that checks a template is bounded by its processor time; a busy machine is no failure."""
    monkeypatch.setattr(chat_templates, "WALL_SECONDS", 300.0)


@pytest.fixture
def fake_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tests.training.runs.fake_trainer` in place of the real one."""
    monkeypatch.setattr(
        settings, "RONDO_TRAINER_COMMAND", (sys.executable, "-m", "tests.training.runs.fake_trainer")
    )
    monkeypatch.setattr(launcher, "_POLL_SECONDS", 0.02)


@pytest.fixture
def quick_trainer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same trainer without a process, for tests of what comes before and after training.

    In a test that names `fake_trainer` for itself that one trains.
    """
    if "fake_trainer" not in request.fixturenames:
        train_here(monkeypatch, train)


@pytest.fixture
def fake_server(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """A model server that answers at once, wherever the code under test makes a client."""
    server = FakeServer()
    engine: Callable[[], Engine] = lambda: Engine(transport=httpx.MockTransport(server))  # noqa: E731
    monkeypatch.setattr(executor, "Engine", engine)
    return server


@pytest.fixture(scope="session")
def labelled_rows(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory
) -> StoredRows:
    """Round 1 of the project, answered and annotated by Alice; see `labelled`."""

    def make() -> None:
        project = make_cast()
        make_prompts(project)
        round_ = open_first_round(project=project)
        advance_round(round_.pk)
        judge_all(project, User.objects.get(username="alice"))

    return store_rows(make, django_db_blocker, tmp_path_factory.mktemp("labelled") / "home")


def store_rows(
    make: Callable[[], None], blocker: DjangoDbBlocker, home: Path, server: FakeServer | None = None
) -> StoredRows:
    """Store what `make` makes, with a scripted model server and trainer."""
    engine = (server or FakeServer()).engine
    with pytest.MonkeyPatch.context() as patch, blocker.unblock():
        patch.setattr(executor, "Engine", engine)
        patch.setattr(live, "Engine", engine)
        train_here(patch, train)
        return StoredRows(home, make)


def make_cast() -> Project:
    """Make the project with its people, as their fixtures do for a test that begins without rows."""
    alice, bob, carol = (factories.make_user(name) for name in ("alice", "bob", "carol"))
    return factories.make_project(annotators=[alice, bob], managers=[carol])


def make_prompts(project: Project) -> list[Prompt]:
    return [factories.make_prompt(project, f"What is {n} and {n}?", split="train") for n in range(4)]


@pytest.fixture
def has_rows(request: pytest.FixtureRequest, db: None, rondo_home: Path) -> bool:
    """Write the rows that a test begins with, its people and its project among them; False for none."""
    for name in ("labelled_rows", "undecided_rows", "asked_rows", "learning_rows"):
        if name in request.fixturenames:
            request.getfixturevalue(name).write(rondo_home)
            return True
    return False


@pytest.fixture
def alice(has_rows: bool) -> User:
    """Annotates in `project`."""
    return User.objects.get(username="alice") if has_rows else factories.make_user("alice")


@pytest.fixture
def bob(has_rows: bool) -> User:
    """The second annotator in `project`."""
    return User.objects.get(username="bob") if has_rows else factories.make_user("bob")


@pytest.fixture
def carol(has_rows: bool) -> User:
    """Manages `project`."""
    return User.objects.get(username="carol") if has_rows else factories.make_user("carol")


@pytest.fixture
def project(has_rows: bool, alice: User, bob: User, carol: User) -> Project:
    """The project of the cast, without a prompt unless the test begins with rows or asks for `prompts`."""
    if has_rows:
        return Project.objects.get()
    return factories.make_project(annotators=[alice, bob], managers=[carol])


@pytest.fixture
def prompts(has_rows: bool, project: Project) -> list[Prompt]:
    """Four prompts, all in the train split."""
    return list(project.prompts.order_by("pk")) if has_rows else make_prompts(project)


@pytest.fixture
def labelled(labelled_rows: StoredRows, project: Project, fake_server: FakeServer) -> Round:
    """Round 1 with its prompts answered and all of its comparisons annotated by Alice."""
    return Round.objects.get()


@pytest.fixture
def deciding_round(labelled: Round, carol: User) -> Round:
    """Round 1, trained and evaluated; a manager is to decide."""
    Round.objects.update(recipe={"promotion": {"by_hand": True}})
    labelled.refresh_from_db()
    start_round(round_=labelled, started_by=carol)
    advance_round(labelled.pk)
    labelled.refresh_from_db()
    assert labelled.state == RoundState.DECIDING
    return labelled


def judge_all(project: Project, annotator: User) -> list[Judgment]:
    """Judge what is open to `annotator`: the first recorded completion wins, the others tie."""
    judgments = []
    while assignment := assign_next(project=project, annotator=annotator):
        judgments.append(judge(assignment.comparison, annotator))
    return judgments


def judge(comparison: Comparison, annotator: User) -> Judgment:
    """Submit `annotator`'s held assignment of `comparison`: its first completion wins, the others tie."""
    assignment = comparison.assignments.get(annotator=annotator, state="leased")
    ids = sorted(assignment.display_order)
    answer = judgment_record(verdict="ranked", ranks={pk: 1 if pk == ids[0] else 2 for pk in ids})
    return submit_judgment(
        assignment=assignment, annotator=annotator, answer=answer, idempotency_key=uuid.uuid4()
    )
