"""Live conversations: begin, say, have the responses generated, end.

The responses of a turn are judged as an assignment, with the operations of labelling.
"""

import uuid
from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet
from django.http import Http404
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.base import ListView, ProjectView, read_body
from annotation.choices import Role, TokenScope, TurnState
from annotation.errors import Unavailable
from annotation.models import Conversation
from annotation.selectors import access
from annotation.selectors.conversations import last_turn
from annotation.services.conversations import (
    LONGEST_MESSAGE,
    end_conversation,
)
from training.engine import EngineError
from training.selectors.conversation_transcripts import transcript_of
from training.selectors.conversations import standing_of
from training.services.conversations import (
    begin,
    generate_turn,
    say,
    take_up_turn,
)
from training.views.conversations.talking import trouble_in_words

_LARGEST_ID = 2**63 - 1


class TurnResponseSerializer(serializers.Serializer[Any]):
    """One response to a turn."""

    position = serializers.IntegerField()
    text = serializers.CharField(help_text="Empty until it is generated.")
    checkpoint = serializers.CharField(help_text="Empty for who talks: responses are blind.")
    seed = serializers.IntegerField(allow_null=True)
    rank = serializers.IntegerField(allow_null=True, help_text="1 is best.")
    goes_on = serializers.BooleanField(help_text="Whether the conversation went on with it.")


class TurnSerializer(serializers.Serializer[Any]):
    """One turn: a message and the responses to it."""

    index = serializers.IntegerField()
    message = serializers.CharField()
    responses = TurnResponseSerializer(many=True)
    comparison = serializers.IntegerField(allow_null=True)
    verdict = serializers.CharField(help_text="Empty without an annotation.")
    strength = serializers.IntegerField(allow_null=True)
    edited = serializers.CharField(help_text="The annotator's edit with which it went on.")


class ConversationSerializer(serializers.ModelSerializer[Conversation]):
    """One conversation, without its turns."""

    annotator = serializers.CharField(source="annotator.username")
    task = serializers.IntegerField(source="task_id", allow_null=True)

    class Meta:
        model = Conversation
        fields: tuple[str, ...] = (
            *("id", "annotator", "task", "rating", "attack_success", "comment"),
            *("created_at", "ended_at"),
        )


class WholeConversationSerializer(ConversationSerializer):
    """A conversation with its turns and where it stands."""

    system = serializers.CharField()
    state = serializers.ChoiceField(
        choices=TurnState.choices, allow_null=True, help_text="Of the newest turn; null before the first."
    )
    assignment = serializers.IntegerField(
        allow_null=True, help_text="The assignment with which the newest turn is judged."
    )
    turns = TurnSerializer(many=True)

    class Meta(ConversationSerializer.Meta):
        fields = (*ConversationSerializer.Meta.fields, "system", "state", "assignment", "turns")

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

    task = serializers.IntegerField(
        min_value=1, max_value=_LARGEST_ID, required=False, allow_null=True, default=None
    )


class MessageToSaySerializer(serializers.Serializer[Any]):
    """The next message."""

    text = serializers.CharField(max_length=LONGEST_MESSAGE)


class EndSerializer(serializers.Serializer[Any]):
    """The rating at the end."""

    rating = serializers.IntegerField(min_value=1, max_value=5, required=False, allow_null=True, default=None)
    attack_success = serializers.IntegerField(
        min_value=0,
        max_value=4,
        required=False,
        allow_null=True,
        default=None,
        help_text="Red teaming: 0 the models refused, to 4 full success.",
    )
    comment = serializers.CharField(max_length=20_000, required=False, allow_blank=True, default="")


