"""Quality of checkpoints: the leaderboard, drift against people, and AI annotators."""

from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet
from django.http import Http404
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.base import Filters, ListView, OldestFirst, ProjectView, read_body, read_filters
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


class LeaderboardView(ProjectView):
    """The leaderboard of a project. For managers."""

    @extend_schema(
        operation_id="leaderboard_read",
        tags=["checkpoints"],
        parameters=[BoardFilters],
        responses=BoardSerializer,
    )
    def get(self, request: Request, slug: str) -> Response:
        """Read ratings with intervals, of all votes or of those of a round or a tag."""
        filters = BoardFilters(data=request.query_params.dict())
        filters.is_valid(raise_exception=True)
        board = board_of(self.project, _choice(filters.validated_data))
        names = names_of({standing.source for standing in board.standings})
        values = {
            "votes": board.votes,
            "ties": board.ties,
            "both_bad": board.both_bad,
            "standings": [
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
            ],
        }
        return Response(BoardSerializer(values).data)


class DriftView(ProjectView):
    """Agreement of reward models with people, round by round. For managers."""

    @extend_schema(operation_id="drift_read", tags=["checkpoints"], responses=DriftRowSerializer(many=True))
    def get(self, request: Request, slug: str) -> Response:
        """Read every reward model against the judgments of every round, as it was last measured."""
        rows = [
            {
                "checkpoint": row.checkpoint.name,
                "trained_in_round": row.round_number,
                "cells": [cell for cell in row.cells if cell is not None],
            }
            for row in matrix_of(self.project).rows
        ]
        return Response(DriftRowSerializer(rows, many=True).data)

    @extend_schema(
        operation_id="drift_measure",
        tags=["checkpoints"],
        request=None,
        responses={202: MeasurementSerializer},
    )
    def post(self, request: Request, slug: str) -> Response:
        """Have drift measured anew. A worker does it; 422 while one goes on."""
        measurement = request_measurement(project=self.project, requested_by=self.user)
        return Response(MeasurementSerializer(measurement).data, status=202)


class DriftItemsView(ListView, ProjectView):
    """The judgments behind a number of drift. For managers."""

    pagination_class = OldestFirst
    serializer_class = DriftItemSerializer
    queryset = Judgment.objects.none()

    @extend_schema(operation_id="drift_items", tags=["checkpoints"], responses=DriftItemSerializer(many=True))
    def get(self, request: Request, slug: str, name: str, number: int) -> Response:
        """List what people preferred in a round beside the scores of a reward model that did not learn it."""
        if not CHECKPOINT_NAME.fullmatch(name):
            raise Http404
        rewards = self.project.checkpoints.filter(kind=CheckpointKind.REWARD)
        model = get_object_or_404(rewards.select_related("run__snapshot", "project"), name=name)
        read_filters(self.filters, request)
        page = self.paginate_queryset(items_behind(model, number))
        return self.get_paginated_response(DriftItemSerializer(items_of(model, page or []), many=True).data)


class JudgesView(ListView, ProjectView):
    """Models that judge beside people. For managers."""

    serializer_class = JudgeSerializer
    queryset = Judge.objects.none()

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        """All of them."""
        return self.project.judges.select_related("checkpoint")

    @extend_schema(operation_id="judges_list", tags=["checkpoints"], responses=JudgeSerializer(many=True))
    def get(self, request: Request, slug: str) -> Response:
        """List the judges with what they were asked and what that cost, newest first."""
        return self.listed()

    @extend_schema(
        operation_id="judges_create",
        tags=["checkpoints"],
        request=NewJudgeSerializer,
        responses={201: JudgeSerializer},
    )
    def post(self, request: Request, slug: str) -> Response:
        """Let a checkpoint judge the project's comparisons. It begins once a worker finds it."""
        values = read_body(NewJudgeSerializer, request)
        checkpoint = checkpoints_for(self.user).filter(name=values.pop("checkpoint")).first()
        if checkpoint is None:
            raise serializers.ValidationError({"checkpoint": [_("There is no such checkpoint.")]})
        if (rubric := values.pop("rubric", None)) is not None:
            values["rubric"] = published_versions(self.project).filter(rubric__name=rubric).first()
            if values["rubric"] is None:
                raise serializers.ValidationError({"rubric": [_("There is no such published rubric.")]})
        judge = create_judge(project=self.project, created_by=self.user, checkpoint=checkpoint, **values)
        return Response(JudgeSerializer(judge).data, status=201)


class JudgeView(ProjectView):
    """One judge. For managers."""

    @extend_schema(
        operation_id="judges_set", tags=["checkpoints"], request=ActivitySerializer, responses=JudgeSerializer
    )
    def patch(self, request: Request, slug: str, pk: int) -> Response:
        """Pause a judge, or let it go on, also after a failure."""
        judge = self.project.judges.select_related("checkpoint", "project").filter(pk=pk).first()
        if judge is None:
            raise Http404
        if values := read_body(ActivitySerializer, request):
            set_judge(judge=judge, active=values["is_active"], by=self.user)
        judge.refresh_from_db()
        return Response(JudgeSerializer(judge).data)


class JudgeCriteriaView(ProjectView):
    """Agreement of a judge with people by criterion. For managers."""

    @extend_schema(
        operation_id="judges_criteria",
        tags=["checkpoints"],
        responses=CriterionAgreementSerializer(many=True),
    )
    def get(self, request: Request, slug: str, pk: int) -> Response:
        """Read the agreement of a judge's scores with people's ratings, for each criterion of its rubric."""
        # NumPy is loaded when somebody asks for this, not with the web server.
        from training.selectors.judges import report_of

        judge = self.project.judges.select_related("project", "user", "rubric__rubric").filter(pk=pk).first()
        if judge is None:
            raise Http404
        return Response(CriterionAgreementSerializer(report_of(judge).criteria, many=True).data)


def _choice(query: Mapping[str, Any]) -> Choice:
    voters = {"people": HUMANS, "all": EVERYONE}.get(query["voters"]) or frozenset([query["voters"]])
    if query.get("round"):
        return Choice(part=Slice.ROUND, value=str(query["round"]), voters=voters)
    if query.get("tag"):
        return Choice(part=Slice.TAG, value=query["tag"], voters=voters)
    return Choice(voters=voters)
