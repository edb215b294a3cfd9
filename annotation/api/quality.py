"""Statistics, quarantined completions and gold items."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext as _
from rest_framework import serializers
from rest_framework.response import Response

from annotation.agreement.records import Selection
from annotation.api import fields
from annotation.api.answers import AnswerSerializer, answer_of
from annotation.api.base import Filters, ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from annotation.api.texts import ComparisonSerializer, MessageSerializer, PassageSerializer
from annotation.api.transfers import UploadSerializer, UploadView
from annotation.choices import (
    KNOWN_PURPOSES,
    Availability,
    DecisionKind,
    PayBasis,
    Purpose,
    ReturnState,
    Role,
    Shown,
    TokenScope,
    Verdict,
    WhyNothing,
    WithholdingState,
)
from annotation.exchange.gold import GoldImport, import_gold
from annotation.models import Comparison, Completion, GoldAnswer, PasteRecord, Review, User, Withholding
from annotation.selectors.comparison import completion_ids_by_name, name_of
from annotation.selectors.comparisons import comparisons_behind
from annotation.selectors.eligibility import availability_of_annotators
from annotation.selectors.pastes import pastes_in
from annotation.selectors.pay import pay_of
from annotation.selectors.reviews import ReviewPage, decided_reviews_of, open_reviews_for, page_of_review
from annotation.services.quality import edit_gold_item, mark_as_gold, request_report, retire_gold_item
from annotation.services.reviews import (
    LONGEST_REASON,
    decide_review,
    may_review,
    return_annotation,
    undo_decision,
)
from annotation.services.texts import decide_withholding
from annotation.statistics.cached import items_of, report_without_waiting
from annotation.statistics.forecast import NoForecast, forecast_of
from annotation.statistics.report import Report

_FIRST_YEAR = 2000
_MOST_DAYS_PAID = 3660
_RETRY_SECONDS = 10
"""A large project's figures take from some seconds to some minutes."""


class EstimateSerializer(serializers.Serializer[Any]):
    """A statistic with its 95 % interval, or why there is none."""

    value = fields.number(allow_null=True)
    low = fields.number(allow_null=True)
    high = fields.number(allow_null=True)
    items = fields.integer("How many items it rests on.")
    missing = fields.text("Why there is no value, in a word.", allow_null=True)


class FigureSerializer(serializers.Serializer[Any]):
    """A named statistic of the report."""

    key = fields.text()
    criterion = fields.text("For a figure about ratings; else empty.")
    estimate = EstimateSerializer()


class UsernameField(serializers.CharField):
    """The name of the user with this key, from the context."""

    def to_representation(self, value: Any) -> str:
        names: Mapping[int, str] = self.context["names"]
        return names.get(value, "")


class PersonSerializer(serializers.Serializer[Any]):
    """An annotator's count, speed and reliability."""

    annotator = UsernameField(source="pk")
    judgments = fields.integer()
    median_seconds = fields.number(allow_null=True)
    active_seconds = fields.integer("Over the judgments that measured it.", source="total_seconds")
    in_bulk = fields.integer("Judgments that were given to several comparisons at once.")
    active_days = fields.integer("Days with a judgment.")
    last_at = fields.time("When the newest judgment was submitted.")
    reliability = EstimateSerializer()
    gold = EstimateSerializer()
    retest = EstimateSerializer()
    recent_seconds = fields.number("Median of the newest annotations; null below 10.", allow_null=True)
    unread = EstimateSerializer(help_text="Share of the newest that took less time than reading takes.")
    agreement_change = EstimateSerializer(help_text="Of the newest shared comparisons, less those before.")
    gold_change = EstimateSerializer(help_text="Of the newest gold answers, less those before.")


class AvailabilitySerializer(serializers.Serializer[Any]):
    """The availability of work to an annotator."""

    annotator = fields.text("Their username.")
    availability = fields.choice(Availability.choices)
    reason = fields.choice(WhyNothing.choices, "Why they wait or are blocked; else null.", allow_null=True)
    returned = fields.integer("Returned annotations that wait for an answer.")


