"""Labelling: the next assignment, drafts, judgments, skips and reports.

What wrote an answer, what others said of it and whether its answer is known are nowhere in here: an answer
bears a name that holds in one assignment alone.
"""

import uuid
from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet
from django.http import Http404
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation import selectors
from annotation.api.answers import (
    JudgmentSerializer,
    NewJudgmentSerializer,
    answer_of,
    judgments_with_parts,
)
from annotation.api.base import Filters, ListView, ProjectView, read_body
from annotation.api.texts import MessageSerializer, PassageSerializer
from annotation.choices import AssignmentState, Purpose, Role, TokenScope, WhyNothing
from annotation.errors import InvalidAnswer
from annotation.known_answers import feedback_for
from annotation.models import Assignment, Completion, Draft, Guideline
from annotation.services.assignments import (
    assign_next,
    candidate_token,
    release_assignment,
    renew_lease,
    skip_assignment,
)
from annotation.services.drafts import save_draft
from annotation.services.flags import flag_item
from annotation.services.judgments import submit_judgment
from annotation.standing import why_nothing

_KEY = OpenApiParameter(
    "Idempotency-Key",
    OpenApiTypes.UUID,
    OpenApiParameter.HEADER,
    required=True,
    description="Drawn for this judgment: sent twice, it is one judgment.",
)


class ShownAnswerSerializer(serializers.Serializer[Any]):
    """One answer to be judged."""

    answer = serializers.CharField(help_text="Its name, in this assignment alone.")
    text = serializers.CharField(help_text="Markdown, as it was written: offsets of marks count in it.")
    text_hash = serializers.CharField(help_text="SHA-256 of the text.")


class DraftSerializer(serializers.ModelSerializer[Draft]):
    """What was saved before it was submitted."""

    fields_saved = serializers.DictField(
        child=serializers.ListField(child=serializers.CharField()), source="fields"
    )

    class Meta:
        model = Draft
        fields = ("version", "fields_saved", "saved_from", "saved_at")


class AssignmentSerializer(serializers.ModelSerializer[Assignment]):
    """One comparison in one's hands, or that one has judged."""

    round = serializers.SerializerMethodField()
    messages = MessageSerializer(many=True, source="comparison.prompt.messages")
    context = PassageSerializer(many=True, source="comparison.prompt.context")  # type: ignore[assignment]
    answers = serializers.SerializerMethodField(help_text="In the order in which they are shown.")
    draft = serializers.SerializerMethodField(help_text="What was saved; null where nothing was.")
    judgment = serializers.SerializerMethodField(help_text="What one submitted and stands; else null.")

    class Meta:
        model = Assignment
        fields = (
            *("id", "state", "round", "messages", "context", "answers"),
            *("leased_at", "lease_expires_at", "closed_at", "draft", "judgment"),
        )

    def get_round(self, assignment: Assignment) -> int:
        """As the page says it."""
        return selectors.round_shown(assignment)

    def get_answers(self, assignment: Assignment) -> list[dict[str, str]]:
        """By their names here."""
        found = Completion.objects.only("text", "text_hash").in_bulk(assignment.display_order)
        return [
            {
                "answer": candidate_token(assignment, pk),
                "text": found[pk].text,
                "text_hash": found[pk].text_hash,
            }
            for pk in assignment.display_order
        ]

    def get_draft(self, assignment: Assignment) -> dict[str, Any] | None:
        """As it was saved last."""
        draft = Draft.objects.filter(assignment=assignment).first()
        return DraftSerializer(draft).data if draft else None

    def get_judgment(self, assignment: Assignment) -> dict[str, Any] | None:
        """One's own."""
        standing = assignment.judgments.filter(superseded_by__isnull=True)
        judgment = judgments_with_parts(standing).first()
        if judgment is None:
            return None
        return JudgmentSerializer(judgment, context={"assignment": assignment}).data


class AssignmentFilters(Filters):
    """Filters of one's assignments."""

    state = serializers.ChoiceField(choices=AssignmentState.choices, required=False)


class NextSerializer(serializers.Serializer[Any]):
    """What there is to do."""

    assignment = AssignmentSerializer(allow_null=True)
    why_nothing = serializers.ChoiceField(
        choices=WhyNothing.choices, allow_null=True, help_text="Why there is no assignment."
    )