class TalkingView(ProjectView):
    """Something about conversations. For annotators; managers read those of others."""

    role = Role.ANNOTATOR
    changes = TokenScope.LABEL
    # The same message sent twice is one turn, and the same end one end.
    keeps_answers = False

    def conversation(self, pk: uuid.UUID) -> Conversation:
        """Return the conversation in the address, one's own or, for managers, any."""
        rows = Conversation.objects.select_related("task", "annotator").filter(
            project=self.project, arena_talk__isnull=True
        )
        conversation = get_object_or_404(rows, pk=pk)
        if conversation.annotator_id != self.user.pk and not access.may(
            self.user, self.project, Role.MANAGER
        ):
            raise Http404
        conversation.project = self.project
        return conversation

    def get_conversation(self, pk: uuid.UUID) -> Conversation:
        """Return one's own conversation in the address."""
        conversation = self.conversation(pk)
        if conversation.annotator_id != self.user.pk:
            raise Http404
        return conversation

    def whole(self, conversation: Conversation, *, status: int = 200) -> Response:
        """Return a conversation with its turns."""
        context = {"reader": self.user}
        return Response(WholeConversationSerializer(conversation, context=context).data, status=status)


class ConversationsView(ListView, TalkingView):
    """Conversations of a project. For annotators their own, for managers all."""

    serializer_class = ConversationSerializer
    queryset = Conversation.objects.none()

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        """Those that this person may read."""
        rows = Conversation.objects.filter(project=self.project, arena_talk__isnull=True)
        if not access.may(self.user, self.project, Role.MANAGER):
            rows = rows.filter(annotator=self.user)
        return rows.select_related("annotator")

    @extend_schema(
        operation_id="conversations_list", tags=["labelling"], responses=ConversationSerializer(many=True)
    )
    def get(self, request: Request, slug: str) -> Response:
        """List conversations, one's own or, for managers, all."""
        return self.listed()

    @extend_schema(
        operation_id="conversations_begin",
        tags=["labelling"],
        request=BeginSerializer,
        responses={201: WholeConversationSerializer},
    )
    def post(self, request: Request, slug: str) -> Response:
        """Begin a conversation, with an opening task or without one."""
        pk = read_body(BeginSerializer, request)["task"]
        task = get_object_or_404(self.project.conversation_tasks, pk=pk) if pk is not None else None
        return self.whole(begin(project=self.project, annotator=self.user, task=task), status=201)


class ConversationView(TalkingView):
    """One conversation. For the annotator who talks; managers read it."""

    @extend_schema(
        operation_id="conversations_read", tags=["labelling"], responses=WholeConversationSerializer
    )
    def get(self, request: Request, slug: str, pk: uuid.UUID) -> Response:
        """Read a conversation with its turns. A response has no text until it is generated."""
        return self.whole(self.conversation(pk))


class MessagesView(TalkingView):
    """The next message of a conversation. For the annotator who talks."""

    @extend_schema(
        operation_id="conversations_say",
        tags=["labelling"],
        request=MessageToSaySerializer,
        responses=WholeConversationSerializer,
    )
    def post(self, request: Request, slug: str, pk: uuid.UUID) -> Response:
        """Say something. Nothing is generated yet; sent twice it is one turn."""
        conversation = self.get_conversation(pk)
        say(
            conversation=conversation,
            annotator=self.user,
            text=read_body(MessageToSaySerializer, request)["text"],
        )
        return self.whole(conversation)


class ResponsesView(TalkingView):
    """The responses to the newest message. For the annotator who talks."""

    @extend_schema(
        operation_id="conversations_write",
        tags=["labelling"],
        request=None,
        responses=WholeConversationSerializer,
    )
    def post(self, request: Request, slug: str, pk: uuid.UUID) -> Response:
        """Generate the missing responses and put them to judgment: `assignment` is judged next.

        What is stored already stays, so after a failure only the rest is generated, with the same seeds.
        """
        conversation = self.get_conversation(pk)
        turn = last_turn(conversation)
        if turn is not None and turn.comparison_id is None:
            try:
                generate_turn(turn=turn)
            except EngineError as error:
                raise Unavailable("model_not_answering", trouble_in_words()) from error
        return self.whole(conversation)


class EndView(TalkingView):
    """The end of a conversation. For the annotator who talks, and for managers."""

    @extend_schema(
        operation_id="conversations_end",
        tags=["labelling"],
        request=EndSerializer,
        responses=WholeConversationSerializer,
    )
    def post(self, request: Request, slug: str, pk: uuid.UUID) -> Response:
        """End a conversation. A turn that waits for its annotation is given back; the first rating stays."""
        conversation = self.conversation(pk)
        end_conversation(conversation=conversation, actor=self.user, **read_body(EndSerializer, request))
        return self.whole(self.conversation(pk))
