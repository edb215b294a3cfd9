"""Talking: begin a conversation, say something, take a turn up again where it was left."""

import hashlib
from datetime import timedelta

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import Split, TurnState
from annotation.errors import NotAllowed, Refusal
from annotation.models import (
    Assignment,
    Conversation,
    ConversationTask,
    ConversationTurn,
    Project,
    User,
)
from annotation.selectors.conversations import why_not
from annotation.services.conversations import add_turn, begin_conversation, take_up
from annotation.services.jobs.messages import send_after_commit
from annotation.services.texts.completions import storable
from training.choices import TaskName
from training.models import ArenaLink, ArenaTalk, PreparedOpening, TurnResponse
from training.selectors.conversations import (
    Standing,
    completions_shown,
    standing_of,
    terms_of_project,
)
from training.services.comparing.arena import TooFast
from training.services.conversations.drawing import draw_checkpoints
from training.services.conversations.generating import complete_turn
from training.services.conversations.openings import take_opening

TURNS_A_MINUTE = 10
"""So many turns one voter may have in an arena in a minute."""


@transaction.atomic
def begin(*, project: Project, annotator: User, task: ConversationTask | None = None) -> Conversation:
    """Begin a conversation of a member; with a task that has an opening, its first turn is there at once.

    Refuses who may not label more, and a project whose conversations are not open.
    """
    terms = terms_of_project(project)
    if not terms.is_open:
        raise Refusal("conversations_closed", _("Conversations are closed in this project. Ask its manager."))
    if reason := why_not(project, annotator):
        raise NotAllowed("no_more_conversation", reason)
    conversation = begin_conversation(project=project, annotator=annotator, task=task)
    if task is not None and task.opening.strip():
        opening = take_opening(task, terms)
        _add(Standing(conversation=conversation, terms=terms), task.opening, opening)
        # The next one who begins finds another.
        send_after_commit(TaskName.PREPARE_OPENINGS, project.pk)
    return conversation


@transaction.atomic
def begin_in_arena(*, arena: ArenaLink, voter: User) -> Conversation:
    """Return the voter's open conversation in an arena, or begin one. Refuses an arena that is over."""
    locked = ArenaLink.objects.select_for_update().get(pk=arena.pk)
    if not locked.is_open:
        raise Refusal("arena_over", _("This arena is over: votes are no longer taken."))
    open_ = Conversation.objects.filter(
        arena_talk__arena=arena, annotator=voter, ended_at__isnull=True
    ).first()
    if open_ is not None:
        return open_
    conversation = begin_conversation(project=arena.project, annotator=voter)
    ArenaTalk.objects.create(arena=arena, conversation=conversation)
    return conversation


@transaction.atomic
def say(*, conversation: Conversation, annotator: User, text: str) -> ConversationTurn:
    """Add the annotator's next message. No model is asked yet: `stream_turn` does that.

    The same message sent twice, while its responses are generated, is one turn. Refuses another person's
    conversation, one that waits for an annotation, is over or at its longest, and who may not label more.
    """
    locked = Conversation.objects.select_for_update(no_key=True).get(pk=conversation.pk)
    locked.project, locked.task = conversation.project, conversation.task
    if locked.annotator_id != annotator.pk:
        raise NotAllowed("conversation_of_another", _("This is someone else's conversation."))
    standing = standing_of(locked)
    turn = standing.turn
    if (
        turn is not None
        and standing.state == TurnState.GENERATING
        and turn.prompt.last_question == text.strip()
    ):
        return turn
    if standing.state in (TurnState.GENERATING, TurnState.JUDGING):
        raise Refusal(
            "responses_not_annotated",
            _("Annotate the responses first, then write the next message."),
            field="text",
        )
    if standing.terms.arena is None and (reason := why_not(locked.project, annotator)):
        raise NotAllowed("no_more_conversation", reason)
    if standing.terms.arena is not None:
        _require_pace(standing.terms.arena, annotator)
    if turn is not None and turn.index >= standing.terms.most_turns:
        raise Refusal(
            "conversation_too_long",
            _("This conversation is at its longest. End it and begin a new one."),
            field="text",
        )
    return _add(standing, text)


def _require_pace(arena: ArenaLink, voter: User) -> None:
    """Refuse an arena that is over, and more turns than a person can read (`TooFast`)."""
    if not arena.is_open:
        raise Refusal("arena_over", _("This arena is over: votes are no longer taken."))
    since = timezone.now() - timedelta(minutes=1)
    recent = ConversationTurn.objects.filter(
        conversation__arena_talk__arena=arena, conversation__annotator=voter, created_at__gt=since
    )
    if recent.count() >= TURNS_A_MINUTE:
        raise TooFast("too_fast", _("You write faster than one can read. Go on in a minute."))


def take_up_turn(*, standing: Standing) -> Standing:
    """Lease the newest turn's comparison again where its lease ran out; return where it stands then."""
    turn = standing.turn
    if (
        turn is None
        or turn.comparison is None
        or turn.continued_with_id is not None
        or standing.assignment is not None
        or standing.terms.arena is not None
        or standing.conversation.ended_at is not None
    ):
        return standing
    assignment: Assignment | None = take_up(
        turn=turn, shown=[completion.pk for completion in completions_shown(turn)]
    )
    return standing_of(standing.conversation) if assignment is not None else standing


def _add(standing: Standing, text: str, prepared: PreparedOpening | None = None) -> ConversationTurn:
    turn = add_turn(
        conversation=standing.conversation,
        text=text,
        before=standing.turn,
        continuation=standing.continuation,
        # Nothing learns from those who vote in an arena, and so not from their words.
        split=Split.HELD_OUT if standing.terms.arena else None,
    )
    responses = _prepared(prepared) if prepared else _drawn(standing, turn)
    for position, response in enumerate(responses, start=1):
        response.turn, response.position = turn, position
        response.sampling = dict(standing.terms.sampling)
    TurnResponse.objects.bulk_create(responses)
    if prepared is not None:
        complete_turn(turn=turn)
    return turn


def _drawn(standing: Standing, turn: ConversationTurn) -> list[TurnResponse]:
    """Return the responses that are still to be generated."""
    conversation = standing.conversation
    drawn = draw_checkpoints(project=conversation.project, terms=standing.terms)
    return [
        TurnResponse(checkpoint=checkpoint, seed=_seed(f"{conversation.seed}:{turn.index}:{position}"))
        for position, checkpoint in enumerate(drawn, start=1)
    ]


def _prepared(opening: PreparedOpening) -> list[TurnResponse]:
    """Return the responses of an opening that was generated ahead."""
    return [
        TurnResponse(
            checkpoint_id=response["checkpoint"],
            seed=response["seed"],
            text=storable(response["text"]),
            finish_reason=(response["finish_reason"] or "")[:20],
            token_count=response["token_count"],
            written_at=opening.created_at,
        )
        for response in opening.responses
    ]


def _seed(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") >> 1
