"""Members of a project: their roles, limits, skills and groups."""

from decimal import Decimal
from typing import Any

from django.db import transaction
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from rest_framework import serializers
from rest_framework.exceptions import NotFound

from annotation.api import fields
from annotation.api.base import ApiView, ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from annotation.choices import Role
from annotation.errors import Refusal
from annotation.models import Invitation, Membership, User
from annotation.models.people import LONGEST_GROUP, LONGEST_SKILL, MOST_SKILLS
from annotation.services.projects.invitations import (
    ALLOTMENT,
    MOST_DAYS,
    MOST_USES,
    accept_invitation,
    change_allotment,
    change_role,
    create_invitation,
    find_invitation,
    remove_member,
    revoke_invitation,
)
from annotation.services.projects.projects import add_member


@fields.of(
    Membership,
    "username name role daily_limit total_limit skills group hourly_wage item_pay guideline_seen "
    "qualified_at joined_at",
)
class MemberSerializer(serializers.ModelSerializer[Membership]):
    """The membership of one person in a project."""

    username = fields.text(source="user.username")
    name = fields.text(source="user.__str__")
    hourly_wage = fields.number("Null for the project's.", allow_null=True)
    item_pay = fields.number("Null for the project's.", allow_null=True)


class RoleSerializer(serializers.Serializer[Any]):
    """The role, the limits, the skills, the group and the pay to give a member."""

    role = fields.choice(Role.choices)
    daily_limit = fields.integer(
        "Comparisons a day; null for the project's limit. Left out, it stays as it is.",
        required=False,
        allow_null=True,
        least=1,
        most=fields.LARGEST_INTEGER,
    )
    total_limit = fields.integer(
        "Comparisons in all; null for no limit. Left out, it stays as it is.",
        required=False,
        allow_null=True,
        least=1,
        most=fields.LARGEST_INTEGER,
    )
    skills = fields.several(
        fields.text(most=LONGEST_SKILL),
        "What this person can judge, in the words of the project's allocation rules. Left out, it "
        "stays as it is.",
        required=False,
        most=MOST_SKILLS,
    )
    group = fields.text(
        "Group of annotators whose preferences reward models can learn; empty for none. Left out, "
        "it stays as it is.",
        required=False,
        allow_blank=True,
        most=LONGEST_GROUP,
    )

    hourly_wage = fields.number(
        "Pay of an hour; null for the project's. Left out, it stays as it is.",
        required=False,
        allow_null=True,
        least=0,
        most=999_999,
    )
    item_pay = fields.number(
        "Pay of an annotation; null for the project's. Left out, it stays as it is.",
        required=False,
        allow_null=True,
        least=0,
        most=999_999,
    )

    def validate_hourly_wage(self, wage: float | None) -> Decimal | None:
        """Return the wage as the database keeps it."""
        return None if wage is None else Decimal(wage).quantize(Decimal("0.01"))

    def validate_item_pay(self, pay: float | None) -> Decimal | None:
        """Return the pay as the database keeps it."""
        return None if pay is None else Decimal(pay).quantize(Decimal("0.01"))

    def validate_group(self, group: str) -> str:
        """Write a name with single spaces, so that a group has one spelling."""
        return " ".join(group.split())

    def validate_skills(self, skills: list[str]) -> list[str]:
        """Keep each skill once."""
        return list(dict.fromkeys(skills))


members = Resource(
    ProjectView,
    f"{PROJECT}members/",
    tag="projects",
    rows=lambda view: view.project.memberships.select_related("user", "project"),
)

members.add_list("members_list", MemberSerializer, "List the members with their roles, newest first.")


@members.put("<str:username>/", takes=RoleSerializer, returns=MemberSerializer)
def members_set(view: ProjectView, values: Values, username: str) -> Membership:
    """Change a member's role, limits, skills, group and pay. Superusers may add people, managers invite."""
    member = _member(view, username)
    if member is not None:
        return _change(view, member, values)
    view.require_superuser()
    person = User.objects.filter(username=username, is_machine=False, is_guest=False).first()
    if person is None:
        raise serializers.ValidationError({"username": [_("Nobody has this name. Make the account first.")]})
    return _change(view, add_member(project=view.project, user=person, role=Role(values["role"])), values)


@members.delete("<str:username>/")
def members_remove(view: ProjectView, username: str) -> None:
    """Remove a member. Their leases go back to the queue, their judgments stay."""
    member = _member(view, username)
    if member is None:
        raise NotFound
    remove_member(membership=member, removed_by=view.user)


def _member(view: ProjectView, username: str) -> Membership | None:
    members = view.project.memberships.select_related("user", "project")
    return members.filter(user__username=username).first()


@transaction.atomic
def _change(view: ProjectView, member: Membership, values: Values) -> Membership:
    changed = change_role(membership=member, role=Role(values["role"]), changed_by=view.user)
    changes = {name: values[name] for name in ALLOTMENT if name in values}
    return change_allotment(membership=changed, changes=changes, changed_by=view.user)


# Invitation links to a project.


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
