"""Arenas: blind votes on pairs whose answers were written ahead; the models are revealed after the vote."""

import uuid
from typing import Any

from django.http import Http404
from django.shortcuts import get_object_or_404
from rest_framework import exceptions, serializers

from annotation.api import fields
from annotation.api.base import ApiView, ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from annotation.choices import Role, TokenScope
from annotation.models import Completion
from annotation.selectors import access
from training.api.side_by_side import named_checkpoints
from training.models import ArenaBallot, ArenaLink
from training.services.arenas import (
    MOST_CHECKPOINTS,
    MOST_PROMPTS,
    TooFast,
    close_arena,
    create_arena,
    next_ballot,
    vote_in_arena,
)
from training.services.voting import VOTES

_PLACES = ("first", "second")


@fields.of(
    ArenaLink,
    "id arena name checkpoints prompts for_guests is_conversation votes most_votes is_open progress",
    "prepared_at expires_at closed_at created_at",
)
class ArenaSerializer(serializers.ModelSerializer[ArenaLink]):
    """One arena."""

    arena = fields.text("Its part of addresses; whoever has it may vote.", source="slug")
    checkpoints: Any = serializers.SlugRelatedField(slug_field="name", many=True, read_only=True)
    is_open = fields.flag()


class NewArenaSerializer(serializers.Serializer[Any]):
    """An arena to be opened."""

    name = fields.text("Voters read it: say nothing of the models.", most=120)
    checkpoints = fields.several(fields.text(most=100), least=1, most=MOST_CHECKPOINTS)
    prompts = fields.integer("Held-out ones, at most.", least=1, most=MOST_PROMPTS, default=20)
    temperature = fields.number(least=0, most=2, default=0.7)
    max_tokens = fields.integer(least=1, most=1024, default=256)
    for_guests = fields.flag("Whether visitors without an account may vote.", default=False)
    is_conversation = fields.flag(
        "Whether voters write their own messages, on the arena's page; it has no ballots then.", default=False
    )
    most_votes = fields.integer(least=1, most=1_000_000, allow_null=True, default=None)
    expires_at = fields.time(allow_null=True, default=None)


class BallotAnswerSerializer(serializers.Serializer[Any]):
    """One of the two answers. `model` is null until one has voted."""

    place = fields.choice(_PLACES)
    text = fields.text()
    model = fields.text(allow_null=True)


class BallotSerializer(serializers.Serializer[Any]):
    """A pair as it is before a voter: blind until they have voted."""

    id = serializers.UUIDField()
    prompt = fields.several(serializers.DictField(), "Messages.")
    context = fields.several(serializers.DictField(), "Passages.")  # type: ignore[assignment]
    answers = BallotAnswerSerializer(many=True)
    verdict = fields.text("Null until one has voted.", allow_null=True)

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

    vote = fields.choice(list(VOTES), "`first` and `second` are the better one.")


class VotingView(ApiView):
    """An operation of an arena's voters. For members who may label; an outsider gets 404."""

    changes = TokenScope.LABEL


def _link(view: VotingView, arena: str) -> ArenaLink:
    """Return an arena for those who may vote as themselves."""
    if not arena.isascii():
        raise Http404
    link = get_object_or_404(ArenaLink.objects.select_related("project"), slug=arena)
    if not access.may(view.user, link.project, Role.ANNOTATOR):
        raise Http404
    return link


def _ballot(view: VotingView, arena: str, ballot: uuid.UUID) -> ArenaBallot:
    rows = ArenaBallot.objects.select_related("pair__comparison__prompt", "judgment", "voter")
    return get_object_or_404(rows, pk=ballot, pair__arena=_link(view, arena), voter=view.user)


arenas = Resource(
    ProjectView,
    f"{PROJECT}arenas/",
    tag="checkpoints",
    rows=lambda view: view.project.arenas.prefetch_related("checkpoints"),
)
ballots = Resource(VotingView, "arenas/<slug:arena>/ballots/", tag="labelling")
ballot = ballots.item("<uuid:ballot>/", find=_ballot)

arenas.add_list(
    "arenas_list", ArenaSerializer, "List the arenas with how many votes they have, newest first."
)
ballot.add_read("ballots_read", BallotSerializer, "Read a pair; once one has voted, with who wrote what.")


@arenas.post(takes=NewArenaSerializer, returns=ArenaSerializer, status=201)
def arenas_create(view: ProjectView, values: Values) -> ArenaLink:
    """Open an arena. A worker has its answers written; voting begins with the first pair."""
    values["checkpoints"] = named_checkpoints(view.project, values["checkpoints"])
    return create_arena(project=view.project, created_by=view.user, **values)


@arenas.item("<int:pk>/").post("close/", returns=ArenaSerializer)
def arenas_close(view: ProjectView, arena: ArenaLink) -> ArenaLink:
    """End the voting for good. Closing twice is closing once."""
    close_arena(arena=arena, closed_by=view.user)
    arena.refresh_from_db()
    return arena


# Until it is voted on, the same pair comes again by itself.
@ballots.post("next/", returns=NextBallotSerializer, keeps_answers=False)
def ballots_next(view: VotingView, arena: str) -> Values:
    """Get the pair to vote on next, blind. 429 for more than a person can read."""
    try:
        return {"ballot": next_ballot(arena=_link(view, arena), voter=view.user)}
    except TooFast as refusal:
        raise exceptions.Throttled(wait=refusal.seconds) from refusal


@ballot.post("vote/", takes=VoteSerializer, returns=BallotSerializer)
def ballots_vote(view: VotingView, ballot: ArenaBallot, values: Values) -> ArenaBallot:
    """Vote, once; who wrote what is in the answer. A second vote changes nothing."""
    vote_in_arena(ballot=ballot, voter=view.user, vote=VOTES[values["vote"]])
    return _ballot(view, ballot.pair.arena.slug, ballot.pk)