class FeedbackSerializer(serializers.Serializer[Any]):
    """What was known of the item, where the project tells it afterwards."""

    right = serializers.BooleanField()
    verdict = serializers.CharField()
    ranking = serializers.CharField(help_text="In letters of the order shown: A is the first answer.")
    explanation = serializers.CharField()


class SubmittedSerializer(serializers.Serializer[Any]):
    """What a submit brought about."""

    judgment = JudgmentSerializer()
    feedback = FeedbackSerializer(allow_null=True)


class NewDraftSerializer(serializers.Serializer[Any]):
    """What stands in the fields."""

    fields_saved = serializers.DictField(
        child=serializers.ListField(child=serializers.CharField(allow_blank=True, trim_whitespace=False)),
        help_text="Name of a field → its values, as the page would send them.",
    )
    base_version = serializers.IntegerField(
        min_value=0, max_value=2**31 - 1, help_text="The version that it follows; 0 for the first."
    )
    saved_from = serializers.UUIDField(help_text="The program or page that saves it.")
    is_revision = serializers.BooleanField(
        required=False, default=False, help_text="Whether a submitted answer is being changed."
    )


class ReasonSerializer(serializers.Serializer[Any]):
    """Why."""

    reason = serializers.CharField(max_length=200)
    details = serializers.CharField(max_length=2000, required=False, default="", allow_blank=True)


class LabellingView(ProjectView):
    """What annotators do. For annotators."""

    role = Role.ANNOTATOR
    changes = TokenScope.LABEL

    def own(self, pk: int) -> Assignment:
        """The assignment in the address, if it was given to who asks; 404 for everyone else."""
        found = self.all_own().filter(pk=pk).first()
        if found is None:
            raise Http404
        found.comparison.project = self.project
        return found

    def all_own(self) -> QuerySet[Assignment]:
        """What was given to who asks. What an arena asked has been revealed since: it is not among them."""
        return (
            Assignment.objects.filter(annotator=self.user, comparison__project=self.project)
            .exclude(comparison__purpose=Purpose.ARENA)
            .select_related("comparison__prompt", "comparison__project")
        )


class AssignmentsView(ListView, LabellingView):
    """One's own assignments. For annotators."""

    serializer_class = AssignmentSerializer
    queryset = Assignment.objects.none()
    filters = AssignmentFilters

    def rows(self, asked: Mapping[str, Any]) -> QuerySet[Any]:
        """By state."""
        return self.all_own().filter(**asked)

    @extend_schema(
        operation_id="assignments_list",
        tags=["labelling"],
        parameters=[AssignmentFilters],
        responses=AssignmentSerializer(many=True),
    )
    def get(self, request: Request, slug: str) -> Response:
        """List what one holds and what one has judged, newest first."""
        return self.listed()


class NextView(LabellingView):
    """The next assignment. For annotators."""

    # Asking again gives what one holds; and leases that ran out come back in transactions of their own.
    keeps_answers = False

    @extend_schema(
        operation_id="assignments_next", tags=["labelling"], request=None, responses=NextSerializer
    )
    def post(self, request: Request, slug: str) -> Response:
        """Lease the next comparison, or get the one that one holds longest. Without any, the answer says
        why."""
        assignment = assign_next(project=self.project, annotator=self.user)
        told = {
            "assignment": assignment and AssignmentSerializer(assignment).data,
            "why_nothing": None if assignment else why_nothing(self.project, self.user),
        }
        return Response(told)


class AssignmentView(LabellingView):
    """One of one's assignments. For the annotator who has it."""

    @extend_schema(operation_id="assignments_read", tags=["labelling"], responses=AssignmentSerializer)
    def get(self, request: Request, slug: str, pk: int) -> Response:
        """Read an assignment with its draft and what one submitted."""
        return Response(AssignmentSerializer(self.own(pk)).data)


