"""Arenas: blind votes on pairs whose answers were written ahead; who wrote what is told after the vote."""

import uuid
from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet
from django.http import Http404
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import exceptions, serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.base import ApiView, ListView, ProjectView, read_body
from annotation.choices import Role, TokenScope
from annotation.models import Completion
from annotation.selectors import access
from training.api.side_by_side_parts import named_checkpoints
from training.models import ArenaBallot, ArenaLink
from training.services.comparing.arena import (
    MOST_CHECKPOINTS,
    MOST_PROMPTS,
    TooFast,
    close_arena,
    create_arena,
    next_ballot,
    vote_in_arena,
)
from training.services.comparing.voting import VOTES

_PLACES = ("first", "second")


class ArenaSerializer(serializers.ModelSerializer[ArenaLink]):
    """One arena."""

    arena = serializers.CharField(source="slug", help_text="Its part of addresses; whoever has it may vote.")
    checkpoints: Any = serializers.SlugRelatedField(slug_field="name", many=True, read_only=True)
    is_open = serializers.BooleanField()

    class Meta:
        model = ArenaLink
        fields = (
            *("id", "arena", "name", "checkpoints", "prompts", "for_guests"),
            *("is_conversation", "votes", "most_votes"),
            *("is_open", "progress", "prepared_at", "expires_at", "closed_at", "created_at"),
        )


class NewArenaSerializer(serializers.Serializer[Any]):
    """An arena to be opened."""

    name = serializers.CharField(max_length=120, help_text="Voters read it: say nothing of the models.")
    checkpoints = serializers.ListField(
        child=serializers.CharField(max_length=100), min_length=1, max_length=MOST_CHECKPOINTS
    )
    prompts = serializers.IntegerField(
        min_value=1, max_value=MOST_PROMPTS, required=False, default=20, help_text="Held-out ones, at most."
    )
    temperature = serializers.FloatField(min_value=0, max_value=2, required=False, default=0.7)
    max_tokens = serializers.IntegerField(min_value=1, max_value=1024, required=False, default=256)
    for_guests = serializers.BooleanField(
        required=False, default=False, help_text="Whether visitors without an account may vote."
    )
    is_conversation = serializers.BooleanField(
        required=False,
        default=False,
        help_text="Whether voters write their own messages, on the arena's page; it has no ballots then.",
    )
    most_votes = serializers.IntegerField(
        min_value=1, max_value=1_000_000, required=False, allow_null=True, default=None
    )
    expires_at = serializers.DateTimeField(required=False, allow_null=True, default=None)


class BallotAnswerSerializer(serializers.Serializer[Any]):
    """One of the two answers. `model` is null until one has voted."""

    place = serializers.ChoiceField(choices=_PLACES)
    text = serializers.CharField()
    model = serializers.CharField(allow_null=True)


class BallotSerializer(serializers.Serializer[Any]):
    """A pair as it is before a voter: blind until they have voted."""

    id = serializers.UUIDField()
    prompt = serializers.ListField(child=serializers.DictField(), help_text="Messages.")
    context = serializers.ListField(  # type: ignore[assignment]
        child=serializers.DictField(), help_text="Passages."
    )
    answers = BallotAnswerSerializer(many=True)
    verdict = serializers.CharField(allow_null=True, help_text="Null until one has voted.")

    def to_representation(self, ballot: ArenaBallot) -> dict[str, Any]:
        """Without a word of who wrote what before the vote."""
        written = Completion.objects.select_related("source").in_bulk(ballot.display_order)
        prompt = ballot.pair.comparison.prompt
        judgment = ballot.judgment
        answers = [
            {
                "place": place,
                "text": written[pk].text,
                "model": written[pk].source.name if judgment is not None else None,
            }
            for place, pk in zip(_PLACES, ballot.display_order, strict=True)
        ]
        return {
            "id": str(ballot.pk),
            "prompt": prompt.messages,
            "context": prompt.context,
            "answers": answers,
            "verdict": judgment.verdict if judgment is not None else None,
        }


class NextBallotSerializer(serializers.Serializer[Any]):
    """The pair to vote on next."""

    ballot = BallotSerializer(allow_null=True, help_text="Null when one has seen all, or the arena is over.")


