"""Statistics, and what a manager decides about single items: withheld texts, known answers."""

from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.base import Filters, ListView, ProjectView, read_body
from annotation.api.texts import ComparisonSerializer
from annotation.choices import Purpose, Shown, WithholdingState
from annotation.models import Comparison, GoldAnswer, User, Withholding
from annotation.services.gold import mark_as_gold
from annotation.services.withholding import decide_withholding
from annotation.statistics.cached import items_of, report_of
from annotation.statistics.report import Figure, Report
from annotation.statistics.selection import Selection


class EstimateSerializer(serializers.Serializer[Any]):
    """One statistic with its 95 % interval, or why there is none."""

    value = serializers.FloatField(allow_null=True)
    low = serializers.FloatField(allow_null=True)
    high = serializers.FloatField(allow_null=True)
    items = serializers.IntegerField(help_text="How many items it rests on.")
    missing = serializers.CharField(allow_null=True, help_text="Why there is no value, in a word.")


class FigureSerializer(serializers.Serializer[Any]):
    """One statistic of the report by its name."""

    key = serializers.CharField()
    criterion = serializers.CharField(help_text="For a figure about ratings; else empty.")
    estimate = EstimateSerializer()


class PersonSerializer(serializers.Serializer[Any]):
    """One annotator: how much, how quickly, how far to be relied on."""

    annotator = serializers.CharField()
    judgments = serializers.IntegerField()
    median_seconds = serializers.FloatField(allow_null=True)
    reliability = EstimateSerializer()
    gold = EstimateSerializer()
    retest = EstimateSerializer()


class ReportSerializer(serializers.Serializer[Any]):
    """All figures of one selection."""

    computed_at = serializers.DateTimeField()
    judgments = serializers.IntegerField()
    comparisons = serializers.IntegerField()
    active_seconds = serializers.IntegerField(help_text="Over all judgments that measured it.")
    figures = FigureSerializer(many=True)
    people = PersonSerializer(many=True)
    triples = serializers.IntegerField()
    circles = serializers.IntegerField(help_text="Of the triples: preferences that go round in a circle.")


class StatisticsFilters(Filters):
    """Of which part."""

    round = serializers.IntegerField(required=False, min_value=1, max_value=2**31 - 1)
    category = serializers.CharField(required=False, help_text="A category of marks, by its key.")
    annotator = serializers.CharField(required=False, help_text="A username.")
    other = serializers.CharField(required=False, help_text="A second one.")


class ItemFilters(StatisticsFilters):
    """Of which part, and what behind it."""

    show = serializers.ChoiceField(choices=Shown.choices, required=False, default=Shown.JUDGED)


class WithheldSerializer(serializers.ModelSerializer[Withholding]):
    """A comparison kept from annotators because a text in it seems to name its model."""

    decided_by = serializers.CharField(source="decided_by.username", default=None, allow_null=True)

    class Meta:
        model = Withholding
        fields = (
            *("id", "comparison", "completion", "start", "end", "quote"),
            *("state", "decided_by", "decided_at", "created_at"),
        )


class WithheldFilters(Filters):
    """Filters of withheld comparisons."""

    state = serializers.ChoiceField(choices=WithholdingState.choices, required=False)


class ReleaseSerializer(serializers.Serializer[Any]):
    """What becomes of it."""

    release = serializers.BooleanField(help_text="True gives it to annotators, false keeps it from them.")


class GoldSerializer(serializers.ModelSerializer[GoldAnswer]):
    """An item whose answer is known."""

    purpose = serializers.ChoiceField(choices=Purpose.choices, source="comparison.purpose")
    ranks = serializers.DictField(child=serializers.IntegerField(), help_text="Completion → rank.")
    created_by = serializers.CharField(source="created_by.username", default=None, allow_null=True)

    class Meta:
        model = GoldAnswer
        fields = (
            "id",
            "comparison",
            "purpose",
            "verdict",
            "ranks",
            "explanation",
            "created_by",
            "created_at",
        )


class NewGoldSerializer(serializers.Serializer[Any]):
    """A judged comparison that becomes a known item."""

    comparison = serializers.IntegerField(min_value=1, max_value=2**63 - 1)
    purpose = serializers.ChoiceField(
        choices=[Purpose.GOLD.value, Purpose.QUALIFICATION.value], required=False, default=Purpose.GOLD.value
    )
    explanation = serializers.CharField(required=False, default="", allow_blank=True, max_length=5000)


class StatisticsView(ProjectView):
    """A project's statistics. For managers."""

    @extend_schema(
        operation_id="statistics_read",
        tags=["quality"],
        parameters=[StatisticsFilters],
        responses=ReportSerializer,
    )
    def get(self, request: Request, slug: str) -> Response:
        """Read agreement, bias, reliability and cost, of all or of a part. Of an unknown part there is
        nothing: 422."""
        asked = StatisticsFilters(data=request.query_params.dict())
        asked.is_valid(raise_exception=True)
        selection = selection_of(self, asked.validated_data)
        return Response(ReportSerializer(_told(report_of(self.project, selection))).data)


