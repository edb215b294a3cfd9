"""Projects with their members, guidelines and what was done in them."""

from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation import selectors
from annotation.api.base import ApiView, ListView, ProjectView, read_body
from annotation.choices import Role, TokenScope
from annotation.models import Category, Criterion, Guideline, Membership, Project, User
from annotation.services.projects import (
    acknowledge_guideline,
    add_member,
    change_settings,
    create_project,
    publish_guideline,
)

_QUESTIONS = (
    *("ask_verdict", "ask_strength", "ask_span_flags", "ask_missing_info", "ask_correction"),
    *("ask_critique", "ask_comment", "ask_demonstration"),
)
_SETTINGS = (
    *("name", "description", *_QUESTIONS, "rate_side_by_side"),
    *("overlap", "extra_overlap", "extra_overlap_share", "lease_minutes", "daily_limit"),
    *("acquisition", "control_share"),
    *("retest_share", "gold_share", "gold_feedback", "qualification_pass_share"),
    *("review_disagreements", "review_random_share"),
)


class CategorySerializer(serializers.ModelSerializer[Category]):
    """One kind of error that can be marked on, or missed in, an answer."""

    class Meta:
        model = Category
        fields = (
            *("key", "label", "description", "scope", "granularity"),
            *("colour", "shortcut", "polarity", "severity_steps"),
        )


class CriterionSerializer(serializers.ModelSerializer[Criterion]):
    """One thing by which every answer is rated."""

    class Meta:
        model = Criterion
        fields = ("key", "label", "description", "scale")


class ProjectSerializer(serializers.ModelSerializer[Project]):
    """A project as its members see it."""

    role = serializers.SerializerMethodField(help_text="One's own; empty for a superuser who is no member.")

    class Meta:
        model = Project
        fields: tuple[str, ...] = ("slug", "name", "description", "role", *_QUESTIONS, "created_at")

    def get_role(self, project: Project) -> str:
        """Who asks stands in the context."""
        roles: Mapping[int, str] = self.context["roles"]
        return roles.get(project.pk, "")


class WholeProjectSerializer(ProjectSerializer):
    """A project with what its answers are checked against."""

    categories = CategorySerializer(many=True)
    criteria = CriterionSerializer(many=True)
    guideline_version = serializers.SerializerMethodField(help_text="The newest; null where there is none.")
    round = serializers.SerializerMethodField(help_text="The newest round for which there is work.")

    class Meta(ProjectSerializer.Meta):
        fields = (*ProjectSerializer.Meta.fields, "categories", "criteria", "guideline_version", "round")

    def get_guideline_version(self, project: Project) -> int | None:
        """Of the newest rules."""
        guideline = selectors.current_guideline(project)
        return guideline.version if guideline else None

    def get_round(self, project: Project) -> int:
        """Its number."""
        return selectors.current_round(project)


class NewProjectSerializer(serializers.Serializer[Any]):
    """A project to be made."""

    name = serializers.CharField(max_length=120)
    slug = serializers.SlugField(max_length=80, help_text="Its part of addresses.")
    description = serializers.CharField(required=False, default="", allow_blank=True)
    guideline = serializers.CharField(
        required=False, default="", allow_blank=True, help_text="The first version of its rules, in Markdown."
    )


class SettingsSerializer(serializers.ModelSerializer[Project]):
    """What a project asks, and how its work is given out."""

    class Meta:
        model = Project
        fields = _SETTINGS
        extra_kwargs = {name: {"required": False} for name in _SETTINGS}


class MemberSerializer(serializers.ModelSerializer[Membership]):
    """One person's part in a project."""

    username = serializers.CharField(source="user.username")
    name = serializers.CharField(source="user.__str__")

    class Meta:
        model = Membership
        fields = ("username", "name", "role", "guideline_seen", "qualified_at", "joined_at")


class RoleSerializer(serializers.Serializer[Any]):
    """The role that a member is to have."""

    role = serializers.ChoiceField(choices=Role.choices)


class GuidelineSerializer(serializers.ModelSerializer[Guideline]):
    """One version of a project's rules."""

    class Meta:
        model = Guideline
        fields = ("version", "text", "created_at")


class NewGuidelineSerializer(serializers.Serializer[Any]):
    """Rules to be published."""

    text = serializers.CharField(max_length=200_000, help_text="Markdown.", trim_whitespace=False)


class SeenSerializer(serializers.Serializer[Any]):
    """Which version of the rules was read."""

    version = serializers.IntegerField(min_value=1, max_value=2**31 - 1)


