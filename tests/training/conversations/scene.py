"""A project whose annotators talk with checkpoints of a model server that answers at once."""

import uuid
from collections.abc import Sequence

from annotation.models import Assignment, Conversation, ConversationTurn, Project, User
from annotation.services.judgments.submission import submit_judgment
from tests.records import judgment_record
from tests.training.comparing.arena_scene import make_checkpoints
from training.models import ConversationSettings, TurnResponse
from training.selectors.conversations import standing_of
from training.services.conversations import generate_turn, save_conversation_settings, say


def open_conversations(
    project: Project, manager: User, *, names: Sequence[str] = ("north", "south"), **options: object
) -> ConversationSettings:
    """Let the annotators of a project talk with checkpoints of these names."""
    return save_conversation_settings(
        project=project,
        actor=manager,
        checkpoints=make_checkpoints(project, names),
        **options,  # type: ignore[arg-type]
    )


def talk(conversation: Conversation, text: str) -> ConversationTurn:
    """Say something, and have the responses generated."""
    turn = say(conversation=conversation, annotator=conversation.annotator, text=text)
    generate_turn(turn=turn)
    turn.refresh_from_db()
    return turn


def judge_turn(conversation: Conversation, *, best: int = 1, verdict: str = "ranked") -> Assignment:
    """Submit the newest turn's comparison: the response at position `best` is preferred."""
    assignment = standing_of(conversation).assignment
    assert assignment is not None
    judge(assignment, best=best, verdict=verdict)
    return assignment


def judge(assignment: Assignment, *, best: int = 1, verdict: str = "ranked") -> None:
    """Submit an assignment, or submit it again."""
    order = assignment.display_order
    ranks = {pk: 1 if place == best else 2 for place, pk in enumerate(order, start=1)}
    submit_judgment(
        assignment=assignment,
        annotator=assignment.annotator,
        answer=judgment_record(verdict=verdict, ranks=ranks if verdict == "ranked" else {}),
        idempotency_key=uuid.uuid4(),
    )


def text_at(turn: ConversationTurn, position: int) -> str:
    """The response at a position of a turn."""
    return TurnResponse.objects.get(turn=turn, position=position).text
