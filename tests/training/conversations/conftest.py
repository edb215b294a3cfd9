"""A model server inside the test for every client that a conversation makes."""

import pytest

from tests.training.engine.streaming_server import StreamingServer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> StreamingServer:
    """It answers with the model's name turned round, the seed and the number of messages."""
    fake_server = StreamingServer()
    fake_server.text = lambda body: f"{body['model'][::-1]} {body['seed']} after {len(body['messages'])}"
    monkeypatch.setattr("training.services.conversations.engine_for", fake_server.engine)
    return fake_server
