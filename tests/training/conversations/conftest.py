"""A model server inside the test for every client that a conversation makes."""

import httpx
import pytest

from tests.training.engine.streaming_server import StreamingServer
from training.engine import Engine


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> StreamingServer:
    """It answers with the model's name turned round, the seed and the number of messages."""
    fake_server = StreamingServer()
    fake_server.text = lambda body: f"{body['model'][::-1]} {body['seed']} after {len(body['messages'])}"
    client = lambda *_, **__: Engine(transport=httpx.MockTransport(fake_server))  # noqa: E731
    monkeypatch.setattr("training.services.conversations.generating.engine_for", client)
    return fake_server
