"""RabbitMQ as the broker: seen by the probes, its queues counted, and well again after it was killed."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import current_app

from tests.faults.servers import RabbitMQ
from webapp.operations import reach
from webapp.operations.work import depths

pytestmark = [pytest.mark.rabbitmq, pytest.mark.long]
WAIT = 30.0


@pytest.fixture
def rabbitmq(settings) -> Iterator[RabbitMQ]:
    folder = Path(tempfile.mkdtemp(prefix="rondo-rabbit-"))
    server = RabbitMQ(folder)
    settings.CELERY_BROKER_URL = server.url
    keys = (
        "broker_url",
        "broker_read_url",
        "broker_write_url",
        "broker_transport",
        "broker_transport_options",
    )
    before = {key: getattr(current_app.conf, key) for key in keys}
    current_app.conf.update(
        broker_url=server.url,
        broker_read_url=server.url,
        broker_write_url=server.url,
        broker_transport=None,
        broker_transport_options={},
    )
    try:
        yield server
    finally:
        current_app.conf.update(before)
        server.close()
        shutil.rmtree(folder, ignore_errors=True)


def send(number: int) -> None:
    with current_app.connection_for_write() as connection:
        for index in range(number):
            current_app.send_task("nobody.does", args=[index], connection=connection)


def counted(expected: int) -> int:
    """Return the number of waiting messages, once there are as many as expected. No sender waits until the
    broker confirms that a message is in its queue."""
    deadline = time.monotonic() + WAIT
    while (count := depths({"celery"}, seconds=WAIT)["celery"]) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    return count


def test_what_waits_is_counted_and_a_broker_that_was_killed_and_came_back_is_well_again(rabbitmq: RabbitMQ):
    assert not reach.broker().is_wrong
    assert depths({"celery", "nobody-asked"}, seconds=WAIT) == {"celery": 0, "nobody-asked": 0}
    send(3)
    assert counted(3) == 3

    rabbitmq.kill()
    finding = reach.broker()
    assert finding.is_wrong
    assert "RONDO_BROKER_URL" in str(finding.remedy)
    assert "guest:guest" not in str(finding)

    # What it had not yet written is lost, as is the way of brokers: the database knows what there is to do.
    rabbitmq.start()
    assert not reach.broker().is_wrong
    before = depths({"celery"}, seconds=WAIT)["celery"]
    send(2)
    assert counted(before + 2) == before + 2
