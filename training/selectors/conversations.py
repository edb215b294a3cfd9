"""Conversations of a project, and their transcripts."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ObjectDoesNotExist
from django.utils.functional import Promise

from annotation.choices import Purpose, TurnState, Verdict
from annotation.models import (
    Assignment,
    Candidate,
    Completion,
    Conversation,
    ConversationTurn,
    Judgment,
    Project,
)
from annotation.models.conversations import MOST_TURNS
from annotation.selectors.conversations import (
    ContinuedResponse,
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

# ── Transcripts ──


@dataclass(frozen=True, kw_only=True, slots=True)
class ResponseRead:
    """One response of a turn."""

    position: int
    text: str
    checkpoint: str
    """Empty while it is hidden."""
    seed: int | None
    rank: int | None
    goes_on: bool
    """True if the conversation went on with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnRead:
    """One turn of a conversation."""

    index: int
    message: str
    responses: tuple[ResponseRead, ...]
    comparison: int | None
    """None where names are hidden."""
    verdict: str
    """In words; empty without an annotation."""
    strength: int | None
    edited: str
    """The annotator's edit with which it went on."""


def transcript_of(conversation: Conversation, *, named: bool) -> list[TurnRead]:
    """Return all turns of a conversation in order; with names and comparisons where `named`."""
    turns = list(conversation.turns.select_related("prompt").order_by("index"))
    responses: dict[int, list[TurnResponse]] = defaultdict(list)
    for response in (
        TurnResponse.objects.filter(turn__in=turns).select_related("checkpoint").order_by("position")
    ):
        responses[response.turn_id].append(response)
    imported = _imported([turn for turn in turns if not responses[turn.pk]])
    judgments = {
        judgment.comparison_id: judgment
        for judgment in Judgment.objects.current()
        .filter(
            comparison__in=[turn.comparison_id for turn in turns if turn.comparison_id],
            annotator=conversation.annotator_id,
            assignment__retest_of__isnull=True,
        )
        .prefetch_related("ranks")
    }
    read = []
    for turn in turns:
        judgment = judgments.get(turn.comparison_id or 0)
        ranks = {row.completion_id: row.rank for row in judgment.ranks.all()} if judgment else {}
        read.append(
            TurnRead(
                index=turn.index,
                message=turn.prompt.last_question,
                responses=tuple(
                    ResponseRead(
                        position=response.position,
                        text=response.text,
                        checkpoint=_name(response) if named else "",
                        seed=response.seed,
                        rank=ranks.get(response.completion_id or 0),
                        goes_on=response.completion_id is not None
                        and response.completion_id == turn.continued_with_id,
                    )
                    for response in responses[turn.pk] or imported[turn.comparison_id or 0]
                ),
                comparison=turn.comparison_id if named else None,
                verdict=_words(judgment),
                strength=judgment.strength if judgment else None,
                edited=turn.continued_text,
            )
        )
    return read


@dataclass(frozen=True, slots=True)
class _Imported:
    """A response that came with a file: this Rondo generated none."""

    position: int
    text: str
    source: str
    seed: int | None
    completion_id: int


def _imported(turns: Sequence[ConversationTurn]) -> dict[int, list[_Imported]]:
    """Return the responses of turns that were not generated here, by comparison."""
    responses: dict[int, list[_Imported]] = defaultdict(list)
    rows = Candidate.objects.filter(comparison__in=[turn.comparison_id for turn in turns])
    for row in rows.select_related("completion__source").order_by("index"):
        written = row.completion
        responses[row.comparison_id].append(
            _Imported(row.index + 1, written.text, written.source.name, written.seed, written.pk)
        )
    return responses


def _name(response: TurnResponse | _Imported) -> str:
    return response.source if isinstance(response, _Imported) else response.checkpoint.name


def _words(judgment: Judgment | None) -> str:
    label: str | Promise = Verdict(judgment.verdict).label if judgment else ""
    return str(label)


# ── Conversations ──


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
class ConversationStanding:
    """State of a conversation: its newest turn, and what that waits for."""

    conversation: Conversation
    terms: Terms
    turn: ConversationTurn | None = None
    state: TurnState | None = None
    """None before the first message."""
    assignment: Assignment | None = None
    continuation: ContinuedResponse | None = None
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


def standing_of(conversation: Conversation) -> ConversationStanding:
    """Return where a conversation stands."""
    terms = terms_of(conversation)
    turn = last_turn(conversation)
    if turn is None:
        return ConversationStanding(conversation=conversation, terms=terms)
    assignment = assignment_of(turn)
    state = state_of(turn, assignment=assignment)
    return ConversationStanding(
        conversation=conversation,
        terms=terms,
        turn=turn,
        state=state,
        assignment=assignment,
        continuation=going_on(turn, terms) if state == TurnState.JUDGED else None,
    )


def going_on(turn: ConversationTurn, terms: Terms) -> ContinuedResponse:
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