class ForecastSerializer(serializers.Serializer[Any]):
    """The day on which the last open assignment is done."""

    remaining = fields.integer("Open and leased assignments.")
    days = fields.integer("Full days that it rests on.")
    per_day = fields.number("Annotations a day.", allow_null=True)
    expected = serializers.DateField(allow_null=True, help_text="Median; null for none or beyond two years.")
    low = serializers.DateField(allow_null=True, help_text="Begin of the 95 % interval.")
    high = serializers.DateField(allow_null=True, help_text="End of the 95 % interval.")
    missing = fields.choice(
        [(reason.value, reason.value) for reason in NoForecast], "Why there is none.", allow_null=True
    )


class TeamSerializer(serializers.Serializer[Any]):
    """Who has work, and when it ends."""

    forecast = ForecastSerializer()
    annotators = AvailabilitySerializer(many=True)


class PaySerializer(serializers.Serializer[Any]):
    """The work of one annotator in a period, and what it is paid."""

    annotator = fields.text(source="user.username")
    annotations = fields.integer("Submitted in the period; a revision is none.")
    measured = fields.integer("Submissions with a measured time, revisions among them.")
    unmeasured = fields.integer()
    active_seconds = fields.integer(source="seconds")
    rate = fields.number(allow_null=True)
    amount = fields.number("Null without a rate.", allow_null=True)


class PayFilters(Filters):
    """The period and the basis of pay."""

    since = serializers.DateField(help_text="The first day.")
    until = serializers.DateField(help_text="The last day.")
    by = fields.choice(PayBasis.choices, default=PayBasis.HOUR.value)

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        """Refuse a period that ends before it begins, or that no calendar holds."""
        since, until = values["since"], values["until"]
        if not (since.year >= _FIRST_YEAR and since <= until <= since + timedelta(days=_MOST_DAYS_PAID)):
            raise serializers.ValidationError(
                {"until": [_("Choose a day from the first one on, within ten years.")]}
            )
        return values


class SharedAgreementSerializer(serializers.Serializer[Any]):
    """Percent agreement on pairs between two annotators."""

    first = UsernameField()
    second = UsernameField()
    share = fields.number()
    comparisons = fields.integer("Comparisons on which both gave a preference.", source="items")


class SpreadSerializer(serializers.Serializer[Any]):
    """Answers of one annotator or of all."""

    answers = fields.integer()
    counts = fields.several(fields.integer(), "How often each option was given, in their order.")
    mean = fields.number(
        "Of scales, numbers and dates (as days from 0001-01-01); null for others.", allow_null=True
    )
    median = fields.number(allow_null=True)
    least = fields.number(allow_null=True)
    most = fields.number(allow_null=True)


class PersonSpreadSerializer(SpreadSerializer):
    """Answers of one annotator."""

    annotator = fields.computed("Their username.")

    def get_annotator(self, pair: tuple[int, Any]) -> str:
        names: Mapping[int, str] = self.context["names"]
        return names.get(pair[0], "")

    def to_representation(self, pair: tuple[int, Any]) -> dict[str, Any]:
        spread = SpreadSerializer(pair[1], context=self.context).data
        return {"annotator": self.get_annotator(pair), **spread}


class OptionSerializer(serializers.Serializer[Any]):
    """A choice, a point of a scale, a category or a relation that is counted."""

    key = fields.text()
    label = fields.text()  # type: ignore[assignment]
    is_part = fields.flag("A sub-category, whose category counts it as well.")


class DistributionSerializer(serializers.Serializer[Any]):
    """Answers to one additional question in its newest version, spans by category, or relations of spans."""

    key = fields.text("Of the question; of the others “spans” and “relations”.")
    text = fields.text("The question; empty for the others.")
    kind = fields.text("Kind of the question, “spans” or “relations”.")
    unit = fields.text("Of a number.")
    options = OptionSerializer(many=True)
    everybody = SpreadSerializer()
    people = PersonSpreadSerializer(many=True)