class VoteSerializer(serializers.Serializer[Any]):
    """A vote."""

    vote = serializers.ChoiceField(choices=list(VOTES), help_text="`first` and `second` are the better one.")


class ArenasView(ListView, ProjectView):
    """The arenas of a project. For managers."""

    serializer_class = ArenaSerializer
    queryset = ArenaLink.objects.none()

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        """All of them."""
        return self.project.arenas.prefetch_related("checkpoints")

    @extend_schema(operation_id="arenas_list", tags=["checkpoints"], responses=ArenaSerializer(many=True))
    def get(self, request: Request, slug: str) -> Response:
        """List the arenas with how many votes they have, newest first."""
        return self.listed()

    @extend_schema(
        operation_id="arenas_create",
        tags=["checkpoints"],
        request=NewArenaSerializer,
        responses={201: ArenaSerializer},
    )
    def post(self, request: Request, slug: str) -> Response:
        """Open an arena. A worker has its answers written; voting begins with the first pair."""
        values = read_body(NewArenaSerializer, request)
        values["checkpoints"] = named_checkpoints(self.project, values["checkpoints"])
        made = create_arena(project=self.project, created_by=self.user, **values)
        return Response(ArenaSerializer(made).data, status=201)


class CloseView(ProjectView):
    """An arena that is ended. For managers."""

    @extend_schema(
        operation_id="arenas_close", tags=["checkpoints"], request=None, responses={200: ArenaSerializer}
    )
    def post(self, request: Request, slug: str, pk: int) -> Response:
        """End the voting for good. Closing twice is closing once."""
        arena = get_object_or_404(self.project.arenas, pk=pk)
        close_arena(arena=arena, closed_by=self.user)
        arena.refresh_from_db()
        return Response(ArenaSerializer(arena).data)


class VotingView(ApiView):
    """Something of the arena in the address. For members who may label; an outsider gets 404."""

    changes = TokenScope.LABEL

    def link(self, arena: str) -> ArenaLink:
        """The arena in the address, for those who may vote as themselves."""
        if not arena.isascii():
            raise Http404
        link = get_object_or_404(ArenaLink.objects.select_related("project"), slug=arena)
        if not access.may(self.user, link.project, Role.ANNOTATOR):
            raise Http404
        return link

    def ballot(self, arena: str, ballot: uuid.UUID) -> ArenaBallot:
        """One's own ballot in the address."""
        rows = ArenaBallot.objects.select_related("pair__comparison__prompt", "judgment", "voter")
        return get_object_or_404(rows, pk=ballot, pair__arena=self.link(arena), voter=self.user)


class NextBallotView(VotingView):
    """The pair to vote on next. For members."""

    # Until it is voted on, the same pair comes again by itself.
    keeps_answers = False

    @extend_schema(
        operation_id="ballots_next", tags=["labelling"], request=None, responses=NextBallotSerializer
    )
    def post(self, request: Request, arena: str) -> Response:
        """Get the pair to vote on next, blind. 429 for more than a person can read."""
        try:
            ballot = next_ballot(arena=self.link(arena), voter=self.user)
        except TooFast as refusal:
            raise exceptions.Throttled(wait=refusal.seconds) from refusal
        return Response({"ballot": BallotSerializer(ballot).data if ballot else None})


class BallotView(VotingView):
    """A pair that one was given. For who was given it."""

    @extend_schema(operation_id="ballots_read", tags=["labelling"], responses=BallotSerializer)
    def get(self, request: Request, arena: str, ballot: uuid.UUID) -> Response:
        """Read a pair; once one has voted, with who wrote what."""
        return Response(BallotSerializer(self.ballot(arena, ballot)).data)


class VoteView(VotingView):
    """A vote on a pair. For who was given it."""

    @extend_schema(
        operation_id="ballots_vote", tags=["labelling"], request=VoteSerializer, responses=BallotSerializer
    )
    def post(self, request: Request, arena: str, ballot: uuid.UUID) -> Response:
        """Vote, once; who wrote what is in the answer. A second vote changes nothing."""
        record = self.ballot(arena, ballot)
        choice = read_body(VoteSerializer, request)["vote"]
        vote_in_arena(ballot=record, voter=self.user, vote=VOTES[choice])
        return Response(BallotSerializer(self.ballot(arena, ballot)).data)
