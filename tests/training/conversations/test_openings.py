"""Openings are generated before anybody begins: the first turn waits for its annotation at once."""

import httpx
import pytest

from annotation.choices import TurnState
from annotation.models import ConversationTask, Project, User
from annotation.services.conversations import archive_task, save_task
from tests.training.conversations.scene import open_conversations
from tests.training.engine.streaming_server import StreamingServer
from training.choices import TrainingTask
from training.models import PreparedOpening
from training.selectors.conversations import completions_shown, standing_of
from training.services.conversations import READY, begin, prepare_openings, sweep_openings

pytestmark = pytest.mark.django_db


@pytest.fixture
def task(
    project: Project, carol: User, server: StreamingServer, monkeypatch: pytest.MonkeyPatch
) -> ConversationTask:
    monkeypatch.setattr("training.services.conversations.engine_for", server.engine)
    open_conversations(project, carol)
    return save_task(
        project=project, actor=carol, name="Refund", opening="My tea is cold.", system="Be kind."
    )


def test_a_conversation_takes_a_ready_opening_and_asks_no_model(
    project: Project, task: ConversationTask, alice: User, server: StreamingServer
):
    prepare_openings(project.pk)
    assert PreparedOpening.objects.count() == READY
    assert server.asked[0]["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "My tea is cold."},
    ]
    first = PreparedOpening.objects.order_by("pk")[0].responses
    request_count = len(server.asked)

    conversation = begin(project=project, annotator=alice, task=task)
    standing = standing_of(conversation)
    assert standing.state == TurnState.JUDGING
    assert standing.turn is not None
    assert [completion.text for completion in completions_shown(standing.turn)] == [
        response["text"] for response in first
    ]
    assert [completion.seed for completion in completions_shown(standing.turn)] == [
        response["seed"] for response in first
    ]
    assert (len(server.asked), PreparedOpening.objects.count()) == (request_count, READY - 1)


def test_each_opening_is_taken_once_and_then_responses_are_generated_as_ever(
    project: Project, task: ConversationTask, alice: User, bob: User
):
    prepare_openings(project.pk)
    states = [
        standing_of(begin(project=project, annotator=annotator, task=task)).state
        for annotator in (alice, bob, alice)
    ]
    assert states == [TurnState.JUDGING, TurnState.JUDGING, TurnState.GENERATING]


def test_openings_of_an_earlier_version_of_a_task_are_never_shown(
    project: Project, task: ConversationTask, carol: User, alice: User
):
    prepare_openings(project.pk)
    save_task(project=project, actor=carol, task=task, name="Refund", opening="My tea is hot.")
    assert standing_of(begin(project=project, annotator=alice, task=task)).state == TurnState.GENERATING
    prepare_openings(project.pk)
    assert PreparedOpening.objects.count() == READY
    assert standing_of(begin(project=project, annotator=alice, task=task)).state == TurnState.JUDGING


def test_the_sweep_asks_for_what_is_missing_and_for_nothing_else(
    project: Project, task: ConversationTask, carol: User, sent: list[tuple[str, list[object]]]
):
    sweep_openings()
    message: tuple[str, list[object]] = (TrainingTask.PREPARE_OPENINGS, [project.pk])
    assert sent.count(message) == 1
    prepare_openings(project.pk)
    sweep_openings()
    assert sent.count(message) == 1
    PreparedOpening.objects.all().delete()
    archive_task(task=task, actor=carol)
    sweep_openings()
    assert sent.count(message) == 1


def test_a_model_server_that_is_down_leaves_it_to_a_later_sweep(
    project: Project, task: ConversationTask, server: StreamingServer
):
    server.trouble = lambda request: httpx.Response(503, json={"error": {"message": "down"}})
    prepare_openings(project.pk)
    assert PreparedOpening.objects.count() == 0