class ReportSerializer(serializers.Serializer[Any]):
    """All figures of one selection."""

    computed_at = fields.time()
    judgments = fields.integer()
    comparisons = fields.integer()
    active_seconds = fields.integer("Over all judgments that measured it.", source="cost.total_seconds")
    figures = FigureSerializer(many=True)
    people = PersonSerializer(many=True)
    shared = SharedAgreementSerializer(many=True)
    answers = DistributionSerializer(many=True, help_text="By additional question, those with an answer.")
    span_counts = DistributionSerializer(allow_null=True, help_text="Null without a span.")
    relation_counts = DistributionSerializer(allow_null=True, help_text="Null without a relation.")
    triples = fields.integer()
    circles = fields.integer("Of the triples: preferences that go round in a circle.")


class ComputingSerializer(serializers.Serializer[Any]):
    """Figures that are being computed: ask again after `Retry-After` seconds."""

    computing = fields.flag("Always true.")


class StatisticsFilters(Filters):
    """Filters of the statistics."""

    round = fields.integer(required=False, least=1, most=fields.LARGEST_INTEGER)
    category = fields.text("A category of marks, by its key.", required=False)
    annotator = fields.text("A username.", required=False)
    other = fields.text("A second one.", required=False)


class ItemFilters(StatisticsFilters):
    """Filters of the comparisons behind the statistics."""

    show = fields.choice(Shown.choices, default=Shown.JUDGED)


@fields.of(
    Withholding,
    "id comparison completion start end quote requested_by state decided_by decided_at created_at",
)
class WithheldSerializer(serializers.ModelSerializer[Withholding]):
    """A withheld comparison: a completion seems to identify its model, or a manager wants it so."""

    requested_by = fields.text(
        "The manager who wants it so; null where a completion has a quote.",
        source="requested_by.username",
        default=None,
        allow_null=True,
    )
    decided_by = fields.text(source="decided_by.username", default=None, allow_null=True)


class WithheldFilters(Filters):
    """Filters of withheld comparisons."""

    state = fields.choice(WithholdingState.choices, required=False)


class ReleaseSerializer(serializers.Serializer[Any]):
    """The decision on a withheld comparison."""

    release = fields.flag("True gives it to annotators, false keeps it from them.")


@fields.of(GoldAnswer, "id comparison purpose verdict ranks explanation created_by created_at retired_at")
class GoldSerializer(serializers.ModelSerializer[GoldAnswer]):
    """A gold or qualification item."""

    purpose = fields.choice(Purpose.choices, source="comparison.purpose")
    ranks = serializers.DictField(
        child=fields.integer(),
        help_text="Completion → rank. A partial ranking leaves out the completions below all ranked ones.",
    )
    created_by = fields.text(source="created_by.username", default=None, allow_null=True)


def _own_ranks() -> serializers.DictField:
    """Return the field of a known ranking."""
    return serializers.DictField(
        child=fields.integer(least=1, most=1000),
        required=False,
        default=dict,
        help_text="Completion id → rank, 1 best, for the verdict `ranked`.",
    )


class NewGoldSerializer(serializers.Serializer[Any]):
    """A judged comparison to make a gold item of."""

    comparison = fields.key()
    purpose = fields.choice(KNOWN_PURPOSES, default=Purpose.GOLD.value)
    explanation = fields.text(default="", most=5000)
    verdict = fields.choice(
        [("", "as decided or agreed"), *Verdict.choices],
        "The manager's own answer; left out, what reviewers decided or annotators agreed on.",
        default="",
    )
    ranks = _own_ranks()


class KnownAnswerSerializer(serializers.Serializer[Any]):
    """The known answer of an item, to be edited."""

    verdict = fields.choice(Verdict.choices)
    ranks = _own_ranks()
    explanation = fields.text(default="", most=5000)


