"""Stored requests and feedback for managers: lists, figures, incidents, settings, keys, deletion."""

from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.base import ListView, ProjectView, read_body
from annotation.errors import Refusal
from annotation.models import ApiToken
from training.api.application_parts import (
    ChangedRuleSerializer,
    ChangedSettingsSerializer,
    DecisionSerializer,
    EndUserSerializer,
    ErasedSerializer,
    FeedbackFilters,
    FeedbackSettingsSerializer,
    GivenSerializer,
    IncidentSerializer,
    KeySerializer,
    NewKeySerializer,
    OptInSerializer,
    RedactedSerializer,
    RequestFilters,
    RuleSerializer,
    SampleSerializer,
    StoredRequestSerializer,
    ThumbsSerializer,
    TokenIdSerializer,
    WholeRequestSerializer,
)
from training.models import (
    ApplicationRequest,
    Feedback,
    FeedbackIncident,
    FeedbackKey,
)
from training.selectors.feedback import incidents_of, stored_requests, thumbs_by_day, with_exclusion
from training.services.feedback.abuse import decide_incident
from training.services.feedback.erasure import erase_user
from training.services.feedback.pseudonyms import pseudonyms
from training.services.feedback.redaction import Redactor, TooSlowError, checked_patterns
from training.services.feedback.settings import (
    change_settings,
    create_key,
    opt_in,
    opt_out,
    revoke_key,
    set_rule,
    settings_of,
)


class RequestsView(ListView, ProjectView):
    """The stored requests of a project. For managers."""

    serializer_class = StoredRequestSerializer
    queryset = ApplicationRequest.objects.none()
    filters = RequestFilters

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        values = dict(query)
        if user := values.pop("user", ""):
            values["pseudonyms"] = pseudonyms(self.project.pk, user)
        return stored_requests(self.project, values)

    @extend_schema(
        operation_id="application_requests_list",
        tags=["feedback"],
        parameters=[RequestFilters],
        responses=StoredRequestSerializer(many=True),
    )
    def get(self, request: Request, slug: str) -> Response:
        """List the stored requests, newest first."""
        return self.listed()


class RequestView(ProjectView):
    """One stored request. For managers."""

    @extend_schema(
        operation_id="application_requests_read", tags=["feedback"], responses=WholeRequestSerializer
    )
    def get(self, request: Request, slug: str, pk: int) -> Response:
        """Read a stored request with its provenance and all feedback."""
        row = get_object_or_404(stored_requests(self.project, {}), pk=pk)
        return Response(WholeRequestSerializer(row).data)


class FeedbackListView(ListView, ProjectView):
    """The feedback of a project. For managers."""

    serializer_class = GivenSerializer
    queryset = Feedback.objects.none()
    filters = FeedbackFilters

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        rows = with_exclusion(Feedback.objects.filter(project=self.project))
        if "kind" in query:
            rows = rows.filter(kind=query["kind"])
        return rows.filter(source_name=query["source"]) if "source" in query else rows

    @extend_schema(
        operation_id="feedback_list",
        tags=["feedback"],
        parameters=[FeedbackFilters],
        responses=GivenSerializer(many=True),
    )
    def get(self, request: Request, slug: str) -> Response:
        """List the feedback, newest first."""
        return self.listed()


class FiguresView(ProjectView):
    """Figures of feedback. For managers."""

    @extend_schema(operation_id="feedback_figures", tags=["feedback"], responses=ThumbsSerializer(many=True))
    def get(self, request: Request, slug: str) -> Response:
        """Read thumbs by day and checkpoint, newest first."""
        return Response(ThumbsSerializer(thumbs_by_day(self.project), many=True).data)


class IncidentsView(ListView, ProjectView):
    """Patterns that look like abuse. For managers."""

    serializer_class = IncidentSerializer
    queryset = FeedbackIncident.objects.none()

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        return incidents_of(self.project)

    @extend_schema(
        operation_id="feedback_incidents_list",
        tags=["feedback"],
        responses=IncidentSerializer(many=True),
    )
    def get(self, request: Request, slug: str) -> Response:
        """List the incidents, newest first."""
        return self.listed()


class IncidentView(ProjectView):
    """One incident. For managers."""

    @extend_schema(
        operation_id="feedback_incidents_decide",
        tags=["feedback"],
        request=DecisionSerializer,
        responses=IncidentSerializer,
    )
    def patch(self, request: Request, slug: str, pk: int) -> Response:
        """Include the feedback of an incident, or exclude it again."""
        incident = get_object_or_404(self.project.feedback_incidents.select_related("project"), pk=pk)
        values = read_body(DecisionSerializer, request)
        if "is_included" in values:
            decide_incident(incident=incident, included=values["is_included"], decided_by=self.user)
        return Response(IncidentSerializer(incidents_of(self.project).get(pk=pk)).data)


