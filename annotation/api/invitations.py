"""Invitation links to a project."""

from typing import Any

from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from rest_framework import serializers

from annotation.api import fields
from annotation.api.base import ApiView, ProjectView
from annotation.api.members import MemberSerializer
from annotation.api.operations import PROJECT, Resource, Values
from annotation.choices import Role
from annotation.errors import Refusal
from annotation.models import Invitation, Membership
from annotation.services.projects.invitations import (
    MOST_DAYS,
    MOST_USES,
    accept_invitation,
    create_invitation,
    find_invitation,
    revoke_invitation,
)


@fields.of(
    Invitation, "id role note uses most_uses is_good email mail expires_at revoked_at created_by created_at"
)
class InvitationSerializer(serializers.ModelSerializer[Invitation]):
    """An invitation, without its link."""

    created_by = fields.text(source="created_by.username")
    is_good = fields.computed("Whether somebody may still join by it.")

    def get_is_good(self, invitation: Invitation) -> bool:
        return invitation.is_good(timezone.now())


@fields.more("secret link")
class MadeInvitationSerializer(InvitationSerializer):
    """An invitation with its link, which is shown only once; both are empty for one sent by e-mail."""

    secret = fields.text(allow_blank=True)
    link = fields.text("What is passed on.", allow_blank=True)


class NewInvitationSerializer(serializers.Serializer[Any]):
    """An invitation to create."""

    role = fields.choice(Role.choices)
    days = fields.integer(least=1, most=MOST_DAYS, default=7)
    most_uses = fields.integer("So many people may join.", least=1, most=MOST_USES, default=1)
    note = fields.text("Whom it is for.", most=100, default="")
    email = serializers.EmailField(
        max_length=254,
        required=False,
        default="",
        allow_blank=True,
        help_text="The link is sent to this address and is not in the response. Needs a mail server.",
    )


class AcceptSerializer(serializers.Serializer[Any]):
    """The secret at the end of an invitation's link."""

    secret = fields.text(most=200)


invitations = Resource(
    ProjectView,
    f"{PROJECT}invitations/",
    tag="projects",
    rows=lambda view: Invitation.objects.filter(project=view.project).select_related("created_by"),
)
invitation = invitations.item("<int:pk>/")
acceptance = Resource(ApiView, "invitations/accept/", tag="projects")

invitations.add_list(
    "invitations_list",
    InvitationSerializer,
    "List invitation links, including expired and revoked ones, newest first.",
)


# A response with a secret is not stored.
@invitations.post(
    takes=NewInvitationSerializer, returns=MadeInvitationSerializer, status=201, keeps_answers=False
)
def invitations_create(view: ProjectView, values: Values) -> Invitation:
    """Create an invitation link. Only this response holds it, or an e-mail to the address given."""
    made = create_invitation(project=view.project, created_by=view.user, **values)
    row: Any = made.invitation
    row.secret = made.secret
    address = reverse("invitation", kwargs={"secret": made.secret}) if made.secret else ""
    row.link = view.request.build_absolute_uri(address) if address else ""
    return made.invitation


@invitation.delete()
def invitations_revoke(view: ProjectView, invitation: Invitation) -> None:
    """Revoke a link permanently. Members who joined by it stay."""
    revoke_invitation(invitation=invitation, user=view.user)


@acceptance.post(takes=AcceptSerializer, returns=MemberSerializer)
def invitations_accept(view: ApiView, values: Values) -> Membership:
    """Join the project of an invitation link."""
    invitation = find_invitation(secret=values["secret"])
    if invitation is None:
        raise Refusal(
            "invitation_not_usable",
            _("This invitation is used up, expired or revoked. Ask for another one."),
            field="secret",
        )
    return accept_invitation(invitation=invitation, user=view.user)
