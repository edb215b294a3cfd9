"""Conversations on the models' side: under which terms one goes on, and its responses. Reads only."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ObjectDoesNotExist

from annotation.choices import Purpose, TurnState
from annotation.models import Assignment, Completion, Conversation, ConversationTurn, Project
from annotation.models.conversations import MOST_TURNS
from annotation.selectors.conversations import (
    Continuation,
    assignment_of,
    continuation_of,
    last_turn,
    state_of,
)
from training.models import (
    ArenaLink,
    ArenaTalk,
    Checkpoint,
    ContinuesWith,
    ConversationSettings,
    TurnResponse,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """Terms of a conversation, by the project's settings or an arena: who answers, and how it goes on."""

    checkpoints: Sequence[Checkpoint]
    responses: int
    sampling: Mapping[str, Any]
    most_turns: int
    continues_with: str
    rates_whole: bool
    is_open: bool
    scope: str
    """Within which sets of checkpoints and positions are counterbalanced."""
    arena: ArenaLink | None = None

    @property
    def purpose(self) -> Purpose:
        """Return the purpose of the comparisons: votes in an arena are never learned from."""
        return Purpose.ARENA if self.arena else Purpose.WORK


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """State of a conversation: its newest turn, and what that waits for."""

    conversation: Conversation
    terms: Terms
    turn: ConversationTurn | None = None
    state: TurnState | None = None
    """None before the first message."""
    assignment: Assignment | None = None
    continuation: Continuation | None = None
    """Of a judged turn: what the next message answers."""

    @property
    def may_go_on(self) -> bool:
        """Return whether another message may follow."""
        over = self.turn is not None and self.turn.index >= self.terms.most_turns
        return self.conversation.ended_at is None and not over and self.state in (None, TurnState.JUDGED)

    @property
    def next_index(self) -> int:
        """Return the number of the turn in hand, or of the next one."""
        if self.turn is None:
            return 1
        return self.turn.index + (self.state == TurnState.JUDGED)


def settings_of(project: Project) -> ConversationSettings | None:
    """Return a project's settings of conversations; None where there are none yet."""
    try:
        return project.conversation_settings
    except ObjectDoesNotExist:
        return None


def open_for_conversations(projects: Iterable[int]) -> set[int]:
    """Return the keys of those projects whose annotators may begin conversations."""
    return set(
        ConversationSettings.objects.filter(project__in=list(projects), is_open=True).values_list(
            "project_id", flat=True
        )
    )


def terms_of(conversation: Conversation) -> Terms:
    """Return the terms of a conversation: those of its arena, or of its project."""
    talk = ArenaTalk.objects.select_related("arena").filter(conversation=conversation).first()
    return terms_of_arena(talk.arena) if talk else terms_of_project(conversation.project)


def terms_of_project(project: Project) -> Terms:
    """Return the terms of a project's conversations; without settings nobody begins one or goes on."""
    settings = settings_of(project) or ConversationSettings(project=project, most_turns=MOST_TURNS)
    return Terms(
        checkpoints=tuple(settings.checkpoints.select_related("source").order_by("pk"))
        if settings.pk
        else (),
        responses=settings.responses,
        sampling=settings.sampling,
        most_turns=settings.most_turns,
        continues_with=settings.continues_with,
        rates_whole=settings.rates_whole,
        is_open=settings.is_open,
        scope="project",
    )


def terms_of_arena(arena: ArenaLink) -> Terms:
    """Return the terms of an arena's conversations: two responses, and the preferred one goes on."""
    return Terms(
        checkpoints=tuple(arena.checkpoints.select_related("source").order_by("pk")),
        responses=2,
        sampling=arena.sampling,
        most_turns=MOST_TURNS,
        continues_with=ContinuesWith.CHOSEN,
        rates_whole=False,
        is_open=arena.is_open,
        scope=f"arena-{arena.pk}",
        arena=arena,
    )


def standing_of(conversation: Conversation) -> Standing:
    """Return where a conversation stands."""
    terms = terms_of(conversation)
    turn = last_turn(conversation)
    if turn is None:
        return Standing(conversation=conversation, terms=terms)
    assignment = assignment_of(turn)
    state = state_of(turn, assignment=assignment)
    return Standing(
        conversation=conversation,
        terms=terms,
        turn=turn,
        state=state,
        assignment=assignment,
        continuation=going_on(turn, terms) if state == TurnState.JUDGED else None,
    )


def going_on(turn: ConversationTurn, terms: Terms) -> Continuation:
    """Return what a judged turn goes on with, under these terms."""
    return continuation_of(
        turn,
        at_random=terms.continues_with == ContinuesWith.RANDOM,
        edited=terms.continues_with == ContinuesWith.EDITED,
    )


def responses_to(turn: ConversationTurn) -> list[TurnResponse]:
    """Return the responses to a turn in the order of their positions."""
    return list(
        TurnResponse.objects.filter(turn=turn).select_related("checkpoint__source").order_by("position")
    )


def completions_shown(turn: ConversationTurn) -> list[Completion]:
    """Return the stored completions of a turn in the order in which it shows them."""
    rows = TurnResponse.objects.filter(turn=turn).select_related("completion").order_by("position")
    return [row.completion for row in rows if row.completion is not None]
