"""Conversations: begin one, add a turn, put its responses to judgment, end it.

Knows no model: who answers, and with what, is `training`'s. A turn's responses become an ordinary
comparison, leased to the person who talks; once their lease runs out, anyone may judge it.
"""

from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import AssignmentState, Purpose, Role, Split
from annotation.errors import NotAllowed, Refusal
from annotation.models import (
    Assignment,
    Comparison,
    Completion,
    Conversation,
    ConversationTask,
    ConversationTurn,
    Project,
    User,
)
from annotation.models.conversations import MOST_TURNS
from annotation.selectors import access
from annotation.selectors.conversations import Chat, ContinuedResponse, assignment_of, continuation_of
from annotation.services import audit
from annotation.services.assignments.leases import close, give_back, lease, take_slot
from annotation.services.judgments.submission import voted_comparison
from annotation.services.texts import create_comparison, find_or_add_prompt, finding_in

TAG = "conversation"
"""Of the prompts that conversations add to a project."""
LONGEST_MESSAGE = 20_000


@transaction.atomic
def save_task(
    *, project: Project, actor: User, task: ConversationTask | None = None, **fields: Any
) -> ConversationTask:
    """Write an opening task: a new one, or another version of `task`.

    Conversations keep the task that they began with. Refuses who does not manage the project and a name
    that another task has.
    """
    access.refuse_unless_manager(actor, project, "manager_changes_conversations")
    named = ConversationTask.objects.filter(project=project, name=fields["name"]).first()
    if named is not None and named != task:
        raise Refusal("task_name_in_use", _("Another task has this name. Choose another."), field="name")
    saved = task or ConversationTask(project=project)
    for name, value in fields.items():
        setattr(saved, name, value)
    saved.save()
    audit.record(
        action="conversation.task",
        subject=project,
        actor=actor,
        project=project,
        details={"task": saved.name},
    )
    return saved


@transaction.atomic
def archive_task(*, task: ConversationTask, actor: User) -> None:
    """Offer a task no more. Open conversations about it go on. Refuses who does not manage the project."""
    access.refuse_unless_manager(actor, task.project, "manager_changes_conversations")
    ConversationTask.objects.filter(pk=task.pk, archived_at__isnull=True).update(archived_at=timezone.now())


def begin_conversation(
    *, project: Project, annotator: User, task: ConversationTask | None = None
) -> Conversation:
    """Begin a conversation. Whether this person may is for the caller to decide."""
    if task is not None and (task.project_id != project.pk or task.archived_at is not None):
        raise Refusal("task_not_offered", _("This task is no longer offered. Choose another."), field="task")
    return Conversation.objects.create(
        project=project, annotator=annotator, task=task, system=task.system if task else ""
    )


def add_turn(
    *,
    conversation: Conversation,
    text: str,
    before: ConversationTurn | None,
    continuation: ContinuedResponse | None,
    split: Split | None = None,
) -> ConversationTurn:
    """Add the next message after the turn `before`, which goes on with `continuation`.

    Call it in a transaction that holds the conversation's row. The prompt is the conversation so far; those
    of all turns are of one split, which is drawn unless `split` says it. Refuses an ended conversation, an
    empty message and one that is too long.
    """
    if conversation.ended_at is not None:
        raise Refusal("conversation_over", _("This conversation is over. Begin a new one."), field="text")
    message = text.replace("\x00", "").replace("\r\n", "\n").strip()
    if not message:
        raise Refusal("message_missing", _("Write a message."), field="text")
    if len(message) > LONGEST_MESSAGE:
        raise Refusal(
            "message_too_long",
            _("A message has at most %(most)s characters; this one has %(length)s."),
            field="text",
            most=LONGEST_MESSAGE,
            length=len(message),
        )
    index = before.index + 1 if before else 1
    if index > MOST_TURNS:
        raise Refusal(
            "conversation_too_long",
            _("This conversation is at its longest. End it and begin a new one."),
            field="text",
        )
    chat = chat_before(conversation, before, continuation)
    prompt = find_or_add_prompt(
        project=conversation.project,
        messages=[*chat, {"role": "user", "content": message}],
        tags=[TAG],
        split=before.prompt.split if before else split,
    )
    if before is not None and continuation is not None:
        before.continued_with = continuation.completion
        before.continued_text = continuation.edited
        before.save(update_fields=["continued_with", "continued_text"])
    return ConversationTurn.objects.create(conversation=conversation, index=index, prompt=prompt)


