"""Invitation links to a project."""

from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.base import ApiView, ListView, ProjectView, read_body
from annotation.api.members import MemberSerializer
from annotation.choices import Role
from annotation.errors import Refusal
from annotation.models import Invitation
from annotation.services.projects.invitations import (
    MOST_DAYS,
    MOST_USES,
    accept_invitation,
    create_invitation,
    find_invitation,
    revoke_invitation,
)


class InvitationSerializer(serializers.ModelSerializer[Invitation]):
    """An invitation, without its link."""

    created_by = serializers.CharField(source="created_by.username")
    is_good = serializers.SerializerMethodField(help_text="Whether somebody may still join by it.")

    class Meta:
        model = Invitation
        fields: tuple[str, ...] = (
            *("id", "role", "note", "uses", "most_uses", "is_good", "email", "mail"),
            *("expires_at", "revoked_at", "created_by", "created_at"),
        )

    def get_is_good(self, invitation: Invitation) -> bool:
        return invitation.is_good(timezone.now())


class MadeInvitationSerializer(InvitationSerializer):
    """An invitation with its link, which is shown only once; both are empty for one sent by e-mail."""

    secret = serializers.CharField(allow_blank=True)
    link = serializers.CharField(allow_blank=True, help_text="What is passed on.")

    class Meta(InvitationSerializer.Meta):
        fields = (*InvitationSerializer.Meta.fields, "secret", "link")


class NewInvitationSerializer(serializers.Serializer[Any]):
    """An invitation to create."""

    role = serializers.ChoiceField(choices=Role.choices)
    days = serializers.IntegerField(min_value=1, max_value=MOST_DAYS, required=False, default=7)
    most_uses = serializers.IntegerField(
        min_value=1, max_value=MOST_USES, required=False, default=1, help_text="So many people may join."
    )
    note = serializers.CharField(
        max_length=100, required=False, default="", allow_blank=True, help_text="Whom it is for."
    )
    email = serializers.EmailField(
        max_length=254,
        required=False,
        default="",
        allow_blank=True,
        help_text="The link is sent to this address and is not in the response. Needs a mail server.",
    )


class AcceptSerializer(serializers.Serializer[Any]):
    """The secret at the end of an invitation's link."""

    secret = serializers.CharField(max_length=200)


class InvitationsView(ListView, ProjectView):
    """The invitations of a project. For managers."""

    # The answer to a POST holds a secret, which is not stored.
    keeps_answers = False
    serializer_class = InvitationSerializer
    queryset = Invitation.objects.none()

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        return self.project.invitations.select_related("created_by")

    @extend_schema(
        operation_id="invitations_list", tags=["projects"], responses=InvitationSerializer(many=True)
    )
    def get(self, request: Request, slug: str) -> Response:
        """List invitation links, including expired and revoked ones, newest first."""
        return self.listed()

    @extend_schema(
        operation_id="invitations_create",
        tags=["projects"],
        request=NewInvitationSerializer,
        responses={201: MadeInvitationSerializer},
    )
    def post(self, request: Request, slug: str) -> Response:
        """Create an invitation link. Only this response holds it, or an e-mail to the address given."""
        values = read_body(NewInvitationSerializer, request)
        made = create_invitation(project=self.project, created_by=self.user, **values)
        row: Any = made.invitation
        row.secret = made.secret
        address = reverse("invitation", kwargs={"secret": made.secret}) if made.secret else ""
        row.link = request.build_absolute_uri(address) if address else ""
        return Response(MadeInvitationSerializer(row).data, status=201)


class InvitationView(ProjectView):
    """One invitation of a project. For managers."""

    @extend_schema(operation_id="invitations_revoke", tags=["projects"], responses={204: None})
    def delete(self, request: Request, slug: str, pk: int) -> Response:
        """Revoke a link permanently. Members who joined by it stay."""
        invitation = get_object_or_404(Invitation, pk=pk, project=self.project)
        revoke_invitation(invitation=invitation, user=self.user)
        return Response(status=204)


class AcceptView(ApiView):
    """Acceptance of an invitation. For everyone who has its link."""

    @extend_schema(
        operation_id="invitations_accept",
        tags=["projects"],
        request=AcceptSerializer,
        responses={200: MemberSerializer},
    )
    def post(self, request: Request) -> Response:
        """Join the project of an invitation link."""
        secret = read_body(AcceptSerializer, request)["secret"]
        invitation = find_invitation(secret=secret)
        if invitation is None:
            raise Refusal(
                "invitation_not_usable",
                _("This invitation is used up, expired or revoked. Ask for another one."),
                field="secret",
            )
        return Response(MemberSerializer(accept_invitation(invitation=invitation, user=self.user)).data)