class GoldFileSerializer(UploadSerializer):
    """A file of known answers."""

    purpose = fields.choice(KNOWN_PURPOSES, default=Purpose.GOLD.value)


class GoldImportSerializer(serializers.Serializer[Any]):
    """The items that a file made."""

    made = fields.integer()
    known = fields.integer("Those that were there already.")


class RetireSerializer(serializers.Serializer[Any]):
    """Whether an item is retired."""

    retired = fields.flag("True hands it out no more, false hands it out again.", default=True)


@fields.of(
    PasteRecord, "id assignment comparison annotator field completion characters is_on_screen created_at"
)
class PasteSerializer(serializers.ModelSerializer[PasteRecord]):
    """A paste into a text, without the text."""

    annotator = fields.text(source="annotator.username")
    comparison = fields.integer(source="assignment.comparison_id")


class PasteFilters(Filters):
    """Filters of pastes."""

    annotator = fields.text("A user name.", source="annotator__username", required=False)


statistics = Resource(ProjectView, f"{PROJECT}statistics/", tag="quality")
team = Resource(ProjectView, f"{PROJECT}team/", tag="quality")
pay = Resource(ProjectView, f"{PROJECT}pay/", tag="quality")
pastes = Resource(ProjectView, f"{PROJECT}pastes/", tag="quality", rows=lambda view: pastes_in(view.project))
pastes.add_list(
    "pastes_list",
    PasteSerializer,
    "List what annotators pasted into texts, newest first, where the project records it.",
    filters=PasteFilters,
)
withheld = Resource(
    ProjectView,
    f"{PROJECT}withheld/",
    tag="quality",
    rows=lambda view: Withholding.objects.filter(comparison__project=view.project).select_related(
        "decided_by", "requested_by"
    ),
)
withholding = withheld.item("<int:pk>/")
gold = Resource(
    ProjectView,
    f"{PROJECT}gold/",
    tag="quality",
    rows=lambda view: GoldAnswer.objects.filter(comparison__project=view.project).select_related(
        "comparison__project", "created_by"
    ),
)
gold_item = gold.item("<int:pk>/")
gold_files = Resource(UploadView, f"{PROJECT}gold/file/", tag="quality")

withheld.add_list(
    "withheld_list",
    WithheldSerializer,
    "List completions that seem to identify their model, newest first.",
    filters=WithheldFilters,
)
gold.add_list(
    "gold_list",
    GoldSerializer,
    "List gold and qualification items with their known answers, newest first.",
)


@statistics.get(
    filters=StatisticsFilters, schema={"responses": {200: ReportSerializer, 202: ComputingSerializer}}
)
def statistics_read(view: ProjectView, query: Values) -> Response:
    """Read agreement, bias, reliability and cost, of all or of a part. 422 for an unknown part.

    In a large project these are the figures computed last (`computed_at`), while newer ones are computed;
    202 with `Retry-After` where there are none yet.
    """
    report = report_without_waiting(view.project, selection_of(view, query), request=request_report)
    if report is None:
        waiting = ComputingSerializer({"computing": True}).data
        return Response(waiting, status=202, headers={"Retry-After": str(_RETRY_SECONDS)})
    return Response(ReportSerializer(report, context={"names": _names_in(report)}).data)


@team.get(schema={"responses": {200: TeamSerializer}})
def team_read(view: ProjectView) -> Response:
    """Read who has work, who waits and who is blocked by what, and the forecast of the end."""
    availability = availability_of_annotators(view.project)
    names = dict(User.objects.filter(pk__in=availability).values_list("pk", "username"))
    rows = [
        {
            "annotator": names[pk],
            "availability": row.availability,
            "reason": row.reason,
            "returned": row.returned,
        }
        for pk, row in sorted(availability.items(), key=lambda pair: names[pair[0]])
    ]
    return Response(TeamSerializer({"forecast": forecast_of(view.project), "annotators": rows}).data)