class JudgmentView(LabellingView):
    """The judgment of an assignment. For the annotator who has it."""

    @extend_schema(
        operation_id="assignments_judge",
        tags=["labelling"],
        parameters=[_KEY],
        request=NewJudgmentSerializer,
        responses={201: SubmittedSerializer},
    )
    def post(self, request: Request, slug: str, pk: int) -> Response:
        """Submit a judgment, whole or not at all. A second one supersedes the first. 409 once the comparison
        has gone to someone else, when a mark stands on another text, or when another judgment stands than
        `stands_on` says."""
        assignment = self.own(pk)
        told = read_body(NewJudgmentSerializer, request)
        judgment = submit_judgment(
            assignment=assignment,
            annotator=self.user,
            answer=answer_of(told, assignment),
            idempotency_key=_uuid_of(request),
            guideline=self._guideline(told["guideline"]),
            stands_on=told["stands_on"],
        )
        written = judgments_with_parts(type(judgment).objects.filter(pk=judgment.pk)).get()
        assignment.refresh_from_db(fields=["state"])
        feedback = feedback_for(assignment)
        return Response(
            {
                "judgment": JudgmentSerializer(written, context={"assignment": assignment}).data,
                "feedback": FeedbackSerializer(feedback).data if feedback else None,
            },
            status=201,
        )

    def _guideline(self, version: int | None) -> Guideline | None:
        if version is None:
            return None
        found = self.project.guidelines.filter(version=version).first()
        if found is None:
            raise InvalidAnswer(_("The rules have no such version."), field="guideline")
        return found


class DraftView(LabellingView):
    """The draft of an assignment. For the annotator who has it."""

    @extend_schema(
        operation_id="assignments_draft",
        tags=["labelling"],
        request=NewDraftSerializer,
        responses=DraftSerializer,
    )
    def put(self, request: Request, slug: str, pk: int) -> Response:
        """Save what stands in the fields. 409 when another page has saved since, or once it is submitted."""
        assignment = self.own(pk)
        told = read_body(NewDraftSerializer, request)
        saved = save_draft(
            assignment=assignment,
            annotator=self.user,
            fields=told["fields_saved"],
            base_version=told["base_version"],
            saved_from=told["saved_from"],
            is_revision=told["is_revision"],
        )
        return Response(DraftSerializer(saved).data)


class SkipView(LabellingView):
    """Skipping an assignment. For the annotator who has it."""

    @extend_schema(
        operation_id="assignments_skip", tags=["labelling"], request=ReasonSerializer, responses={204: None}
    )
    def post(self, request: Request, slug: str, pk: int) -> Response:
        """Give a comparison back for good, with a reason: others get it."""
        assignment = self.own(pk)
        told = read_body(ReasonSerializer, request)
        reason = f"{told['reason']}: {told['details']}" if told["details"] else told["reason"]
        skip_assignment(assignment=assignment, annotator=self.user, reason=reason)
        return Response(status=204)


class FlagView(LabellingView):
    """Reporting an assignment. For the annotator who has it."""

    @extend_schema(
        operation_id="assignments_flag", tags=["labelling"], request=ReasonSerializer, responses={204: None}
    )
    def post(self, request: Request, slug: str, pk: int) -> Response:
        """Report a comparison to reviewers; it stays in hand. The same report sent twice is one."""
        assignment = self.own(pk)
        flag_item(assignment=assignment, annotator=self.user, **read_body(ReasonSerializer, request))
        return Response(status=204)


class RenewView(LabellingView):
    """The lease of an assignment. For the annotator who has it."""

    keeps_answers = False

    @extend_schema(operation_id="assignments_renew", tags=["labelling"], request=None, responses={204: None})
    def post(self, request: Request, slug: str, pk: int) -> Response:
        """Say that one is still at work on it."""
        renew_lease(assignment=self.own(pk), annotator=self.user)
        return Response(status=204)


class ReleaseView(LabellingView):
    """Giving an assignment back. For the annotator who has it."""

    @extend_schema(
        operation_id="assignments_release", tags=["labelling"], request=None, responses={204: None}
    )
    def post(self, request: Request, slug: str, pk: int) -> Response:
        """Give a comparison back unanswered; anyone may get it, oneself too."""
        release_assignment(assignment=self.own(pk), annotator=self.user)
        return Response(status=204)


def _uuid_of(request: Request) -> uuid.UUID:
    """The key of a judgment. A judgment without one could be doubled by the first lost answer."""
    try:
        return uuid.UUID(request.headers.get("Idempotency-Key", ""))
    except ValueError:
        raise InvalidAnswer(
            _("Send an Idempotency-Key: a UUID, drawn for this judgment."), field="Idempotency-Key"
        ) from None
