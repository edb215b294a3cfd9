"""Fixtures of webhooks: a receiver on this machine, and a webhook that tells it of judgments."""

from collections.abc import Iterator

import pytest
from pytest_django import Settings

from annotation.models import Project, User
from annotation.services import webhooks
from tests.annotation.webhooks.receiver import Receiver, listening
from tests.annotation.webhooks.webhook_scene import make_webhook


@pytest.fixture
def receiver(settings: Settings) -> Iterator[Receiver]:
    settings.RONDO_WEBHOOK_HOSTS = ["127.0.0.1"]
    with listening() as listener:
        yield listener


@pytest.fixture
def hook(project: Project, carol: User, receiver: Receiver) -> webhooks.NewSecret:
    """A webhook of the project that tells the receiver of judgments."""
    return make_webhook(project, carol, receiver.url)
