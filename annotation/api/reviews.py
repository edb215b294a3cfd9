"""Reviews (adjudication): blind until they are decided, as on the page."""

from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext as _
from rest_framework import serializers

from annotation.api import fields
from annotation.api.answers import VerdictSerializer
from annotation.api.base import Filters, ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from annotation.api.texts import MessageSerializer, PassageSerializer
from annotation.choices import Role, TokenScope
from annotation.errors import InvalidAnswer
from annotation.models import Completion, Review
from annotation.selectors.comparison import completion_ids_by_name, name_of
from annotation.selectors.reviews import ReviewPage, decided_reviews_of, open_reviews_for
from annotation.services.quality.reviews import decide_review, may_review


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


class VoteSerializer(serializers.Serializer[Any]):
    """The judgment of one annotator."""

    number = fields.integer()
    verdict = fields.text()
    annotator = fields.text("Empty until the review is decided.")
    remarks = RemarkSerializer(many=True)


@fields.more("messages context answers votes verdict ranks comment")
class WholeReviewSerializer(ReviewSerializer):
    """A review with its answers and votes."""

    messages = MessageSerializer(many=True, source="comparison.prompt.messages")
    context = PassageSerializer(many=True, source="comparison.prompt.context")  # type: ignore[assignment]
    answers = fields.computed()
    votes = fields.computed()
    verdict = fields.text("What was decided; empty while it is open.")
    ranks = fields.computed("Answer → rank of the decision.")
    comment = fields.text()

    def get_answers(self, review: Review) -> list[dict[str, str]]:
        ids = completion_ids_by_name(review)
        rows = Completion.objects.in_bulk(ids.values())
        letters = {shown.name: shown.letter for shown in ReviewPage(review).completions}
        return [{"answer": name, "letter": letters[name], "text": rows[pk].text} for name, pk in ids.items()]

    def get_votes(self, review: Review) -> list[dict[str, Any]]:
        """Return the votes, without annotators until the review is decided."""
        return [dict(VoteSerializer(vote).data) for vote in ReviewPage(review).votes]

    def get_ranks(self, review: Review) -> dict[str, int]:
        return {name_of(review, int(pk)): rank for pk, rank in review.ranks.items()}


class DecisionSerializer(VerdictSerializer):
    """The decision of a review."""

    comment = fields.text(default="", most=20_000)


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
    ids = completion_ids_by_name(review)
    if unknown := set(values["ranks"]) - set(ids):
        names = ", ".join(sorted(unknown))[:200]
        raise InvalidAnswer(
            "unknown_response",
            _("There is no response %(name)r in this review."),
            field="ranks",
            name=names,
        )
    return decide_review(
        review=review,
        reviewer=view.user,
        verdict=values["verdict"],
        ranks={ids[name]: rank for name, rank in values["ranks"].items()},
        comment=values["comment"],
    )