class SettingsView(ProjectView):
    """Settings of stored requests and feedback. For managers."""

    @extend_schema(
        operation_id="feedback_settings_read", tags=["feedback"], responses=FeedbackSettingsSerializer
    )
    def get(self, request: Request, slug: str) -> Response:
        """Read the settings with rules and tokens."""
        return Response(FeedbackSettingsSerializer(settings_of(self.project)).data)

    @extend_schema(
        operation_id="feedback_settings_change",
        tags=["feedback"],
        request=ChangedSettingsSerializer,
        responses=FeedbackSettingsSerializer,
    )
    def patch(self, request: Request, slug: str) -> Response:
        """Change the settings that are sent."""
        changes = read_body(ChangedSettingsSerializer, request)
        settings = change_settings(project=self.project, changes=changes, changed_by=self.user)
        return Response(FeedbackSettingsSerializer(settings).data)


class PatternsView(ProjectView):
    """A trial of redaction patterns. For managers."""

    @extend_schema(
        operation_id="feedback_patterns_try",
        tags=["feedback"],
        request=SampleSerializer,
        responses=RedactedSerializer,
    )
    def post(self, request: Request, slug: str) -> Response:
        """Try patterns on a sample text, of which nothing is stored."""
        values = read_body(SampleSerializer, request)
        redact = Redactor(checked_patterns(values["patterns"]))
        try:
            redacted = redact(values["sample"])
        except TooSlowError as error:
            raise Refusal(
                "patterns_too_slow", _("The patterns take too long on this text."), field="patterns"
            ) from error
        return Response({"redacted": redacted, "redactions": redact.count})


class RuleView(ProjectView):
    """Rules of the selection for annotators. For managers."""

    @extend_schema(
        operation_id="feedback_rules_set",
        tags=["feedback"],
        request=ChangedRuleSerializer,
        responses=RuleSerializer,
    )
    def put(self, request: Request, slug: str) -> Response:
        """Set the rule of one reason."""
        values = read_body(ChangedRuleSerializer, request)
        rule = set_rule(project=self.project, changed_by=self.user, **values)
        return Response(RuleSerializer(rule).data)


class TokensView(ProjectView):
    """Tokens whose requests are stored. For managers."""

    @extend_schema(
        operation_id="feedback_tokens_add",
        tags=["feedback"],
        request=TokenIdSerializer,
        responses={201: OptInSerializer},
    )
    def post(self, request: Request, slug: str) -> Response:
        """Store the requests of one of the user's tokens."""
        token_id = read_body(TokenIdSerializer, request)["token"]
        token = ApiToken.objects.filter(pk=token_id, user=self.user).first()
        if token is None:
            raise Refusal("unknown_token", _("Choose one of your tokens."), field="token")
        row = opt_in(project=self.project, token=token, opted_by=self.user)
        return Response(OptInSerializer(row).data, status=201)


class StoredTokenView(ProjectView):
    """A token whose requests are stored. For managers."""

    @extend_schema(operation_id="feedback_tokens_remove", tags=["feedback"], responses={204: None})
    def delete(self, request: Request, slug: str, pk: int) -> Response:
        """Store no more requests of a token, by its id."""
        row = get_object_or_404(self.project.request_opt_ins.select_related("project", "token"), token=pk)
        opt_out(row=row, opted_by=self.user)
        return Response(status=204)


class FeedbackKeysView(ListView, ProjectView):
    """Publishable keys. For managers."""

    serializer_class = KeySerializer
    queryset = FeedbackKey.objects.none()

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        return self.project.feedback_keys.all()

    @extend_schema(operation_id="feedback_keys_list", tags=["feedback"], responses=KeySerializer(many=True))
    def get(self, request: Request, slug: str) -> Response:
        """List the keys, newest first, revoked ones included."""
        return self.listed()

    @extend_schema(
        operation_id="feedback_keys_create",
        tags=["feedback"],
        request=NewKeySerializer,
        responses={201: KeySerializer},
    )
    def post(self, request: Request, slug: str) -> Response:
        """Create a key for a web page."""
        name = read_body(NewKeySerializer, request)["name"]
        key = create_key(project=self.project, name=name, created_by=self.user)
        return Response(KeySerializer(key).data, status=201)


class FeedbackKeyView(ProjectView):
    """One publishable key. For managers."""

    @extend_schema(operation_id="feedback_keys_revoke", tags=["feedback"], responses={204: None})
    def delete(self, request: Request, slug: str, pk: int) -> Response:
        """Revoke a key, for good."""
        key = get_object_or_404(self.project.feedback_keys.select_related("project"), pk=pk)
        revoke_key(key=key, revoked_by=self.user)
        return Response(status=204)


class ErasureView(ProjectView):
    """Deletion of an end user. For managers."""

    @extend_schema(
        operation_id="feedback_erase",
        tags=["feedback"],
        request=EndUserSerializer,
        responses=ErasedSerializer,
    )
    def post(self, request: Request, slug: str) -> Response:
        """Delete all requests and feedback of an end user."""
        user = read_body(EndUserSerializer, request)["user"]
        erased = erase_user(project=self.project, user_id=user, erased_by=self.user)
        return Response(ErasedSerializer(erased).data)
