"""Conversations as parts of records, as `formats.conversation_turns` describes them."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from django.db.models import Exists, OuterRef

from annotation.models import Conversation, ConversationTurn, Judgment

Listed = Callable[[Iterable[int]], Mapping[int, list[dict[str, Any]]]]
"""Comparison ids → the completions of each."""


def turns_of_comparisons(
    comparisons: Collection[int], completions: Listed
) -> dict[int, list[dict[str, Any]]]:
    """Comparison id → the turns that it is, each with its conversation; of others there is no entry."""
    turns = list(
        ConversationTurn.objects.filter(comparison__in=comparisons)
        .select_related("conversation__annotator", "conversation__task")
        .order_by("conversation", "index")
    )
    if not turns:
        return {}
    unjudged = _unjudged({turn.conversation_id for turn in turns}, completions)
    listed: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for turn in turns:
        if turn.comparison_id is not None:
            listed[turn.comparison_id].append(
                {
                    **_conversation(turn.conversation),
                    **_turn(turn),
                    "unjudged": unjudged.get(turn.conversation_id, []),
                }
            )
    return listed


def _unjudged(conversations: Collection[Any], completions: Listed) -> dict[Any, list[dict[str, Any]]]:
    judged = Judgment.objects.filter(comparison=OuterRef("comparison"))
    turns = list(
        ConversationTurn.objects.filter(~Exists(judged), conversation__in=conversations)
        .select_related("prompt")
        .order_by("conversation", "index")
    )
    of_comparison = completions([turn.comparison_id for turn in turns if turn.comparison_id is not None])
    listed = defaultdict(list)
    for turn in turns:
        listed[turn.conversation_id].append(
            {
                **_turn(turn),
                "messages": turn.prompt.messages,
                "tags": turn.prompt.tags,
                "split": turn.prompt.split,
                "completions": of_comparison[turn.comparison_id] if turn.comparison_id is not None else [],
            }
        )
    return listed


def _turn(turn: ConversationTurn) -> dict[str, Any]:
    chosen = turn.continued_with_id
    return {
        "turn": turn.index,
        "continued_with": None if chosen is None else str(chosen),
        "continued_text": turn.continued_text,
    }


def _conversation(conversation: Conversation) -> dict[str, Any]:
    """One that came from elsewhere keeps the id and the task that it had there."""
    origin = conversation.imported_from or {}
    return {
        "id": str(origin.get("id", conversation.pk)),
        "annotator": str(conversation.annotator.pseudonym),
        "task": conversation.task.name if conversation.task else origin.get("task", ""),
        "system": conversation.system,
        "seed": conversation.seed,
        "rating": conversation.rating,
        "attack_success": conversation.attack_success,
        "comment": conversation.comment,
        "created_at": _time(conversation.created_at),
        "ended_at": conversation.ended_at and _time(conversation.ended_at),
    }


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()
