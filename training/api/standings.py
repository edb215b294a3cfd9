"""Quality of checkpoints: the leaderboard, drift against people, and AI annotators."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from django.db.models import QuerySet
from django.http import Http404
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from annotation.api.base import Filters, OldestFirst, ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from annotation.models import Judgment
from annotation.selectors.rubrics import published_versions
from training.choices import CheckpointKind
from training.contract import CHECKPOINT_NAME
from training.models import DriftFigure, DriftMeasurement, Judge, Slice, Voters
from training.selectors.drift import Item, items_behind, items_of, matrix_of
from training.selectors.leaderboard import EVERYONE, HUMANS, Choice, board_of, names_of
from training.selectors.projects import checkpoints_for
from training.services.evaluation.drift import request_measurement
from training.services.judges.judges import create_judge, set_judge


class StandingSerializer(serializers.Serializer[Any]):
    """One line of the leaderboard."""

    name = serializers.CharField()
    checkpoint = serializers.CharField(help_text="Empty for what is no checkpoint.")
    rated = serializers.BooleanField(
        help_text="False with too few votes: the interval is wider than 400 points. Such lines come last."
    )
    rank = serializers.IntegerField(allow_null=True, help_text="Null with too few votes.")
    rating = serializers.FloatField(
        allow_null=True,
        help_text="Points of Elo about 1000, by the Bradley-Terry model; null with too few votes.",
    )
    low = serializers.FloatField()
    high = serializers.FloatField()
    votes = serializers.IntegerField()
    win_rate = serializers.FloatField()
    elo = serializers.FloatField(allow_null=True, help_text="Vote by vote, in their order.")
    p_next = serializers.FloatField(allow_null=True, help_text="Of no difference from the next one (Holm).")


class BoardSerializer(serializers.Serializer[Any]):
    """The leaderboard, best first."""

    votes = serializers.IntegerField()
    ties = serializers.IntegerField()
    both_bad = serializers.IntegerField()
    standings = StandingSerializer(many=True)


class BoardFilters(Filters):
    """Which votes count."""

    round = serializers.IntegerField(required=False, min_value=1, max_value=2**31 - 1)
    tag = serializers.CharField(required=False, max_length=200)
    voters = serializers.ChoiceField(
        choices=["people", "all", *Voters.values], required=False, default="people"
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """One part at a time."""
        if attrs.get("round") and attrs.get("tag"):
            raise serializers.ValidationError({"tag": [_("Choose a round or a tag.")]})
        return attrs


class DriftCellSerializer(serializers.ModelSerializer[DriftFigure]):
    """One reward model against the judgments of one round."""

    round = serializers.IntegerField(source="round_number")
    share = serializers.FloatField(allow_null=True, help_text="Of pairs that it orders as people do.")

    class Meta:
        model = DriftFigure
        fields = ("round", "pairs", "agreeing", "share", "low", "high", "measured_at")


class DriftRowSerializer(serializers.Serializer[Any]):
    """One reward model against every round."""

    checkpoint = serializers.CharField()
    trained_in_round = serializers.IntegerField(allow_null=True)
    cells = DriftCellSerializer(many=True)


class MeasurementSerializer(serializers.ModelSerializer[DriftMeasurement]):
    """A measurement that a worker does."""

    class Meta:
        model = DriftMeasurement
        fields = ("id", "state", "current", "total", "message", "error", "created_at", "finished_at")


class JudgeSerializer(serializers.ModelSerializer[Judge]):
    """A model that judges beside people."""

    checkpoint = serializers.CharField(source="checkpoint.name")
    rubric = serializers.IntegerField(
        source="rubric_id", allow_null=True, help_text="Id of the rubric version that it scores by."
    )

    class Meta:
        model = Judge
        fields = (
            *("id", "name", "checkpoint", "rubric", "is_active", "state", "message", "error", "template"),
            *("max_tokens", "most_judgments", "most_tokens", "questions", "prompt_tokens"),
            *("completion_tokens", "created_at"),
        )


class NewJudgeSerializer(serializers.Serializer[Any]):
    """A judge to be set to work."""

    name = serializers.CharField(max_length=100)
    checkpoint = serializers.CharField(max_length=100, help_text="What answers for it.")
    template = serializers.CharField(
        required=False,
        max_length=20_000,
        trim_whitespace=False,
        help_text="What it is asked; a good one else.",
    )
    rubric = serializers.CharField(
        required=False, max_length=80, help_text="Name of a published rubric to score by; else it ranks."
    )
    max_tokens = serializers.IntegerField(required=False, min_value=1, max_value=100_000)
    most_judgments = serializers.IntegerField(required=False, min_value=1, max_value=2**31 - 1)
    most_tokens = serializers.IntegerField(required=False, min_value=1, max_value=2**62)


class CriterionAgreementSerializer(serializers.Serializer[Any]):
    """A judge's scores by one criterion against people's ratings."""

    criterion = serializers.CharField(source="criterion.key")
    name = serializers.CharField(source="criterion.name")
    alpha = serializers.FloatField(
        source="alpha.value", allow_null=True, help_text="Krippendorff's α, ordinal; null without data."
    )
    low = serializers.FloatField(source="alpha.low", allow_null=True, help_text="Of the 95 % interval.")
    high = serializers.FloatField(source="alpha.high", allow_null=True)
    comparisons = serializers.IntegerField(source="alpha.items", help_text="That it rests on.")
    responses = serializers.IntegerField(help_text="Scored by the judge and by a person.")
    difference = serializers.FloatField(allow_null=True, help_text="Mean score of the judge less people's.")
    among_people = serializers.FloatField(source="among_people.value", allow_null=True)


class ScoredAnswerSerializer(serializers.Serializer[Any]):
    """An answer with its rank and its score."""

    completion = serializers.IntegerField()
    rank = serializers.IntegerField(
        allow_null=True, help_text="By people; 1 is best. Null where they left it without an order."
    )
    score = serializers.FloatField(allow_null=True, help_text="By the reward model; null: not measured.")


class DriftItemSerializer(serializers.Serializer[Any]):
    """One judgment beside what a reward model says."""

    judgment = serializers.IntegerField(source="judgment.pk")
    comparison = serializers.IntegerField(source="judgment.comparison_id")
    prompt = serializers.IntegerField(source="judgment.comparison.prompt_id")
    answers = serializers.SerializerMethodField(help_text="Best rank first.")
    agreeing = serializers.IntegerField(help_text="Pairs that both order alike.")
    pairs = serializers.IntegerField(help_text="Pairs that people decided and the model scored.")

    @extend_schema_field(ScoredAnswerSerializer(many=True))
    def get_answers(self, item: Item) -> list[dict[str, Any]]:
        """As the page shows them."""
        return [
            {"completion": completion.pk, "rank": rank, "score": score}
            for completion, rank, score in item.answers
        ]


class ActivitySerializer(serializers.Serializer[Any]):
    """The state of a judge: active or paused."""

    is_active = serializers.BooleanField(required=False)


leaderboard = Resource(ProjectView, f"{PROJECT}leaderboard/", tag="checkpoints")
drift = Resource(ProjectView, f"{PROJECT}drift/", tag="checkpoints")
judges = Resource(
    ProjectView,
    f"{PROJECT}judges/",
    tag="checkpoints",
    rows=lambda view: view.project.judges.select_related("checkpoint", "project", "user", "rubric__rubric"),
)
judge = judges.item("<int:pk>/")

judges.add_list(
    "judges_list",
    JudgeSerializer,
    "List the judges with what they were asked and what that cost, newest first.",
)


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


@judges.post(takes=NewJudgeSerializer, returns=JudgeSerializer, status=201)
def judges_create(view: ProjectView, values: Values) -> Judge:
    """Let a checkpoint judge the project's comparisons. It begins once a worker finds it."""
    checkpoint = checkpoints_for(view.user).filter(name=values.pop("checkpoint")).first()
    if checkpoint is None:
        raise serializers.ValidationError({"checkpoint": [_("There is no such checkpoint.")]})
    if (rubric := values.pop("rubric", None)) is not None:
        values["rubric"] = published_versions(view.project).filter(rubric__name=rubric).first()
        if values["rubric"] is None:
            raise serializers.ValidationError({"rubric": [_("There is no such published rubric.")]})
    return create_judge(project=view.project, created_by=view.user, checkpoint=checkpoint, **values)


@judge.patch(takes=ActivitySerializer, returns=JudgeSerializer)
def judges_set(view: ProjectView, judge: Judge, values: Values) -> Judge:
    """Pause a judge, or let it go on, also after a failure."""
    if values:
        set_judge(judge=judge, active=values["is_active"], by=view.user)
    judge.refresh_from_db()
    return judge


@judge.get("criteria/", returns=[CriterionAgreementSerializer])
def judges_criteria(view: ProjectView, judge: Judge) -> Any:
    """Read the agreement of a judge's scores with people's ratings, for each criterion of its rubric."""
    # NumPy is loaded when somebody asks for this, not with the web server.
    from training.selectors.judges import report_of

    return report_of(judge).criteria


def _choice(query: Mapping[str, Any]) -> Choice:
    voters = {"people": HUMANS, "all": EVERYONE}.get(query["voters"]) or frozenset([query["voters"]])
    if query.get("round"):
        return Choice(part=Slice.ROUND, value=str(query["round"]), voters=voters)
    if query.get("tag"):
        return Choice(part=Slice.TAG, value=query["tag"], voters=voters)
    return Choice(voters=voters)