def chat_before(
    conversation: Conversation, before: ConversationTurn | None, continuation: ContinuedResponse | None
) -> Chat:
    """Return the messages before the next one of the annotator."""
    if before is None or continuation is None:
        return [{"role": "system", "content": conversation.system}] if conversation.system else []
    return [*before.prompt.messages, {"role": "assistant", "content": continuation.text}]


def put_to_judgment(
    *, turn: ConversationTurn, completions: Sequence[Completion], round_number: int, purpose: Purpose
) -> Assignment | None:
    """Put a turn's responses, in the order in which they are shown, before the person who talks.

    Call it in a transaction that holds the conversation's row. For work this is an ordinary comparison of
    the project's overlap, one place of which is leased at once; of an arena it has no place. None where
    nothing is to be judged by assignment: in an arena, and where a response names its model, which
    quarantines the comparison; the conversation then goes on with a random response.
    """
    if purpose == Purpose.WORK:
        turn.comparison = create_comparison(
            prompt=turn.prompt, completions=completions, round_number=round_number
        )
        turn.save(update_fields=["comparison"])
        return _leased(turn, turn.comparison, [completion.pk for completion in completions])
    turn.comparison = voted_comparison(
        prompt=turn.prompt, completions=completions, round_number=round_number, purpose=purpose
    )
    turn.save(update_fields=["comparison"])
    if finding_in(prompt=turn.prompt, completions=completions) is not None:
        turn.continued_with = continuation_of(turn, at_random=True).completion
        turn.save(update_fields=["continued_with"])
    return None


def take_up(*, turn: ConversationTurn, shown: Sequence[int]) -> Assignment | None:
    """Return the turn's assignment, leased again where its lease ran out and a place is free.

    shown: completion ids in the order in which the turn shows them.
    """
    held = assignment_of(turn)
    if held is not None or turn.comparison is None:
        return held
    with transaction.atomic():
        # Two tabs of one person wait here for each other.
        Conversation.objects.select_for_update(no_key=True).get(pk=turn.conversation_id)
        return assignment_of(turn) or _leased(turn, turn.comparison, shown)


def _leased(turn: ConversationTurn, comparison: Comparison, shown: Sequence[int]) -> Assignment | None:
    slot = take_slot(Comparison.objects.get(pk=comparison.pk))
    if slot is None:
        return None
    comparison.project = turn.conversation.project
    return lease(comparison, turn.conversation.annotator, slot=slot, display_order=shown)


@transaction.atomic
def end_conversation(
    *,
    conversation: Conversation,
    actor: User,
    rating: int | None = None,
    attack_success: int | None = None,
    comment: str = "",
) -> Conversation:
    """End a conversation. Ending twice is ending once; the first rating stays.

    A turn that waits for its judgment is given back: others may get it from the queue. Refuses who neither
    talks in it nor manages the project, and its annotator before the task's least number of turns.
    """
    locked = Conversation.objects.select_for_update(no_key=True).get(pk=conversation.pk)
    locked.project, locked.task = conversation.project, conversation.task
    is_annotator = locked.annotator_id == actor.pk
    if not is_annotator and not access.may(actor, locked.project, Role.MANAGER):
        raise NotAllowed(
            "conversation_not_yours_to_end", _("Only who talks in it and managers end a conversation.")
        )
    if locked.ended_at is not None:
        return locked
    least = locked.task.least_turns if locked.task else 1
    if is_annotator and locked.turns.filter(comparison__isnull=False).count() < least:
        raise Refusal(
            "too_few_turns",
            _("This task asks for at least %(least)s turns. Go on, or leave it open."),
            least=least,
        )
    if rating is not None and not 1 <= rating <= 5:
        raise Refusal("invalid_conversation_rating", _("Rate from 1 to 5."), field="rating")
    if attack_success is not None and not 0 <= attack_success <= 4:
        raise Refusal("invalid_attack_success", _("Rate the success from 0 to 4."), field="attack_success")
    locked.ended_at = timezone.now()
    locked.rating, locked.attack_success, locked.comment = rating, attack_success, comment.strip()[:20_000]
    locked.save(update_fields=["ended_at", "rating", "attack_success", "comment"])
    for assignment in Assignment.objects.filter(
        comparison__turns__conversation=locked, annotator=locked.annotator_id, state=AssignmentState.LEASED
    ):
        _give_back(assignment)
    return locked


def _give_back(assignment: Assignment) -> None:
    if close(assignment.pk, AssignmentState.RELEASED, timezone.now()):
        give_back([assignment])
