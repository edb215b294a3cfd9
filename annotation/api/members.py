"""Members of a project: their roles, limits, skills and groups."""

from typing import Any

from django.db import transaction
from django.utils.translation import gettext as _
from rest_framework import serializers
from rest_framework.exceptions import NotFound

from annotation.api import fields
from annotation.api.base import ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from annotation.choices import Role
from annotation.models import Membership, User
from annotation.models.allocation import LONGEST_GROUP, LONGEST_SKILL, MOST_SKILLS
from annotation.services.projects.members import ALLOTMENT, change_allotment, change_role, remove_member
from annotation.services.projects.projects import add_member


@fields.of(
    Membership,
    "username name role daily_limit total_limit skills group guideline_seen qualified_at joined_at",
)
class MemberSerializer(serializers.ModelSerializer[Membership]):
    """The membership of one person in a project."""

    username = fields.text(source="user.username")
    name = fields.text(source="user.__str__")


class RoleSerializer(serializers.Serializer[Any]):
    """The role, the limits, the skills and the group to give a member."""

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
    """Change a member's role, limits, skills and group. Superusers may add people, managers invite."""
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
