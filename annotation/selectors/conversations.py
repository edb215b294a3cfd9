"""Conversations: their turns, what each goes on with, and who may go on. Reads only."""

import random
from dataclasses import dataclass

from django.db.models import Count, Q, QuerySet
from django.utils.translation import gettext as _

from annotation.choices import AssignmentState, Purpose, Role, TurnState, Verdict, WhyNothing
from annotation.models import (
    Assignment,
    Completion,
    Conversation,
    ConversationTurn,
    Correction,
    Judgment,
    Project,
    User,
)
from annotation.selectors import access
from annotation.selectors.eligibility import has_to_qualify, left_to_submit, why_nothing

Chat = list[dict[str, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ContinuedResponse:
    """The response with which a conversation goes on, and its text if the annotator edited it."""

    completion: Completion
    edited: str = ""

    @property
    def text(self) -> str:
        """The text that the next message answers."""
        return self.edited or self.completion.text


def last_turn(conversation: Conversation) -> ConversationTurn | None:
    """Return the newest turn with its prompt and comparison."""
    turn = (
        conversation.turns.select_related("prompt", "comparison__prompt", "continued_with")
        .order_by("-index")
        .first()
    )
    if turn is not None:
        turn.conversation = conversation
    return turn


def assignment_of(turn: ConversationTurn) -> Assignment | None:
    """Return the annotator's own assignment of the turn's comparison; None without a live one."""
    return (
        Assignment.objects.filter(
            comparison=turn.comparison_id, annotator=turn.conversation.annotator_id, retest_of__isnull=True
        )
        .exclude(state__in=[AssignmentState.RELEASED, AssignmentState.EXPIRED])
        .select_related("comparison__prompt")
        .first()
    )


def state_of(turn: ConversationTurn, *, assignment: Assignment | None) -> TurnState:
    """Return what the turn waits for. Without a leased assignment there is nothing left to judge.

    In an arena there are no assignments: a turn waits for its vote.
    """
    if turn.comparison is None:
        return TurnState.GENERATING
    if turn.continued_with_id is not None:
        return TurnState.JUDGED
    if turn.comparison.purpose == Purpose.ARENA:
        return TurnState.JUDGED if judgment_on(turn) else TurnState.JUDGING
    if assignment is not None and assignment.state == AssignmentState.LEASED:
        return TurnState.JUDGING
    return TurnState.JUDGED


def judgment_on(turn: ConversationTurn) -> Judgment | None:
    """Return the current judgment of the turn by its annotator."""
    return (
        Judgment.objects.current()
        .filter(
            comparison=turn.comparison_id,
            annotator=turn.conversation.annotator_id,
            assignment__retest_of__isnull=True,
        )
        .first()
    )


def continuation_of(
    turn: ConversationTurn, *, at_random: bool = False, edited: bool = False
) -> ContinuedResponse:
    """Return the response that continues a judged turn: the recorded one, or the one that would now.

    at_random: any response. edited: with the annotator's correction of it, if there is one. Among several
    best responses the conversation's seed decides, so that the answer is the same at every call.
    """
    if turn.continued_with is not None:
        return ContinuedResponse(completion=turn.continued_with, edited=turn.continued_text)
    assert turn.comparison is not None  # noqa: S101 - only of a turn whose responses are all there
    completions = [
        candidate.completion
        for candidate in turn.comparison.candidates.select_related("completion").order_by("index")
    ]
    judgment = judgment_on(turn)
    best = completions
    if judgment is not None and judgment.verdict == Verdict.RANKED and not at_random:
        first = set(judgment.ranks.filter(rank=1).values_list("completion_id", flat=True))
        best = [completion for completion in completions if completion.pk in first] or completions
    chance = random.Random(f"{turn.conversation.seed}:{turn.index}")  # noqa: S311 - no secret hangs on it
    chosen = best[chance.randrange(len(best))]
    correction = (
        Correction.objects.filter(judgment=judgment, completion=chosen).first()
        if edited and judgment is not None
        else None
    )
    return ContinuedResponse(completion=chosen, edited=correction.text if correction else "")


def why_not(project: Project, annotator: User) -> str:
    """Return why this person cannot say anything more now; empty where they can."""
    membership = access.membership_of(annotator, project)
    if not access.allows(annotator, membership, Role.ANNOTATOR):
        return _("You are not an annotator of this project.")
    if project.archived_at is not None:
        return str(WhyNothing.ARCHIVED.label)
    if has_to_qualify(annotator, project, membership):
        return _("Label the qualification items first.")
    if left_to_submit(project, annotator, membership) == 0:
        return str(why_nothing(project, annotator).label)
    return ""


def conversations_of(project: Project, *, annotator: User | None = None) -> QuerySet[Conversation]:
    """Return the conversations of a project, or of one person, newest first.

    Each has `said`, the number of its turns, and `judged`, of those with an annotation.
    """
    rows = Conversation.objects.filter(project=project).select_related("task", "annotator")
    if annotator is not None:
        rows = rows.filter(annotator=annotator)
    # Grouping drops the model's order.
    return rows.annotate(
        turn_count=Count("turns", distinct=True),
        judged=Count("turns", filter=Q(turns__comparison__judgments__isnull=False), distinct=True),
    ).order_by("-created_at")