@pay.get(filters=PayFilters, schema={"responses": {200: PaySerializer(many=True)}})
def pay_read(view: ProjectView, query: Values) -> Response:
    """Read what everybody's work in a period is paid, by hour or by annotation."""
    rows = pay_of(view.project, since=query["since"], until=query["until"], basis=PayBasis(query["by"]))
    return Response(PaySerializer(rows, many=True).data)


@statistics.get_list(ComparisonSerializer, "items/", filters=ItemFilters)
def statistics_items(view: ProjectView, query: Values) -> QuerySet[Comparison]:
    """List the comparisons behind a statistic, newest first."""
    selection, shown = selection_of(view, query), Shown(query["show"])
    comparisons = comparisons_behind(view.project, selection, shown)
    if comparisons is None:
        comparisons = view.project.comparisons.filter(pk__in=items_of(view.project, selection, shown))
    return comparisons.prefetch_related("candidates")


@withholding.post("decision/", takes=ReleaseSerializer, returns=WithheldSerializer)
def withheld_decide(view: ProjectView, withholding: Withholding, values: Values) -> Withholding:
    """Release a comparison to annotators, or withhold it permanently. Can be decided once."""
    return decide_withholding(withholding=withholding, decided_by=view.user, release=values["release"])


@gold.post(takes=NewGoldSerializer, returns=GoldSerializer, status=201)
def gold_make(view: ProjectView, values: Values) -> GoldAnswer:
    """Make a gold item of a comparison that reviewers decided or annotators agreed on."""
    comparison = get_object_or_404(view.project.comparisons, pk=values["comparison"])
    made = mark_as_gold(
        comparison=comparison,
        created_by=view.user,
        explanation=values["explanation"],
        purpose=Purpose(values["purpose"]),
        verdict=values["verdict"],
        ranks=_ranks_by_id(values["ranks"]),
    )
    return GoldAnswer.objects.get(comparison=made)


# The same file twice adds nothing, so repeating the request is harmless.
@gold_files.post(takes=GoldFileSerializer, returns=GoldImportSerializer, status=201, keeps_answers=False)
def gold_import(view: ProjectView, values: Values) -> GoldImport:
    """Make gold items of the annotations in a file; their comments are the explanations. All or none."""
    return import_gold(
        project=view.project,
        upload=values["file"],
        created_by=view.user,
        purpose=Purpose(values["purpose"]),
    )


@gold_item.put(takes=KnownAnswerSerializer, returns=GoldSerializer)
def gold_edit(view: ProjectView, known: GoldAnswer, values: Values) -> GoldAnswer:
    """Change a known answer and its explanation. Earlier annotations are compared with it, too."""
    return edit_gold_item(
        known=known,
        edited_by=view.user,
        verdict=values["verdict"],
        ranks=_ranks_by_id(values["ranks"]),
        explanation=values["explanation"],
    )


@gold_item.post("retire/", takes=RetireSerializer, returns=GoldSerializer)
def gold_retire(view: ProjectView, known: GoldAnswer, values: Values) -> GoldAnswer:
    """Hand an item out no more, or again. What was answered still counts."""
    return retire_gold_item(known=known, retired_by=view.user, retired=values["retired"])


def _ranks_by_id(ranks: Mapping[str, int]) -> dict[int, int]:
    # Another key is the id of no completion, which the service refuses.
    return {int(key) if key.isascii() and key.isdigit() and len(key) < 19 else 0: ranks[key] for key in ranks}