class StatisticsItemsView(ListView, ProjectView):
    """The comparisons behind a number. For managers."""

    serializer_class = ComparisonSerializer
    queryset = Comparison.objects.none()
    filters = ItemFilters

    def rows(self, asked: Mapping[str, Any]) -> QuerySet[Any]:
        """As the statistics count them."""
        found = items_of(self.project, selection_of(self, asked), Shown(asked["show"]))
        return self.project.comparisons.filter(pk__in=found).prefetch_related("candidates")

    @extend_schema(
        operation_id="statistics_items",
        tags=["quality"],
        parameters=[ItemFilters],
        responses=ComparisonSerializer(many=True),
    )
    def get(self, request: Request, slug: str) -> Response:
        """List the comparisons behind a number of the statistics, newest first."""
        return self.listed()


class WithheldView(ListView, ProjectView):
    """Withheld comparisons. For managers."""

    serializer_class = WithheldSerializer
    queryset = Withholding.objects.none()
    filters = WithheldFilters

    def rows(self, asked: Mapping[str, Any]) -> QuerySet[Any]:
        """By state."""
        found = Withholding.objects.filter(comparison__project=self.project)
        return found.filter(**asked).select_related("decided_by")

    @extend_schema(
        operation_id="withheld_list",
        tags=["quality"],
        parameters=[WithheldFilters],
        responses=WithheldSerializer(many=True),
    )
    def get(self, request: Request, slug: str) -> Response:
        """List texts in which a model seems to name itself, newest first."""
        return self.listed()


class WithheldDecisionView(ProjectView):
    """What becomes of a withheld comparison. For managers."""

    @extend_schema(
        operation_id="withheld_decide",
        tags=["quality"],
        request=ReleaseSerializer,
        responses=WithheldSerializer,
    )
    def post(self, request: Request, slug: str, pk: int) -> Response:
        """Release a comparison to annotators, or keep it from them for good. Decided once."""
        found = get_object_or_404(Withholding, pk=pk, comparison__project=self.project)
        told = read_body(ReleaseSerializer, request)
        decided = decide_withholding(withholding=found, decided_by=self.user, release=told["release"])
        return Response(WithheldSerializer(decided).data)


class GoldView(ListView, ProjectView):
    """Items whose answer is known. For managers."""

    serializer_class = GoldSerializer
    queryset = GoldAnswer.objects.none()

    def rows(self, asked: Mapping[str, Any]) -> QuerySet[Any]:
        """All of them."""
        found = GoldAnswer.objects.filter(comparison__project=self.project)
        return found.select_related("comparison", "created_by")

    @extend_schema(operation_id="gold_list", tags=["quality"], responses=GoldSerializer(many=True))
    def get(self, request: Request, slug: str) -> Response:
        """List gold and qualification items with what is known, newest first."""
        return self.listed()

    @extend_schema(
        operation_id="gold_make",
        tags=["quality"],
        request=NewGoldSerializer,
        responses={201: GoldSerializer},
    )
    def post(self, request: Request, slug: str) -> Response:
        """Make a known item of a comparison that reviewers decided or annotators judged alike."""
        told = read_body(NewGoldSerializer, request)
        comparison = get_object_or_404(self.project.comparisons, pk=told["comparison"])
        made = mark_as_gold(
            comparison=comparison,
            created_by=self.user,
            explanation=told["explanation"],
            purpose=Purpose(told["purpose"]),
        )
        return Response(GoldSerializer(GoldAnswer.objects.get(comparison=made)).data, status=201)


def selection_of(view: ProjectView, asked: Mapping[str, Any]) -> Selection:
    """The part that the filters name. Refuses a category or a person that the project lacks."""
    people = {}
    for name in ("annotator", "other"):
        if asked.get(name):
            judged = User.objects.filter(judgments__comparison__project=view.project, username=asked[name])
            people[name] = judged.values_list("pk", flat=True).first()
            if people[name] is None:
                raise serializers.ValidationError({name: ["Nobody of this name has judged anything here."]})
    category = None
    if asked.get("category"):
        category = view.project.categories.filter(key=asked["category"]).values_list("pk", flat=True).first()
        if category is None:
            raise serializers.ValidationError({"category": ["The project has no category of this key."]})
    return Selection(
        round_number=asked.get("round"),
        category_id=category,
        annotator_id=people.get("annotator"),
        other_id=people.get("other"),
    )


def _told(report: Report) -> dict[str, Any]:
    names = dict(User.objects.filter(pk__in=[one.pk for one in report.people]).values_list("pk", "username"))
    return {
        "computed_at": report.computed_at,
        "judgments": report.judgments,
        "comparisons": report.comparisons,
        "active_seconds": report.cost.total_seconds,
        "figures": [_figure(one) for one in report.figures],
        "people": [
            {
                "annotator": names.get(one.pk, ""),
                "judgments": one.judgments,
                "median_seconds": one.median_seconds,
                "reliability": one.reliability,
                "gold": one.gold,
                "retest": one.retest,
            }
            for one in report.people
        ],
        "triples": report.triples,
        "circles": report.circles,
    }


def _figure(figure: Figure) -> dict[str, Any]:
    return {"key": figure.key, "criterion": figure.criterion, "estimate": figure.estimate}
