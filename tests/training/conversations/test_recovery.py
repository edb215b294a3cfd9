"""A dead model server, a reader who goes away, two tabs: a turn is resumed, and nothing is doubled."""

import json
from collections.abc import Callable, Iterator

import httpx
import pytest

from annotation.choices import TurnState
from annotation.models import Comparison, Completion, Conversation, Project, User
from tests.training.conversations.scene import open_conversations, text_at
from tests.training.engine.streaming_server import StreamingServer
from training.engine import EngineError
from training.models import TurnResponse
from training.selectors.conversations import standing_of
from training.services.conversations import begin, generate_turn, say, stream_turn

pytestmark = pytest.mark.django_db


@pytest.fixture
def conversation(project: Project, carol: User, alice: User, server: StreamingServer) -> Conversation:
    open_conversations(project, carol)
    return begin(project=project, annotator=alice)


def dies_mid_stream(model: str) -> Callable[[httpx.Request], httpx.Response | None]:
    """One model's answer breaks off after two words."""

    def trouble(request: httpx.Request) -> httpx.Response | None:
        body = json.loads(request.content) if request.content else {}
        if body.get("model") != model:
            return None
        pieces = [{"choices": [{"index": 0, "delta": {"content": word}}]} for word in ("Half ", "an ")]
        return httpx.Response(200, text="".join(f"data: {json.dumps(piece)}\n\n" for piece in pieces))

    return trouble


def seeds_asked(server: StreamingServer, model: str) -> list[int]:
    return [body["seed"] for body in server.asked if body["model"] == model]


def test_a_response_that_broke_off_is_generated_again_with_its_seed_and_the_other_is_kept(
    conversation: Conversation, alice: User, server: StreamingServer
):
    turn = say(conversation=conversation, annotator=alice, text="How hot?")
    seeds = {
        response.checkpoint.name: response.seed for response in turn.responses.select_related("checkpoint")
    }
    server.trouble = dies_mid_stream("north")
    with pytest.raises(EngineError, match="broke off"):
        generate_turn(turn=turn)
    assert standing_of(conversation).state == TurnState.GENERATING
    assert Completion.objects.count() == 0
    assert TurnResponse.objects.get(checkpoint__name="north").text == ""

    server.trouble = lambda request: None
    generate_turn(turn=turn)
    assert seeds_asked(server, "north") == [seeds["north"]]
    # The whole one was not asked for again.
    assert seeds_asked(server, "south") == [seeds["south"]]
    assert standing_of(conversation).state == TurnState.JUDGING


def test_a_reader_who_goes_away_loses_nothing(
    conversation: Conversation, alice: User, server: StreamingServer
):
    turn = say(conversation=conversation, annotator=alice, text="How hot?")
    stream: Iterator[object] = stream_turn(turn=turn)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert standing_of(conversation).state == TurnState.GENERATING

    generate_turn(turn=turn)
    assert standing_of(conversation).state == TurnState.JUDGING
    assert Comparison.objects.count() == 1


def test_two_tabs_of_one_turn_store_it_once_and_show_the_same_texts(
    conversation: Conversation, alice: User, server: StreamingServer
):
    texts = iter(range(100))
    # A server that ignores seeds: the second tab's texts differ.
    server.text = lambda body: f"Answer {next(texts)}"
    turn = say(conversation=conversation, annotator=alice, text="How hot?")
    first, second = stream_turn(turn=turn), stream_turn(turn=turn)
    next(first), next(second)
    for _pieces in first:
        pass
    stored = [text_at(turn, 1), text_at(turn, 2)]
    for _pieces in second:
        pass
    assert [text_at(turn, 1), text_at(turn, 2)] == stored
    assert (Comparison.objects.count(), Completion.objects.count()) == (1, 2)


def test_responses_are_released_together_and_the_pieces_make_the_stored_texts(
    conversation: Conversation, alice: User, server: StreamingServer
):
    server.text = lambda body: "one two three" if body["model"] == "north" else "four five six"
    turn = say(conversation=conversation, annotator=alice, text="How hot?")
    pieces = list(stream_turn(turn=turn))
    assert [[position for position, _text in step] for step in pieces] == [[1, 2]] * 3
    for position in (1, 2):
        released = "".join(text for step in pieces for place, text in step if place == position)
        assert released == text_at(turn, position)


def test_what_is_stored_already_comes_first_and_whole(
    conversation: Conversation, alice: User, server: StreamingServer
):
    turn = say(conversation=conversation, annotator=alice, text="How hot?")
    generate_turn(turn=turn)
    assert list(stream_turn(turn=turn)) == [[(1, text_at(turn, 1)), (2, text_at(turn, 2))]]


def test_an_error_that_nobody_expects_ends_the_stream_too(
    conversation: Conversation, alice: User, server: StreamingServer
):
    def fails(request: httpx.Request) -> httpx.Response:
        raise RuntimeError("no such thing")

    server.trouble = fails
    turn = say(conversation=conversation, annotator=alice, text="How hot?")
    with pytest.raises(RuntimeError, match="no such thing"):
        generate_turn(turn=turn)


def test_text_that_no_database_stores_becomes_what_was_judged(
    conversation: Conversation, alice: User, server: StreamingServer
):
    server.text = lambda body: "a\x00b \ud800 c"
    turn = say(conversation=conversation, annotator=alice, text="How hot?")
    generate_turn(turn=turn)
    assert set(Completion.objects.values_list("text", flat=True)) == {"a\ufffdb \ufffd c"}
    assert text_at(turn, 1) == "a\ufffdb \ufffd c"