def selection_of(view: ProjectView, query: Mapping[str, Any]) -> Selection:
    """Return the selection that the filters name. Refuse unknown categories and annotators."""
    people = {}
    for name in ("annotator", "other"):
        if query.get(name):
            judged = User.objects.filter(judgments__comparison__project=view.project, username=query[name])
            people[name] = judged.values_list("pk", flat=True).first()
            if people[name] is None:
                raise serializers.ValidationError(
                    {name: [_("Nobody of this name has judged anything here.")]}
                )
    category = None
    if query.get("category"):
        category = view.project.categories.filter(key=query["category"]).values_list("pk", flat=True).first()
        if category is None:
            raise serializers.ValidationError({"category": [_("The project has no category of this key.")]})
    return Selection(
        round_number=query.get("round"),
        category_id=category,
        annotator_id=people.get("annotator"),
        other_id=people.get("other"),
    )


def _names_in(report: Report) -> dict[int, str]:
    shown = {annotator.pk for annotator in report.people}
    shown.update(pk for pair in report.shared for pk in (pair.first, pair.second))
    return dict(User.objects.filter(pk__in=shown).values_list("pk", "username"))


# Reviews (adjudication): blind until they are decided, as on the page.


@fields.of(Review, "id reason prompt opened_at decided_at decided_by")
class ReviewSerializer(serializers.ModelSerializer[Review]):
    """A comparison under review."""

    prompt = fields.text("What was asked last.", source="comparison.prompt.last_question")
    decided_by = fields.text(source="reviewer.username", default=None, allow_null=True)


class RemarkSerializer(serializers.Serializer[Any]):
    """A remark of a vote besides its verdict."""

    about = fields.text("The letter of an answer; empty for the comparison as a whole.")
    kind = fields.text()
    text = fields.text()
    quote = fields.text()
    differs = fields.flag("Not every vote says it.")


class ReturnSerializer(serializers.Serializer[Any]):
    """A return of a vote to its annotator, and the answer."""

    comment = fields.text()
    state = fields.choice(ReturnState.choices)
    objection = fields.text("Why the annotation stays as it is; empty where it was corrected.")
    returned_at = fields.time()


class ReviewVoteSerializer(serializers.Serializer[Any]):
    """The judgment of one annotator."""

    name = fields.text("Opaque; names this version of the annotation, to return it.")
    number = fields.integer()
    verdict = fields.text()
    differs = fields.flag("Another vote prefers otherwise.", source="version.differs")
    annotator = fields.text("Empty until the review is decided.")
    remarks = RemarkSerializer(many=True)
    returns = ReturnSerializer(many=True)


class PastDecisionSerializer(serializers.Serializer[Any]):
    """An earlier entry in the record of a review: a decision, or that one was undone."""

    kind = fields.choice(DecisionKind.choices)
    reviewer = fields.text(source="reviewer.username")
    verdict = fields.text("Empty where a decision was undone.")
    comment = fields.text()
    created_at = fields.time()


@fields.more("messages context answers votes verdict ranks remarks comment earlier_decisions")
class WholeReviewSerializer(ReviewSerializer):
    """A review with its answers and votes."""

    messages = MessageSerializer(many=True, source="comparison.prompt.messages")
    context = PassageSerializer(many=True, source="comparison.prompt.context")  # type: ignore[assignment]
    answers = fields.computed()
    votes = fields.computed()
    verdict = fields.text("What was decided; empty while it is open.")
    ranks = fields.computed("Answer → rank of the decision.")
    remarks = fields.computed("Everything else that was decided, in words.")
    comment = fields.text()
    earlier_decisions = fields.computed("What was decided before and undone, the oldest first.")

    def get_answers(self, review: Review) -> list[dict[str, str]]:
        ids = completion_ids_by_name(review)
        rows = Completion.objects.in_bulk(ids.values())
        letters = {shown.name: shown.letter for shown in ReviewPage(review).completions}
        return [{"answer": name, "letter": letters[name], "text": rows[pk].text} for name, pk in ids.items()]

    def get_votes(self, review: Review) -> list[dict[str, Any]]:
        """Return the votes, without annotators until the review is decided."""
        return [dict(ReviewVoteSerializer(vote).data) for vote in ReviewPage(review).votes]

    def get_ranks(self, review: Review) -> dict[str, int]:
        return {name_of(review, int(pk)): rank for pk, rank in review.ranks.items()}

    def get_remarks(self, review: Review) -> list[dict[str, Any]]:
        """Return the parts of the decision besides the preference."""
        if review.decided_at is None:
            return []
        return [dict(RemarkSerializer(remark).data) for remark in ReviewPage(review).decided.remarks]

    def get_earlier_decisions(self, review: Review) -> list[dict[str, Any]]:
        """Return the record of the review without the decision that stands."""
        entries = ReviewPage(review).earlier_decisions
        return [dict(PastDecisionSerializer(entry).data) for entry, _words in entries]


