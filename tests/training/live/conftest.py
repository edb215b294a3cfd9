"""Ground of the tests of live learning."""

import pytest

from annotation.models import Project, Prompt, User
from tests import factories
from tests.training.engine.fake_server import FakeServer
from tests.training.live.live_scene import EVERY
from training.models import LiveLearning
from training.services import live
from training.services.live import set_live
from training.services.rounds.controls import open_first_round
from training.services.rounds.executor import advance_round


@pytest.fixture(autouse=True)
def _served(fake_server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same model server for live learning."""
    monkeypatch.setattr(live, "Engine", fake_server.engine)


@pytest.fixture
def many(project: Project) -> list[Prompt]:
    """Thirty training prompts, and six held-out ones among them."""
    return [
        factories.make_prompt(project, f"What is {n} and {n}?", split="held-out" if n % 6 == 0 else "train")
        for n in range(36)
    ]


@pytest.fixture
def learning(project: Project, many: list[Prompt], carol: User) -> LiveLearning:
    """Round 1 in labelling, with live learning after four judgments and four comparisons ahead."""
    made = set_live(project=project, by=carol, is_active=True, every=EVERY, ahead=4)
    advance_round(open_first_round(project=project).pk)
    return made
