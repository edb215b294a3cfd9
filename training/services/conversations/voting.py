"""Votes on the turns of an arena in which visitors write their own messages."""

import uuid

from django.db import transaction
from django.db.models import F
from django.utils.translation import gettext as _

from annotation.choices import TurnState
from annotation.errors import NotAllowed, Refusal
from annotation.models import Conversation, Judgment, User
from annotation.record.judgment import JudgmentRecord
from annotation.services.judgments.votes import record_vote
from training.models import ArenaLink
from training.selectors.conversations import completions_shown, standing_of


@transaction.atomic
def vote_on_turn(
    *, conversation: Conversation, voter: User, answer: JudgmentRecord, idempotency_key: uuid.UUID
) -> None:
    """Store the vote on the newest turn of an arena's conversation. Sent twice it is one.

    Refuses another person's conversation, a turn that waits for no vote, and an arena that is over.
    """
    if conversation.annotator_id != voter.pk:
        raise NotAllowed("conversation_of_another", _("This is someone else's conversation."))
    arena = ArenaLink.objects.select_for_update().get(talks__conversation=conversation)
    if Judgment.objects.filter(idempotency_key=idempotency_key, annotator=voter).exists():
        return
    standing = standing_of(conversation)
    turn = standing.turn
    if turn is None or turn.comparison is None or standing.state != TurnState.JUDGING:
        raise Refusal("nothing_to_vote_on", _("Nothing waits for your vote here. Write the next message."))
    if not arena.is_open:
        raise Refusal("arena_over", _("This arena is over: votes are no longer taken."))
    record_vote(
        comparison=turn.comparison,
        voter=voter,
        shown=[completion.pk for completion in completions_shown(turn)],
        answer=answer,
        idempotency_key=idempotency_key,
    )
    ArenaLink.objects.filter(pk=arena.pk).update(votes=F("votes") + 1)
