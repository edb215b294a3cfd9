"""A conversation by way of the API, from the manager's settings to the end."""

import uuid

import httpx
import pytest

from annotation.models import Conversation, Project
from tests.api.scene import Asker
from tests.training.comparing.arena_scene import make_checkpoints
from tests.training.engine.streaming_server import StreamingServer

pytestmark = pytest.mark.django_db
BELOW = "/projects/tea/"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> StreamingServer:
    fake_server = StreamingServer()
    monkeypatch.setattr("training.services.conversations.engine_for", fake_server.engine)
    return fake_server


def test_a_conversation_from_its_settings_to_its_end(
    project: Project, as_alice: Asker, as_carol: Asker, server: StreamingServer
):
    make_checkpoints(project)
    names = ["north", "south"]
    assert as_carol.get(f"{BELOW}conversation-settings/").status_code == 404
    put = as_carol("PUT", f"{BELOW}conversation-settings/", {"checkpoints": names, "most_turns": 3}).json()
    assert (sorted(put["checkpoints"]), put["most_turns"], put["is_open"]) == (names, 3, True)
    assert as_carol.get(f"{BELOW}conversation-settings/").json() == put
    task = as_carol.post(
        f"{BELOW}conversation-tasks/", {"name": "Refund", "opening": "My tea is cold."}
    ).json()
    assert [row["id"] for row in as_alice.get(f"{BELOW}conversation-tasks/").json()["results"]] == [
        task["id"]
    ]

    begun = as_alice.post(f"{BELOW}conversations/", {"task": task["id"]}).json()
    there = f"{BELOW}conversations/{begun['id']}/"
    assert (begun["state"], begun["turns"][0]["message"]) == ("generating", "My tea is cold.")
    written = as_alice.post(f"{there}responses/").json()
    assert written["state"] == "judging"
    assert all(
        response["text"] and not response["checkpoint"] for response in written["turns"][0]["responses"]
    )
    assert not any(name in str(written) for name in names)

    judged = as_alice.get(f"{BELOW}assignments/{written['assignment']}/").json()
    answers = [answer["answer"] for answer in judged["answers"]]
    sent = as_alice.post(
        f"{BELOW}assignments/{written['assignment']}/judgment/",
        {"verdict": "ranked", "ranks": dict(zip(answers, (2, 1), strict=True)), "strength": 3},
        **{"Idempotency-Key": str(uuid.uuid4())},
    )
    assert sent.status_code == 201
    continued = as_alice.post(f"{there}messages/", {"text": "Warm it."}).json()
    assert continued["turns"][0]["responses"][1]["goes_on"]
    assert as_alice.post(f"{there}messages/", {"text": "Warm it."}).json()["turns"] == continued["turns"]

    ended = as_alice.post(f"{there}end/", {"rating": 4}).json()
    assert (ended["rating"], ended["ended_at"] is not None) == (4, True)
    read = as_carol.get(there).json()
    assert {response["checkpoint"] for response in read["turns"][0]["responses"]} == set(names)
    assert [response["rank"] for response in read["turns"][0]["responses"]] == [2, 1]
    assert as_carol("DELETE", f"{BELOW}conversation-tasks/{task['id']}/").status_code == 204
    assert as_alice.get(f"{BELOW}conversation-tasks/").json()["results"] == []


def test_a_model_server_that_is_down_is_said_without_its_words(
    project: Project, as_alice: Asker, as_carol: Asker, server: StreamingServer
):
    make_checkpoints(project)
    as_carol("PUT", f"{BELOW}conversation-settings/", {"checkpoints": ["north", "south"]})
    begun = as_alice.post(f"{BELOW}conversations/", {}).json()
    there = f"{BELOW}conversations/{begun['id']}/"
    as_alice.post(f"{there}messages/", {"text": "How hot?"})
    server.trouble = lambda request: httpx.Response(503, json={"error": {"message": "north is down"}})
    refused = as_alice.post(f"{there}responses/")
    assert refused.status_code == 422
    assert "north" not in str(refused.json())
    server.trouble = lambda request: None
    assert as_alice.post(f"{there}responses/").json()["state"] == "judging"


def test_only_who_talks_and_managers_find_a_conversation(project: Project, as_alice: Asker, as_carol: Asker):
    conversation = Conversation.objects.create(
        project=project, annotator=project.memberships.get(user__username="bob").user
    )
    there = f"{BELOW}conversations/{conversation.pk}/"
    assert as_alice.get(there).status_code == 404
    assert as_carol.get(there).status_code == 200
    assert as_carol.post(f"{there}messages/", {"text": "Hi"}).status_code == 404
