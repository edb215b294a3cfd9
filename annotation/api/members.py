"""Members of a project: their roles, limits, skills and groups."""

from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.base import ListView, ProjectView, read_body
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


class MembersView(ListView, ProjectView):
    """The members of a project. For managers."""

    serializer_class = MemberSerializer
    queryset = Membership.objects.none()

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        return self.project.memberships.select_related("user")

    @extend_schema(operation_id="members_list", tags=["projects"], responses=MemberSerializer(many=True))
    def get(self, request: Request, slug: str) -> Response:
        """List the members with their roles, newest first."""
        return self.listed()


class MemberView(ProjectView):
    """One member of a project. For managers; superusers add people by name."""

    @extend_schema(
        operation_id="members_set", tags=["projects"], request=RoleSerializer, responses=MemberSerializer
    )
    def put(self, request: Request, slug: str, username: str) -> Response:
        """Change a member's role, limits, skills and group. Superusers may add people, managers invite."""
        values = read_body(RoleSerializer, request)
        member = self._member(username)
        if member is not None:
            return Response(MemberSerializer(self._change(member, values)).data)
        self.require_superuser()
        person = User.objects.filter(username=username, is_machine=False, is_guest=False).first()
        if person is None:
            raise serializers.ValidationError(
                {"username": [_("Nobody has this name. Make the account first.")]}
            )
        added = add_member(project=self.project, user=person, role=Role(values["role"]))
        return Response(MemberSerializer(self._change(added, values)).data)

    @transaction.atomic
    def _change(self, member: Membership, values: Mapping[str, Any]) -> Membership:
        changed = change_role(membership=member, role=Role(values["role"]), changed_by=self.user)
        changes = {name: values[name] for name in ALLOTMENT if name in values}
        return change_allotment(membership=changed, changes=changes, changed_by=self.user)

    @extend_schema(operation_id="members_remove", tags=["projects"], request=None, responses={204: None})
    def delete(self, request: Request, slug: str, username: str) -> Response:
        """Remove a member. Their leases go back to the queue, their judgments stay."""
        member = self._member(username)
        if member is None:
            raise NotFound
        remove_member(membership=member, removed_by=self.user)
        return Response(status=204)

    def _member(self, username: str) -> Membership | None:
        members = self.project.memberships.select_related("user", "project")
        return members.filter(user__username=username).first()
