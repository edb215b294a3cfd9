"""Messages to workers: a broker that is away costs nobody their time."""

from types import SimpleNamespace

import pytest
from amqp.exceptions import AccessRefused
from kombu.exceptions import OperationalError

from annotation.services import jobs


class Broker:
    """Counts who sends, and answers or not."""

    def __init__(self) -> None:
        self.sent = 0
        self.is_away = True
        self.says: Exception = OperationalError("Connection refused")

    def send_task(self, task: str, args: list[object], **_: object) -> None:
        self.sent += 1
        if self.is_away:
            raise self.says


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()
    monkeypatch.setattr(jobs, "current_app", broker)
    monkeypatch.setattr(jobs, "_quiet_until", 0.0)
    return broker


def at(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "time", SimpleNamespace(monotonic=lambda: seconds))


def test_after_a_broker_did_not_answer_nobody_waits_for_it_for_five_seconds(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
):
    for seconds, sent in ((100.0, 1), (101.0, 1), (104.9, 1), (105.1, 2), (109.9, 2)):
        at(seconds, monkeypatch)
        jobs.send("look", 1)
        assert broker.sent == sent


def test_a_broker_that_is_back_hears_every_message(broker: Broker, monkeypatch: pytest.MonkeyPatch):
    at(100.0, monkeypatch)
    jobs.send("look", 1)
    broker.is_away = False
    for sent, seconds in enumerate((105.1, 105.2, 105.3), start=2):
        at(seconds, monkeypatch)
        jobs.send("look", 1)
        assert broker.sent == sent


def test_a_broker_that_refuses_the_password_fails_nobodys_request(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    # As RabbitMQ says it: kombu hands this on as it comes.
    broker.says = AccessRefused("Login was refused")
    at(100.0, monkeypatch)
    jobs.send("look", 1)
    assert "Login was refused" in caplog.text
    assert "a sweep sends it again" in caplog.text
