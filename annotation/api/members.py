"""Members of a project: their roles, limits, skills and groups."""

from typing import Any

from django.db import transaction
from django.utils.translation import gettext as _
from rest_framework import serializers
from rest_framework.exceptions import NotFound

from annotation.api.base import ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from annotation.choices import Role
from annotation.models import Membership, User
from annotation.models.allocation import LONGEST_GROUP, LONGEST_SKILL, MOST_SKILLS
from annotation.services.projects.members import ALLOTMENT, change_allotment, change_role, remove_member
from annotation.services.projects.projects import add_member


class MemberSerializer(serializers.ModelSerializer[Membership]):
    """The membership of one person in a project."""

    username = serializers.CharField(source="user.username")
    name = serializers.CharField(source="user.__str__")

    class Meta:
        model = Membership
        fields = (
            *("username", "name", "role", "daily_limit", "total_limit", "skills", "group"),
            *("guideline_seen", "qualified_at", "joined_at"),
        )


class RoleSerializer(serializers.Serializer[Any]):
    """The role, the limits, the skills and the group to give a member."""

    role = serializers.ChoiceField(choices=Role.choices)
    daily_limit = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=1,
        max_value=2**31 - 1,
        help_text="Comparisons a day; null for the project's limit. Left out, it stays as it is.",
    )
    total_limit = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=1,
        max_value=2**31 - 1,
        help_text="Comparisons in all; null for no limit. Left out, it stays as it is.",
    )
    skills = serializers.ListField(
        child=serializers.CharField(max_length=LONGEST_SKILL),
        required=False,
        max_length=MOST_SKILLS,
        help_text="What this person can judge, in the words of the project's allocation rules. Left out, it "
        "stays as it is.",
    )
    group = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=LONGEST_GROUP,
        help_text="Group of annotators whose preferences reward models can learn; empty for none. Left out, "
        "it stays as it is.",
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
