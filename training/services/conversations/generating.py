"""Generating: all checkpoints respond to a turn at once, streamed in step with each other.

Every response is released piece by piece together with the others, at the pace of the slowest: the speed of
each would identify its model. A response is stored when it is complete; one that broke off is generated
again with the same seed. Whoever stores first stays, so two tabs of one turn show the same texts.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.models import Completion, Conversation, ConversationTurn
from annotation.selectors import access
from annotation.services.conversations import put_to_judgment
from annotation.services.texts.completions import storable
from training.engine import Delta, engine_for
from training.models import TurnResponse
from training.selectors.conversations import responses_to, terms_of
from training.services.comparing.voting import record_shown

Pieces = list[tuple[int, str]]
"""Position and text of what is released together."""


def stream_turn(*, turn: ConversationTurn) -> Iterator[Pieces]:
    """Yield the responses of a turn as they are generated, then put them to judgment.

    What is stored already comes first, whole. A reader who goes away cancels the rest. Raises `EngineError`
    after storing those that are complete.
    """
    responses = responses_to(turn)
    if stored := [
        (response.position, response.text) for response in responses if response.written_at is not None
    ]:
        yield stored
    streams = [
        _Stream(response, turn.prompt.messages) for response in responses if response.written_at is None
    ]
    trouble: Exception | None = None
    try:
        live = streams
        while live:
            items = [(stream, stream.items.get()) for stream in live]
            for stream, item in items:
                if isinstance(item, Exception):
                    trouble = item
                elif item is None:
                    _store(stream)
            if pieces := [
                (s.response.position, s.take(i)) for s, i in items if isinstance(i, Delta) and i.text
            ]:
                yield pieces
            live = [stream for stream, item in items if isinstance(item, Delta)]
    finally:
        for stream in streams:
            stream.stop.set()
    if trouble is not None:
        raise trouble
    complete_turn(turn=turn)


def generate_turn(*, turn: ConversationTurn) -> None:
    """Generate all missing responses of a turn and put them to judgment. Raises `EngineError`."""
    for _pieces in stream_turn(turn=turn):
        pass


@transaction.atomic
def complete_turn(*, turn: ConversationTurn) -> None:
    """Store the responses of a turn as completions and put them to judgment, once all are generated."""
    Conversation.objects.select_for_update(no_key=True).get(pk=turn.conversation_id)
    turn.refresh_from_db(fields=["comparison", "continued_with"])
    responses = responses_to(turn)
    if turn.comparison_id is not None or any(response.written_at is None for response in responses):
        return
    terms = terms_of(turn.conversation)
    project = turn.conversation.project
    newest = project.rounds.order_by("-number").values_list("number", flat=True).first()
    put_to_judgment(
        turn=turn,
        completions=[_completion(turn, response) for response in responses],
        round_number=newest or access.current_round(project),
        purpose=terms.purpose,
    )


class _Stream:
    """One response on its way, read in a thread of its own, which touches no database."""

    def __init__(self, response: TurnResponse, messages: Sequence[Mapping[str, Any]]) -> None:
        self.response = response
        self.items: SimpleQueue[Delta | Exception | None] = SimpleQueue()
        self.stop = threading.Event()
        self.text = ""
        self.last = Delta()
        self._messages = [{"role": message["role"], "content": message["content"]} for message in messages]
        threading.Thread(target=self._read, name="turn", daemon=True).start()

    def take(self, delta: Delta) -> str:
        """Add a released piece to the text."""
        self.text += delta.text
        return delta.text

    def _read(self) -> None:
        response, last = self.response, Delta()
        try:
            with engine_for(response.checkpoint) as engine:
                deltas = engine.stream(
                    model=response.checkpoint.name,
                    messages=self._messages,
                    seed=response.seed,
                    **response.sampling,
                )
                for delta in deltas:
                    if self.stop.is_set():
                        deltas.close()
                        return
                    last = delta
                    if delta.text:
                        self.items.put(delta)
            self.last = last
            self.items.put(None)
        except Exception as error:
            self.items.put(error)


def _store(stream: _Stream) -> None:
    """Write a complete response. Whoever writes first stays."""
    TurnResponse.objects.filter(pk=stream.response.pk, written_at__isnull=True).update(
        text=storable(stream.text),
        finish_reason=(stream.last.finish_reason or "")[:20],
        token_count=stream.last.token_count,
        written_at=timezone.now(),
    )


def _completion(turn: ConversationTurn, response: TurnResponse) -> Completion:
    source = response.checkpoint.source
    assert source is not None  # noqa: S101 - constraint checkpoint_source_where_it_writes
    response.completion = record_shown(
        prompt=turn.prompt,
        source=source,
        response=response,
        sampling=response.sampling,
        seed=response.seed,
    )
    response.save(update_fields=["completion"])
    return response.completion


def trouble_in_words() -> str:
    """Return why responses are missing. The message of a server may name its model."""
    return _("A response could not be generated. Try again in a moment.")
