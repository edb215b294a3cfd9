"""Quality of checkpoints: the leaderboard, and drift against people."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from django.db.models import QuerySet
from django.http import Http404
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from annotation.api import fields
from annotation.api.base import Filters, OldestFirst, ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from annotation.models import Judgment
from training.choices import CheckpointKind
from training.contract.checkpoint import CHECKPOINT_NAME
from training.models import DriftFigure, DriftMeasurement, Slice, Voters
from training.selectors.drift import Item, items_behind, items_of, matrix_of
from training.selectors.leaderboard import EVERYONE, HUMANS, BoardChoice, board_of, names_of
from training.services.drift import request_measurement

# Quality of checkpoints: the leaderboard, drift against people, and AI annotators.


class StandingSerializer(serializers.Serializer[Any]):
    """One line of the leaderboard."""

    name = fields.text()
    checkpoint = fields.text("Empty for what is no checkpoint.")
    rated = fields.flag(
        "False with too few votes: the interval is wider than 400 points. Such lines come last."
    )
    rank = fields.integer("Null with too few votes.", allow_null=True)
    rating = fields.number(
        "Points of Elo about 1000, by the Bradley-Terry model; null with too few votes.", allow_null=True
    )
    low = fields.number()
    high = fields.number()
    votes = fields.integer()
    win_rate = fields.number()
    elo = fields.number("Vote by vote, in their order.", allow_null=True)
    p_next = fields.number("Of no difference from the next one (Holm).", allow_null=True)


class BoardSerializer(serializers.Serializer[Any]):
    """The leaderboard, best first."""

    votes = fields.integer()
    ties = fields.integer()
    both_bad = fields.integer()
    standings = StandingSerializer(many=True)


class BoardFilters(Filters):
    """Which votes count."""

    round = fields.integer(required=False, least=1, most=fields.LARGEST_INTEGER)
    tag = fields.text(required=False, most=200)
    voters = fields.choice(["people", "all", *Voters.values], default="people")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """One part at a time."""
        if attrs.get("round") and attrs.get("tag"):
            raise serializers.ValidationError({"tag": [_("Choose a round or a tag.")]})
        return attrs


@fields.of(DriftFigure, "round pairs agreeing share low high measured_at")
class DriftCellSerializer(serializers.ModelSerializer[DriftFigure]):
    """One reward model against the judgments of one round."""

    round = fields.integer(source="round_number")
    share = fields.number("Of pairs that it orders as people do.", allow_null=True)


class DriftRowSerializer(serializers.Serializer[Any]):
    """One reward model against every round."""

    checkpoint = fields.text()
    trained_in_round = fields.integer(allow_null=True)
    cells = DriftCellSerializer(many=True)


@fields.of(DriftMeasurement, "id state current total message error created_at finished_at")
class MeasurementSerializer(serializers.ModelSerializer[DriftMeasurement]):
    """A measurement that a worker does."""


class ScoredAnswerSerializer(serializers.Serializer[Any]):
    """An answer with its rank and its score."""

    completion = fields.integer()
    rank = fields.integer("By people; 1 is best. Null where they left it without an order.", allow_null=True)
    score = fields.number("By the reward model; null: not measured.", allow_null=True)


class DriftItemSerializer(serializers.Serializer[Any]):
    """One judgment beside what a reward model says."""

    judgment = fields.integer(source="judgment.pk")
    comparison = fields.integer(source="judgment.comparison_id")
    prompt = fields.integer(source="judgment.comparison.prompt_id")
    answers = fields.computed("Best rank first.")
    agreeing = fields.integer("Pairs that both order alike.")
    pairs = fields.integer("Pairs that people decided and the model scored.")

    @extend_schema_field(ScoredAnswerSerializer(many=True))
    def get_answers(self, item: Item) -> list[dict[str, Any]]:
        """As the page shows them."""
        return [
            {"completion": completion.pk, "rank": rank, "score": score}
            for completion, rank, score in item.answers
        ]


leaderboard = Resource(ProjectView, f"{PROJECT}leaderboard/", tag="checkpoints")
drift = Resource(ProjectView, f"{PROJECT}drift/", tag="checkpoints")


@leaderboard.get(filters=BoardFilters, returns=BoardSerializer)
def leaderboard_read(view: ProjectView, query: Values) -> Values:
    """Read ratings with intervals, of all votes or of those of a round or a tag."""
    board = board_of(view.project, _choice(query))
    names = names_of({standing.source for standing in board.standings})
    standings = [
        {
            "name": names[standing.source][0],
            "checkpoint": names[standing.source][1],
            **{
                part: getattr(standing, part)
                for part in ("rank", "low", "high", "votes", "win_rate", "elo", "p_next")
            },
            "rated": standing.is_rated,
            "rating": standing.rating if standing.is_rated else None,
        }
        for standing in board.standings
    ]
    return {"votes": board.votes, "ties": board.ties, "both_bad": board.both_bad, "standings": standings}


@drift.get(returns=[DriftRowSerializer])
def drift_read(view: ProjectView) -> list[Values]:
    """Read every reward model against the judgments of every round, as it was last measured."""
    return [
        {
            "checkpoint": row.checkpoint.name,
            "trained_in_round": row.round_number,
            "cells": [cell for cell in row.cells if cell is not None],
        }
        for row in matrix_of(view.project).rows
    ]


@drift.post(returns=MeasurementSerializer, status=202)
def drift_measure(view: ProjectView) -> DriftMeasurement:
    """Have drift measured anew. A worker does it; 422 while one goes on."""
    return request_measurement(project=view.project, requested_by=view.user)


@drift.get_list(DriftItemSerializer, "<str:name>/rounds/<int:number>/", pages=OldestFirst, model=Judgment)
def drift_items(view: ProjectView, name: str, number: int) -> tuple[QuerySet[Judgment], Any]:
    """List what people preferred in a round beside the scores of a reward model that did not learn it."""
    if not CHECKPOINT_NAME.fullmatch(name):
        raise Http404
    rewards = view.project.checkpoints.filter(kind=CheckpointKind.REWARD)
    model = get_object_or_404(rewards.select_related("run__snapshot", "project"), name=name)
    return items_behind(model, number), partial(items_of, model)


def _choice(query: Mapping[str, Any]) -> BoardChoice:
    voters = {"people": HUMANS, "all": EVERYONE}.get(query["voters"]) or frozenset([query["voters"]])
    if query.get("round"):
        return BoardChoice(part=Slice.ROUND, value=str(query["round"]), voters=voters)
    if query.get("tag"):
        return BoardChoice(part=Slice.TAG, value=query["tag"], voters=voters)
    return BoardChoice(voters=voters)
