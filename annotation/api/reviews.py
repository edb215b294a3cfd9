"""Reviews: blind until they are decided, as on the page."""

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.answers import VerdictSerializer
from annotation.api.base import Filters, ListView, ProjectView, read_body
from annotation.api.texts import MessageSerializer, PassageSerializer
from annotation.choices import Role, TokenScope
from annotation.errors import InvalidAnswer
from annotation.models import Completion, Review
from annotation.reviewing import (
    ReviewPage,
    completion_ids_by_name,
    decided_reviews_of,
    name_of,
    open_reviews_for,
)
from annotation.services.reviews import decide_review, may_review


class ReviewSerializer(serializers.ModelSerializer[Review]):
    """One comparison that went to reviewers."""

    prompt = serializers.CharField(source="comparison.prompt.last_question", help_text="What was asked last.")
    decided_by = serializers.CharField(source="reviewer.username", default=None, allow_null=True)

    class Meta:
        model = Review
        fields: tuple[str, ...] = ("id", "reason", "prompt", "opened_at", "decided_at", "decided_by")


class ReviewedAnswerSerializer(serializers.Serializer[Any]):
    """One answer under review."""

    answer = serializers.CharField(help_text="Its name, in this review alone.")
    letter = serializers.CharField(help_text="What votes and remarks call it.")
    text = serializers.CharField()


class RemarkSerializer(serializers.Serializer[Any]):
    """One thing that a vote says beside its verdict."""

    about = serializers.CharField(help_text="The letter of an answer; empty for the comparison as a whole.")
    kind = serializers.CharField()
    text = serializers.CharField()
    quote = serializers.CharField()


class VoteSerializer(serializers.Serializer[Any]):
    """What one annotator said."""

    number = serializers.IntegerField()
    verdict = serializers.CharField()
    annotator = serializers.CharField(help_text="Empty until the review is decided.")
    remarks = RemarkSerializer(many=True)


class WholeReviewSerializer(ReviewSerializer):
    """A review with the answers and the votes."""

    messages = MessageSerializer(many=True, source="comparison.prompt.messages")
    context = PassageSerializer(many=True, source="comparison.prompt.context")  # type: ignore[assignment]
    answers = serializers.SerializerMethodField()
    votes = serializers.SerializerMethodField()
    verdict = serializers.CharField(help_text="What was decided; empty while it is open.")
    ranks = serializers.SerializerMethodField(help_text="Answer → rank of the decision.")
    comment = serializers.CharField()

    class Meta(ReviewSerializer.Meta):
        fields = (
            *ReviewSerializer.Meta.fields,
            *("messages", "context", "answers", "votes", "verdict", "ranks", "comment"),
        )

    def get_answers(self, review: Review) -> list[dict[str, str]]:
        """In this review's order."""
        ids = completion_ids_by_name(review)
        found = Completion.objects.in_bulk(ids.values())
        letters = {shown.name: shown.letter for shown in ReviewPage(review).completions}
        return [{"answer": name, "letter": letters[name], "text": found[pk].text} for name, pk in ids.items()]

    def get_votes(self, review: Review) -> list[dict[str, Any]]:
        """As the page shows them: nobody's name until it is decided."""
        return [dict(VoteSerializer(vote).data) for vote in ReviewPage(review).votes]

    def get_ranks(self, review: Review) -> dict[str, int]:
        """By the names of this review."""
        return {name_of(review, int(pk)): rank for pk, rank in review.ranks.items()}


class DecisionSerializer(VerdictSerializer):
    """A decision."""

    comment = serializers.CharField(required=False, default="", allow_blank=True, max_length=20_000)


class ReviewFilters(Filters):
    """Filters of reviews."""

    decided = serializers.BooleanField(
        required=False, default=False, help_text="Those that are decided; else those that wait for oneself."
    )


class ReviewingView(ProjectView):
    """What reviewers do. For reviewers."""

    role = Role.REVIEWER
    changes = TokenScope.LABEL

    def review(self, pk: int) -> Review:
        """The review in the address; while it is open, only for who may decide it."""
        rows = Review.objects.select_related("comparison__prompt", "comparison__project", "reviewer")
        found = get_object_or_404(rows, pk=pk, comparison__project=self.project)
        if found.decided_at is None and not may_review(found, self.user):
            raise PermissionDenied
        return found


class ReviewsView(ListView, ReviewingView):
    """What goes to reviewers. For reviewers."""

    serializer_class = ReviewSerializer
    queryset = Review.objects.none()
    filters = ReviewFilters

    def rows(self, asked: Mapping[str, Any]) -> QuerySet[Any]:
        """What waits, or what was decided."""
        if asked.get("decided"):
            found = decided_reviews_of(self.project)
        else:
            found = open_reviews_for(self.project, self.user)
        return found.select_related("comparison__prompt", "reviewer")

    @extend_schema(
        operation_id="reviews_list",
        tags=["reviews"],
        parameters=[ReviewFilters],
        responses=ReviewSerializer(many=True),
    )
    def get(self, request: Request, slug: str) -> Response:
        """List what waits for one's decision, or what was decided, newest first."""
        return self.listed()


class ReviewView(ReviewingView):
    """One comparison with its votes. For reviewers who did not vote."""

    @extend_schema(operation_id="reviews_read", tags=["reviews"], responses=WholeReviewSerializer)
    def get(self, request: Request, slug: str, pk: int) -> Response:
        """Read a comparison with its votes, to decide it, or as it was decided."""
        return Response(WholeReviewSerializer(self.review(pk)).data)


class DecisionView(ReviewingView):
    """The decision of a review. For reviewers who did not vote."""

    @extend_schema(
        operation_id="reviews_decide",
        tags=["reviews"],
        request=DecisionSerializer,
        responses=WholeReviewSerializer,
    )
    def post(self, request: Request, slug: str, pk: int) -> Response:
        """Decide a comparison, once. The votes stay as they are. 409 when someone else decided it first."""
        review = self.review(pk)
        told = read_body(DecisionSerializer, request)
        ids = completion_ids_by_name(review)
        if unknown := set(told["ranks"]) - set(ids):
            names = ", ".join(sorted(unknown))[:200]
            raise InvalidAnswer(
                _("There is no answer %(name)r in this review.") % {"name": names}, field="ranks"
            )
        decided = decide_review(
            review=review,
            reviewer=self.user,
            verdict=told["verdict"],
            ranks={ids[name]: rank for name, rank in told["ranks"].items()},
            comment=told["comment"],
        )
        return Response(WholeReviewSerializer(decided).data)
