"""Fixtures of side-by-side comparisons: checkpoints, a model server that streams, and a manager."""

import pytest
from django.test import Client

from annotation.choices import Split
from annotation.models import Project, User
from tests import factories
from tests.training.comparing.arena_scene import make_checkpoints
from tests.training.comparing.compare_scene import NAMES, SignIn
from tests.training.engine.streaming_server import StreamingServer
from training.models import Checkpoint
from training.recipe.recipe import Recipe, default_recipe
from training.services.runs.runs import create_run
from training.services.snapshots import freeze_snapshot


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> StreamingServer:
    fake_server = StreamingServer()
    fake_server.text = lambda body: "Not <hot>." if body["model"] == "north" else "Very hot."
    fake_server.score = lambda text: 1.25 if text.startswith("Very") else -0.5
    monkeypatch.setattr("training.services.side_by_side.engine_for", fake_server.engine)
    monkeypatch.setattr("training.views.side_by_side.Engine", fake_server.engine)
    return fake_server


@pytest.fixture
def checkpoints(project: Project) -> list[Checkpoint]:
    return make_checkpoints(project, NAMES)


@pytest.fixture
def reward(project: Project, alice: User) -> Checkpoint:
    prompt = factories.make_prompt(project, "Judged?", split=Split.TRAIN)
    factories.make_judgment(factories.make_comparison(project, prompt=prompt), alice)
    run = create_run(
        name="taste",
        snapshot=freeze_snapshot(project=project, rounds=[1]),
        settings_of_method=Recipe.from_json(default_recipe()).reward,
        base_model="base",
        parent=None,
        seed=1,
    )
    return Checkpoint.objects.create(
        name="taste", kind="reward", project=project, base_model="base", run=run, digest="d" * 64
    )


@pytest.fixture
def manager(carol: User, checkpoints, server, client_of: SignIn) -> Client:
    return client_of(carol)