class ProjectsView(ListView, ApiView):
    """The projects of who asks. For everyone; superusers make them."""

    serializer_class = ProjectSerializer
    queryset = Project.objects.none()

    def rows(self, asked: Mapping[str, Any]) -> QuerySet[Any]:
        """One's own."""
        return selectors.projects_for(self.user)

    def get_serializer_context(self) -> dict[str, Any]:
        """With one's roles, looked up once."""
        return {**super().get_serializer_context(), "roles": _roles_of(self.user)}

    @extend_schema(operation_id="projects_list", tags=["projects"], responses=ProjectSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List the projects of which one is a member; superusers see all."""
        return self.listed()

    @extend_schema(
        operation_id="projects_create",
        tags=["projects"],
        request=NewProjectSerializer,
        responses={201: WholeProjectSerializer},
    )
    def post(self, request: Request) -> Response:
        """Make a project with the three error categories of fine-grained RLHF. For superusers."""
        self.require_superuser()
        told = read_body(NewProjectSerializer, request)
        project = create_project(**told, created_by=self.user)
        return Response(_whole(project, self.user), status=201)


class ProjectDetailView(ProjectView):
    """A project. For members."""

    role = Role.ANNOTATOR

    @extend_schema(operation_id="projects_read", tags=["projects"], responses=WholeProjectSerializer)
    def get(self, request: Request, slug: str) -> Response:
        """Read a project with its categories, its criteria and what it asks."""
        return Response(_whole(self.project, self.user))


class SettingsView(ProjectView):
    """How a project's work is given out. For managers; superusers change it."""

    @extend_schema(operation_id="projects_settings_read", tags=["projects"], responses=SettingsSerializer)
    def get(self, request: Request, slug: str) -> Response:
        """Read what annotators are not told: shares of known items, overlap, strategy and the like."""
        return Response(SettingsSerializer(self.project).data)

    @extend_schema(
        operation_id="projects_settings_change",
        tags=["projects"],
        request=SettingsSerializer,
        responses=SettingsSerializer,
    )
    def patch(self, request: Request, slug: str) -> Response:
        """Change what is sent and leave the rest. Honours `If-Match`. For superusers."""
        self.require_superuser()
        with transaction.atomic():
            locked = Project.objects.select_for_update(no_key=True).get(pk=self.project.pk)
            self.require_match(SettingsSerializer(locked).data)
            told = read_body(SettingsSerializer, request)
            changed = change_settings(project=locked, settings=told, changed_by=self.user)
        return Response(SettingsSerializer(changed).data)


class MembersView(ListView, ProjectView):
    """The members of a project. For managers."""

    serializer_class = MemberSerializer
    queryset = Membership.objects.none()

    def rows(self, asked: Mapping[str, Any]) -> QuerySet[Any]:
        """Everyone who takes part."""
        return self.project.memberships.select_related("user")

    @extend_schema(operation_id="members_list", tags=["projects"], responses=MemberSerializer(many=True))
    def get(self, request: Request, slug: str) -> Response:
        """List the members with their roles, newest first."""
        return self.listed()


class MemberView(ProjectView):
    """One member of a project. For who is a superuser."""

    @extend_schema(
        operation_id="members_set", tags=["projects"], request=RoleSerializer, responses=MemberSerializer
    )
    def put(self, request: Request, slug: str, username: str) -> Response:
        """Make someone a member with a role, or give a member another role."""
        self.require_superuser()
        told = read_body(RoleSerializer, request)
        person = User.objects.filter(username=username, is_machine=False, is_guest=False).first()
        if person is None:
            raise serializers.ValidationError({"username": ["Nobody has this name. Make the account first."]})
        added = add_member(project=self.project, user=person, role=Role(told["role"]))
        return Response(MemberSerializer(added).data)


class GuidelinesView(ListView, ProjectView):
    """The rules of a project. For members; superusers publish them."""

    role = Role.ANNOTATOR
    serializer_class = GuidelineSerializer
    queryset = Guideline.objects.none()

    def rows(self, asked: Mapping[str, Any]) -> QuerySet[Any]:
        """All versions."""
        return self.project.guidelines.all()

    @extend_schema(
        operation_id="guidelines_list", tags=["projects"], responses=GuidelineSerializer(many=True)
    )
    def get(self, request: Request, slug: str) -> Response:
        """List all versions of the rules, newest first."""
        return self.listed()

    @extend_schema(
        operation_id="guidelines_publish",
        tags=["projects"],
        request=NewGuidelineSerializer,
        responses={201: GuidelineSerializer},
    )
    def post(self, request: Request, slug: str) -> Response:
        """Publish a version; the text that is current already adds nothing. For superusers."""
        self.require_superuser()
        told = read_body(NewGuidelineSerializer, request)
        published = publish_guideline(project=self.project, text=told["text"], author=self.user)
        return Response(GuidelineSerializer(published).data, status=201)


class GuidelinesSeenView(ProjectView):
    """That one has read the rules. For members."""

    role = Role.ANNOTATOR
    changes = TokenScope.LABEL

    @extend_schema(
        operation_id="guidelines_acknowledge",
        tags=["projects"],
        request=SeenSerializer,
        responses={204: None},
    )
    def post(self, request: Request, slug: str) -> Response:
        """Say that one has read the rules up to a version."""
        told = read_body(SeenSerializer, request)
        acknowledge_guideline(project=self.project, user=self.user, version=told["version"])
        return Response(status=204)


def _roles_of(user: User) -> dict[int, str]:
    return dict(user.memberships.values_list("project", "role"))


def _whole(project: Project, user: User) -> Any:
    return WholeProjectSerializer(project, context={"roles": _roles_of(user)}).data
