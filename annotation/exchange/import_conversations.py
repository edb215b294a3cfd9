"""Conversations that come in with their turns: written once, whichever line tells of them first."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db.models import Q
from django.utils import timezone

from annotation.choices import Purpose
from annotation.exchange.formats.items import ImportedConversation, ImportedTurn
from annotation.exchange.import_people import ImportedPeople
from annotation.exchange.ready_made import Placed, store_completions
from annotation.models import Comparison, Conversation, ConversationTask, ConversationTurn, Project, bulk
from annotation.services.texts.comparisons import completion_set


def write_turns(*, project: Project, placed: Sequence[Placed], people: ImportedPeople) -> None:
    """Write the turns that items are, and their conversations. What is there stays as it is.

    placed: items with their prompts, whose completions and comparisons are written. Call it in their
    transaction.
    """
    placed = [(item, prompt) for item, prompt in placed if item.turns]
    if not placed:
        return
    conversations = _conversations(
        project, [turn.conversation for item, _ in placed for turn in item.turns], people
    )
    completions = store_completions(placed, set())
    comparisons = _comparisons(project, completions)
    stored_keys = set(
        ConversationTurn.objects.filter(conversation__in=conversations.values()).values_list(
            "conversation_id", "index"
        )
    )
    rows: dict[tuple[uuid.UUID, int], tuple[Any, ...]] = {}
    for (item, prompt), ids in zip(placed, completions, strict=True):
        for turn in item.turns:
            key = (conversations[turn.conversation.id], turn.index)
            if key not in stored_keys:
                comparison = comparisons.get(completion_set(ids)) if ids else None
                rows.setdefault(key, (prompt, comparison, *_continuation(turn, ids)))
    now = bulk.time_value(timezone.now())
    bulk.insert_numbered(
        ConversationTurn,
        [
            *("conversation_id", "index", "prompt_id", "comparison_id"),
            *("continued_with_id", "continued_text", "created_at"),
        ],
        [(bulk.uuid_value(pk), index, *row, now) for (pk, index), row in rows.items()],
    )


def _continuation(turn: ImportedTurn, completions: Sequence[int]) -> tuple[int | None, str]:
    chosen = turn.continued_with
    return None if chosen is None else completions[chosen], turn.continued_text


def _comparisons(project: Project, completions: Iterable[Sequence[int]]) -> dict[str, int]:
    """Completion set → the oldest comparison of it."""
    sets = {completion_set(ids) for ids in completions if ids}
    comparisons = Comparison.objects.filter(project=project, completion_set__in=sets, purpose=Purpose.WORK)
    return dict(comparisons.order_by("-round_number", "-pk").values_list("completion_set", "pk"))


def _conversations(
    project: Project, conversations: Iterable[ImportedConversation], people: ImportedPeople
) -> Mapping[str, uuid.UUID]:
    """The conversations by the ids that the file has for them; those that are not here yet are written."""
    by_id = {conversation.id: conversation for conversation in conversations}
    here = Conversation.objects.filter(project=project).filter(
        Q(pk__in=list(by_id)) | Q(imported_from__id__in=list(by_id))
    )
    known = {str((origin or {}).get("id", pk)): pk for pk, origin in here.values_list("pk", "imported_from")}
    new = [conversation for conversation in by_id.values() if conversation.id not in known]
    annotators = people.ids((conversation.annotator, False) for conversation in new)
    tasks = dict(
        ConversationTask.objects.filter(
            project=project, name__in={conversation.task for conversation in new}
        ).values_list("name", "pk")
    )
    ids = {conversation.id: uuid.uuid4() for conversation in new}
    now = timezone.now()
    bulk.insert(
        Conversation,
        [
            *("id", "project_id", "annotator_id", "task_id", "system", "seed", "rating", "attack_success"),
            *("comment", "imported_from", "created_at", "ended_at"),
        ],
        (
            (
                *(
                    bulk.uuid_value(ids[conversation.id]),
                    project.pk,
                    annotators[conversation.annotator, False],
                    tasks.get(conversation.task),
                ),
                *(
                    conversation.system,
                    conversation.seed,
                    conversation.rating,
                    conversation.attack_success,
                    conversation.comment,
                ),
                bulk.json_value({"id": conversation.id, "task": conversation.task}),
                _time(conversation.created_at) or bulk.time_value(now),
                _time(conversation.ended_at),
            )
            for conversation in new
        ),
    )
    return known | ids


def _time(timestamp: str) -> Any:
    return bulk.time_value(datetime.fromisoformat(timestamp)) if timestamp else None
