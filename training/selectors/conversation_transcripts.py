"""Transcripts: every turn of a conversation with all responses and what was preferred. Reads only."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.functional import Promise

from annotation.choices import Verdict
from annotation.models import Candidate, Conversation, ConversationTurn, Judgment
from training.models import TurnResponse


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
