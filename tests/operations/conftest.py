"""Workers and jobs as operators meet them."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from training.models import Worker
from webapp.operations import health, reach
from webapp.operations.health import Finding, fine

MakeWorker = Callable[..., Worker]


@pytest.fixture(autouse=True)
def only_this_machine_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name that Django's test client calls is one of this machine."""
    monkeypatch.setattr(health, "_LOOPBACK", (*health._LOOPBACK, "testserver"))


@pytest.fixture
def make_worker(db: None) -> MakeWorker:
    """`make_worker("gpu-box", silent=60)` was heard of a minute ago."""

    def make(name: str = "box:1:abc", *, silent: float = 0, **fields: Any) -> Worker:
        heard = timezone.now() - timedelta(seconds=silent)
        values = {
            "queues": ["celery"],
            "concurrency": 4,
            "started_at": heard,
            "heartbeat_at": heard,
            **fields,
        }
        return Worker.objects.create(name=name, **values)

    return make


@pytest.fixture
def model_server_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody starts a model server for these tests."""

    def answers() -> Finding:
        return fine("model_server", "The model server serves 1 model.")

    monkeypatch.setattr(reach, "model_server", answers)