class DecisionSerializer(AnswerSerializer):
    """The decision of a review: a preference alone, or with it everything that the labelling screen asks.

    `answer` names a response by its name in this review.
    """

    comment = fields.text("The reason, for the annotators.", default="", most=LONGEST_REASON)


class NewReturnSerializer(serializers.Serializer[Any]):
    """An annotation to return to its annotator."""

    vote = fields.text("The name of the vote in this review.", most=40)
    comment = fields.text("What the annotator should look at.", most=LONGEST_REASON)


class DecisionUndoSerializer(serializers.Serializer[Any]):
    """Why a decision is undone."""

    comment = fields.text(default="", most=LONGEST_REASON)


class ReviewFilters(Filters):
    """Filters of reviews."""

    decided = fields.flag("Those that are decided; else those that wait for oneself.", default=False)


reviews = Resource(
    ProjectView, f"{PROJECT}reviews/", tag="reviews", role=Role.REVIEWER, scope=TokenScope.LABEL
)


def _review(view: ProjectView, pk: int) -> Review:
    """Return a review; while it is open, only to a reviewer who may decide it."""
    rows = Review.objects.select_related("comparison__prompt", "comparison__project", "reviewer")
    review = get_object_or_404(rows, pk=pk, comparison__project=view.project)
    if review.decided_at is None and not may_review(review, view.user):
        raise PermissionDenied
    return review


review = reviews.item("<int:pk>/", find=_review)
review.add_read(
    "reviews_read",
    WholeReviewSerializer,
    "Read a comparison with its votes and, once decided, the decision.",
)


@reviews.get_list(ReviewSerializer, filters=ReviewFilters)
def reviews_list(view: ProjectView, query: Values) -> QuerySet[Review]:
    """List the reviews that the user may decide, or the decided ones, newest first."""
    if query.get("decided"):
        reviews = decided_reviews_of(view.project)
    else:
        reviews = open_reviews_for(view.project, view.user)
    return reviews.select_related("comparison__prompt", "reviewer")


@review.post("decision/", takes=DecisionSerializer, returns=WholeReviewSerializer)
def reviews_decide(view: ProjectView, review: Review, values: Values) -> Review:
    """Decide a review, once. The votes stay unchanged. 409 if someone else decided it first."""
    answer = answer_of(values, page_of_review(review, view.user))
    is_whole = answer.has_details or answer.strength is not None
    return decide_review(
        review=review,
        reviewer=view.user,
        verdict=answer.verdict,
        ranks={int(pk): rank for pk, rank in answer.ranks.items()},
        answer=answer if is_whole else None,
        comment=values["comment"],
    )


@review.post("return/", takes=NewReturnSerializer, returns=WholeReviewSerializer, keeps_answers=True)
def reviews_return(view: ProjectView, review: Review, values: Values) -> Review:
    """Return an annotation to its annotator, who corrects it or objects. 409 if the review is decided."""
    return_annotation(review=review, reviewer=view.user, **values)
    return review


@review.post("undo/", takes=DecisionUndoSerializer, returns=WholeReviewSerializer)
def reviews_undo(view: ProjectView, review: Review, values: Values) -> Review:
    """Undo a decision, which stays in the record. For who decided it, and for managers."""
    return undo_decision(review=review, user=view.user, reason=values["comment"])
