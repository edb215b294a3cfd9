"""Live conversations: begin, say, have the responses generated, end.

The responses of a turn are judged as an assignment, with the operations of labelling.
"""

import uuid
from typing import Any

from django.db.models import QuerySet
from django.http import Http404
from django.shortcuts import get_object_or_404
from rest_framework import serializers

from annotation.api import fields
from annotation.api.base import ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from annotation.choices import Role, TokenScope, TurnState
from annotation.errors import Unavailable
from annotation.models import Conversation, ConversationTask
from annotation.models.conversations import MOST_TURNS
from annotation.selectors import access
from annotation.selectors.conversations import last_turn
from annotation.services.conversations import (
    LONGEST_MESSAGE,
    archive_task,
    end_conversation,
    save_task,
)
from training.api.side_by_side import named_checkpoints
from training.engine import EngineError
from training.forms.comparing import LONGEST_PROMPT
from training.models import ContinuesWith, ConversationSettings
from training.selectors.conversations import settings_of, standing_of, transcript_of
from training.services.conversations import (
    FEWEST_RESPONSES,
    MOST_CHECKPOINTS,
    MOST_RESPONSES,
    begin,
    generate_turn,
    save_conversation_settings,
    say,
    take_up_turn,
    trouble_in_words,
)


class TurnResponseSerializer(serializers.Serializer[Any]):
    """One response to a turn."""

    position = fields.integer()
    text = fields.text("Empty until it is generated.")
    checkpoint = fields.text("Empty for who talks: responses are blind.")
    seed = fields.integer(allow_null=True)
    rank = fields.integer("1 is best.", allow_null=True)
    goes_on = fields.flag("Whether the conversation went on with it.")


class TurnSerializer(serializers.Serializer[Any]):
    """One turn: a message and the responses to it."""

    index = fields.integer()
    message = fields.text()
    responses = TurnResponseSerializer(many=True)
    comparison = fields.integer(allow_null=True)
    verdict = fields.text("Empty without an annotation.")
    strength = fields.integer(allow_null=True)
    edited = fields.text("The annotator's edit with which it went on.")


@fields.of(Conversation, "id annotator task rating attack_success comment created_at ended_at")
class ConversationSerializer(serializers.ModelSerializer[Conversation]):
    """One conversation, without its turns."""

    annotator = fields.text(source="annotator.username")
    task = fields.integer(source="task_id", allow_null=True)


@fields.more("system state assignment turns")
class WholeConversationSerializer(ConversationSerializer):
    """A conversation with its turns and where it stands."""

    system = fields.text()
    state = fields.choice(TurnState.choices, "Of the newest turn; null before the first.", allow_null=True)
    assignment = fields.integer("The assignment with which the newest turn is judged.", allow_null=True)
    turns = TurnSerializer(many=True)

    def to_representation(self, conversation: Conversation) -> dict[str, Any]:
        """Names of models for managers who read another person's conversation alone."""
        is_own = self.context["reader"] == conversation.annotator
        standing = standing_of(conversation)
        if is_own:
            standing = take_up_turn(standing=standing)
        values: dict[str, Any] = ConversationSerializer(conversation).data
        turns = transcript_of(conversation, named=not is_own)
        return {
            **values,
            "system": conversation.system,
            "state": standing.state,
            "assignment": standing.assignment.pk if standing.assignment else None,
            "turns": TurnSerializer(turns, many=True).data,
        }


class BeginSerializer(serializers.Serializer[Any]):
    """The task that a conversation begins with, if any."""

    task = fields.key(allow_null=True, default=None)


class MessageToSaySerializer(serializers.Serializer[Any]):
    """The next message."""

    text = fields.text(most=LONGEST_MESSAGE)


class EndSerializer(serializers.Serializer[Any]):
    """The rating at the end."""

    rating = fields.integer(least=1, most=5, allow_null=True, default=None)
    attack_success = fields.integer(
        "Red teaming: 0 the models refused, to 4 full success.",
        least=0,
        most=4,
        allow_null=True,
        default=None,
    )
    comment = fields.text(most=20_000, default="")


class TalkingView(ProjectView):
    """An operation of conversations. For annotators; managers read those of others."""

    role = Role.ANNOTATOR
    changes = TokenScope.LABEL
    # The same message sent twice is one turn, and the same end one end.
    keeps_answers = False


def _rows(view: TalkingView) -> QuerySet[Conversation]:
    """Return one's own conversations; for managers, all."""
    rows = Conversation.objects.filter(project=view.project, arena_talk__isnull=True)
    if not access.may(view.user, view.project, Role.MANAGER):
        rows = rows.filter(annotator=view.user)
    return rows.select_related("task", "annotator")


def _readable(view: TalkingView, pk: uuid.UUID) -> Conversation:
    conversation = get_object_or_404(_rows(view), pk=pk)
    conversation.project = view.project
    return conversation


def _own(view: TalkingView, pk: uuid.UUID) -> Conversation:
    conversation = _readable(view, pk)
    if conversation.annotator_id != view.user.pk:
        raise Http404
    return conversation


conversations = Resource(
    TalkingView,
    f"{PROJECT}conversations/",
    tag="labelling",
    rows=_rows,
    context=lambda view: {"reader": view.user},
)
conversation = conversations.item("<uuid:pk>/", find=_readable)
own_conversation = conversations.item("<uuid:pk>/", find=_own)

conversations.add_list(
    "conversations_list",
    ConversationSerializer,
    "List conversations, one's own or, for managers, all.",
)
conversation.add_read(
    "conversations_read",
    WholeConversationSerializer,
    "Read a conversation with its turns. A response has no text until it is generated.",
)


