"""The labelling screen inside a conversation or a review: where it belongs, and what follows it."""

import uuid
from dataclasses import dataclass

from django.urls import reverse

from annotation.models import Assignment, ConversationTask, ConversationTurn
from annotation.selectors.reviews import ReviewPage
from annotation.views.access import Request


@dataclass(frozen=True, kw_only=True, slots=True)
class LabellingPlace:
    """The turn that a labelling screen judges or the review that it decides, and addresses of its page."""

    turn: ConversationTurn | None = None
    review: ReviewPage | None = None
    address: str
    """Of the conversation, which follows the submission, or of the review."""
    submit: str
    kept: bool = True
    """True if there are drafts and a lease to renew; False in an arena and in a review."""

    @property
    def task(self) -> ConversationTask | None:
        """The opening task, shown beside the conversation."""
        return self.turn.conversation.task if self.turn else None


def place_of(turn: ConversationTurn, assignment: Assignment) -> LabellingPlace:
    """Return the place of a member's turn."""
    conversation = turn.conversation
    return LabellingPlace(
        turn=turn,
        address=conversation.get_absolute_url(),
        submit=reverse("submit", args=[conversation.project.slug, assignment.pk]),
    )


def place_in(request: Request, assignment: Assignment) -> LabellingPlace | None:
    """Return the place in the conversation that the request names; None outside of one.

    Of another person's conversation, or one without this comparison, it is None as well.
    """
    named = request.POST.get("conversation") or request.GET.get("conversation")
    try:
        pk = uuid.UUID(named or "")
    except ValueError:
        return None
    turn = (
        ConversationTurn.objects.select_related("conversation__task")
        .filter(conversation=pk, conversation__annotator=request.user, comparison=assignment.comparison_id)
        .first()
    )
    if turn is None:
        return None
    turn.conversation.project = assignment.comparison.project
    return place_of(turn, assignment)