@conversations.post(takes=BeginSerializer, returns=WholeConversationSerializer, status=201)
def conversations_begin(view: TalkingView, values: Values) -> Conversation:
    """Begin a conversation, with an opening task or without one."""
    pk = values["task"]
    task = get_object_or_404(view.project.conversation_tasks, pk=pk) if pk is not None else None
    return begin(project=view.project, annotator=view.user, task=task)


@own_conversation.post("messages/", takes=MessageToSaySerializer, returns=WholeConversationSerializer)
def conversations_say(view: TalkingView, conversation: Conversation, values: Values) -> Conversation:
    """Say something. Nothing is generated yet; sent twice it is one turn."""
    say(conversation=conversation, annotator=view.user, text=values["text"])
    return conversation


@own_conversation.post("responses/", returns=WholeConversationSerializer)
def conversations_write(view: TalkingView, conversation: Conversation) -> Conversation:
    """Generate the missing responses and put them to judgment: `assignment` is judged next.

    What is stored already stays, so after a failure only the rest is generated, with the same seeds.
    """
    turn = last_turn(conversation)
    if turn is not None and turn.comparison_id is None:
        try:
            generate_turn(turn=turn)
        except EngineError as error:
            raise Unavailable("model_not_answering", trouble_in_words()) from error
    return conversation


@conversation.post("end/", takes=EndSerializer, returns=WholeConversationSerializer)
def conversations_end(view: TalkingView, conversation: Conversation, values: Values) -> Conversation:
    """End a conversation. A turn that waits for its annotation is given back; the first rating stays."""
    end_conversation(conversation=conversation, actor=view.user, **values)
    return _readable(view, conversation.pk)


# Settings and opening tasks of conversations. For managers; annotators list the tasks.


@fields.of(
    ConversationTask,
    "id name instructions system opening language least_turns harm_category archived_at created_at",
)
class ConversationTaskSerializer(serializers.ModelSerializer[ConversationTask]):
    """An opening task."""


class NewConversationTaskSerializer(serializers.Serializer[Any]):
    """An opening task to be written."""

    name = fields.text(most=120)
    instructions = fields.text("Markdown.", most=20_000, default="")
    system = fields.text(most=LONGEST_PROMPT, default="")
    opening = fields.text("First message; empty where annotators write it.", most=LONGEST_MESSAGE, default="")
    language = fields.text(most=40, default="")
    least_turns = fields.integer(least=1, most=MOST_TURNS, default=1)
    harm_category = fields.text(most=80, default="")


@fields.of(
    ConversationSettings,
    "checkpoints responses continues_with most_turns rates_whole is_open sampling updated_at",
)
class ConversationSettingsSerializer(serializers.ModelSerializer[ConversationSettings]):
    """Settings of annotators' conversations with the project's checkpoints."""

    checkpoints: Any = serializers.SlugRelatedField(slug_field="name", many=True, read_only=True)


class NewConversationSettingsSerializer(serializers.Serializer[Any]):
    """Settings of conversations to be written."""

    checkpoints = fields.several(fields.text(most=100), least=1, most=MOST_CHECKPOINTS)
    responses = fields.integer(least=FEWEST_RESPONSES, most=MOST_RESPONSES, default=2)
    continues_with = fields.choice(ContinuesWith.choices, default=ContinuesWith.CHOSEN)
    most_turns = fields.integer(least=1, most=MOST_TURNS, default=10)
    rates_whole = fields.flag(default=True)
    is_open = fields.flag(default=True)
    temperature = fields.number(least=0, most=2, default=0.7)
    max_tokens = fields.integer(least=1, most=1024, default=256)


settings = Resource(ProjectView, f"{PROJECT}conversation-settings/", tag="projects")
tasks = Resource(ProjectView, f"{PROJECT}conversation-tasks/", tag="projects")
task = tasks.item("<int:pk>/", rows=lambda view: view.project.conversation_tasks.all())


@settings.get(returns=ConversationSettingsSerializer)
def conversation_settings_read(view: ProjectView) -> ConversationSettings:
    """Read the settings of conversations; 404 before they are first written."""
    stored = settings_of(view.project)
    if stored is None:
        raise Http404
    return stored


@settings.put(takes=NewConversationSettingsSerializer, returns=ConversationSettingsSerializer)
def conversation_settings_set(view: ProjectView, values: Values) -> ConversationSettings:
    """Write the settings of conversations. What is not sent becomes the default."""
    values["checkpoints"] = named_checkpoints(view.project, values["checkpoints"])
    return save_conversation_settings(project=view.project, actor=view.user, **values)


@tasks.get_list(ConversationTaskSerializer, role=Role.ANNOTATOR, tag="labelling")
def conversation_tasks_list(view: ProjectView) -> QuerySet[ConversationTask]:
    """List the opening tasks, for managers with the archived ones."""
    tasks = view.project.conversation_tasks.all()
    return tasks if access.may(view.user, view.project, Role.MANAGER) else tasks.filter(archived_at=None)


@tasks.post(takes=NewConversationTaskSerializer, returns=ConversationTaskSerializer, status=201)
def conversation_tasks_add(view: ProjectView, values: Values) -> ConversationTask:
    """Add an opening task."""
    return save_task(project=view.project, actor=view.user, **values)


@task.put(takes=NewConversationTaskSerializer, returns=ConversationTaskSerializer)
def conversation_tasks_set(view: ProjectView, task: ConversationTask, values: Values) -> ConversationTask:
    """Write an opening task. What is not sent becomes empty."""
    return save_task(project=view.project, actor=view.user, task=task, **values)


@task.delete()
def conversation_tasks_archive(view: ProjectView, task: ConversationTask) -> None:
    """Offer an opening task no more. Conversations about it stay."""
    archive_task(task=task, actor=view.user)
