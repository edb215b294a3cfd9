"""Projects with their guidelines and settings."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.base import ApiView, ListView, ProjectView, read_body
from annotation.choices import Role, TokenScope
from annotation.models import Category, Criterion, Guideline, Project, User
from annotation.models.allocation import ALL, LONGEST_SKILL, LONGEST_TAG
from annotation.selectors import access
from annotation.services.projects.projects import (
    acknowledge_guideline,
    archive_project,
    change_settings,
    create_project,
    publish_guideline,
)
from annotation.services.projects.templates import TEMPLATES, create_from_template

_QUESTIONS = (
    *("ask_verdict", "ask_strength", "ask_span_flags", "ask_missing_info"),
    *("ask_step_labels", "ask_correction"),
    *("ask_critique", "ask_comment", "ask_demonstration"),
)
_SETTINGS = (
    *("name", "description", *_QUESTIONS, "rate_side_by_side", "show_context"),
    *("overlap", "extra_overlap", "extra_overlap_share", "lease_minutes", "daily_limit", "hourly_wage"),
    *("acquisition", "control_share", "allocation"),
    *("retest_share", "gold_share", "gold_feedback", "qualification_pass_share"),
    *("review_disagreements", "review_random_share"),
)


class CategorySerializer(serializers.ModelSerializer[Category]):
    """An error category for spans or missing information."""

    class Meta:
        model = Category
        fields = (
            *("key", "label", "description", "scope", "granularity"),
            *("colour", "shortcut", "polarity", "severity_steps", "is_archived"),
        )


class CriterionSerializer(serializers.ModelSerializer[Criterion]):
    """A criterion on which every answer is rated."""

    class Meta:
        model = Criterion
        fields = ("key", "label", "description", "scale", "is_archived")


class ProjectSerializer(serializers.ModelSerializer[Project]):
    """A project as its members see it."""

    role = serializers.SerializerMethodField(help_text="One's own; empty for a superuser who is no member.")

    class Meta:
        model = Project
        fields: tuple[str, ...] = (
            "slug",
            "name",
            "description",
            "role",
            *_QUESTIONS,
            "created_at",
            "archived_at",
        )

    def get_role(self, project: Project) -> str:
        roles: Mapping[int, str] = self.context["roles"]
        return roles.get(project.pk, "")


class WholeProjectSerializer(ProjectSerializer):
    """A project with its questions and guideline version."""

    categories = CategorySerializer(many=True)
    criteria = CriterionSerializer(many=True)
    guideline_version = serializers.SerializerMethodField(help_text="The newest; null where there is none.")
    round = serializers.SerializerMethodField(help_text="The newest round for which there is work.")

    class Meta(ProjectSerializer.Meta):
        fields = (*ProjectSerializer.Meta.fields, "categories", "criteria", "guideline_version", "round")

    def get_guideline_version(self, project: Project) -> int | None:
        guideline = access.current_guideline(project)
        return guideline.version if guideline else None

    def get_round(self, project: Project) -> int:
        return access.current_round(project)


class NewProjectSerializer(serializers.Serializer[Any]):
    """A project to create."""

    template = serializers.ChoiceField(
        choices=list(TEMPLATES),
        required=False,
        help_text="Settings, categories, criteria and guidelines to start from; without one, the default "
        "settings and the three error categories of fine-grained RLHF.",
    )

    name = serializers.CharField(max_length=120)
    slug = serializers.SlugField(max_length=80, help_text="Its part of addresses.")
    description = serializers.CharField(required=False, default="", allow_blank=True)
    guideline = serializers.CharField(
        required=False, default="", allow_blank=True, help_text="The first version of its rules, in Markdown."
    )


class ArchiveSerializer(serializers.Serializer[Any]):
    """The archived state to give a project."""

    archived = serializers.BooleanField()


class AllocationRuleSerializer(serializers.Serializer[Any]):
    """A rule of who gets what."""

    tag = serializers.CharField(max_length=LONGEST_TAG)
    skill = serializers.CharField(max_length=LONGEST_SKILL)
    share = serializers.IntegerField(
        min_value=1,
        max_value=ALL,
        default=ALL,
        help_text="Percentage of the tag's comparisons that the rule reserves; the rest goes to everybody.",
    )


class SettingsSerializer(serializers.ModelSerializer[Project]):
    """The questions of a project and the rules by which work is assigned."""

    allocation = AllocationRuleSerializer(
        many=True,
        required=False,
        help_text="Comparisons of prompts with the tag go only to members who have the skill.",
    )

    hourly_wage = serializers.FloatField(
        required=False,
        allow_null=True,
        min_value=0,
        max_value=999_999,
        help_text="Cost of an hour of annotation, to the hundredth; null for none.",
    )

    class Meta:
        model = Project
        fields = _SETTINGS
        extra_kwargs = {name: {"required": False} for name in _SETTINGS}

    def validate_hourly_wage(self, wage: float | None) -> Decimal | None:
        """Return the wage as the database keeps it."""
        return None if wage is None else Decimal(wage).quantize(Decimal("0.01"))


class GuidelineSerializer(serializers.ModelSerializer[Guideline]):
    """A version of the guidelines."""

    class Meta:
        model = Guideline
        fields = ("version", "text", "created_at")


class NewGuidelineSerializer(serializers.Serializer[Any]):
    """Guidelines to publish."""

    text = serializers.CharField(max_length=200_000, help_text="Markdown.", trim_whitespace=False)


class SeenSerializer(serializers.Serializer[Any]):
    """The version of the guidelines that was read."""

    version = serializers.IntegerField(min_value=1, max_value=2**31 - 1)


class ProjectsView(ListView, ApiView):
    """The user's projects. For everyone; staff create them."""

    serializer_class = ProjectSerializer
    queryset = Project.objects.none()

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        return access.projects_for(self.user)

    def get_serializer_context(self) -> dict[str, Any]:
        """Add the user's roles, queried once for all rows."""
        return {**super().get_serializer_context(), "roles": _roles_of(self.user)}

    @extend_schema(operation_id="projects_list", tags=["projects"], responses=ProjectSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List the projects of which the user is a member; superusers see all."""
        return self.listed()

    @extend_schema(
        operation_id="projects_create",
        tags=["projects"],
        request=NewProjectSerializer,
        responses={201: WholeProjectSerializer},
    )
    def post(self, request: Request) -> Response:
        """Create a project and become its manager. For staff, and who has the permission to add projects."""
        if not access.may_create_projects(self.user):
            raise PermissionDenied
        values = read_body(NewProjectSerializer, request)
        create = create_from_template if "template" in values else create_project
        project = create(**values, created_by=self.user)
        return Response(_whole(project, self.user), status=201)


class ArchiveView(ProjectView):
    """A project put away, and brought back. For managers."""

    @extend_schema(
        operation_id="projects_archive",
        tags=["projects"],
        request=ArchiveSerializer,
        responses=WholeProjectSerializer,
    )
    def put(self, request: Request, slug: str) -> Response:
        """Archive a project, or restore it. An archived project hands out no work."""
        values = read_body(ArchiveSerializer, request)
        changed = archive_project(project=self.project, archived=values["archived"], changed_by=self.user)
        return Response(_whole(changed, self.user))


class ProjectDetailView(ProjectView):
    """A project. For members."""

    role = Role.ANNOTATOR

    @extend_schema(operation_id="projects_read", tags=["projects"], responses=WholeProjectSerializer)
    def get(self, request: Request, slug: str) -> Response:
        """Read a project with its categories, criteria and questions."""
        return Response(_whole(self.project, self.user))


class SettingsView(ProjectView):
    """The settings of a project. For managers."""

    @extend_schema(operation_id="projects_settings_read", tags=["projects"], responses=SettingsSerializer)
    def get(self, request: Request, slug: str) -> Response:
        """Read the settings hidden from annotators: shares of gold items, overlap, strategy and so on."""
        return Response(SettingsSerializer(self.project).data)

    @extend_schema(
        operation_id="projects_settings_change",
        tags=["projects"],
        request=SettingsSerializer,
        responses=SettingsSerializer,
    )
    def patch(self, request: Request, slug: str) -> Response:
        """Change the fields that are sent. Honours `If-Match`."""
        values = read_body(SettingsSerializer, request)
        with transaction.atomic():
            locked = Project.objects.select_for_update(no_key=True).get(pk=self.project.pk)
            self.require_match(SettingsSerializer(locked).data)
            changed = change_settings(project=locked, settings=values, changed_by=self.user)
        return Response(SettingsSerializer(changed).data)


class GuidelinesView(ListView, ProjectView):
    """The guidelines of a project. For members; managers publish them."""

    role = Role.ANNOTATOR
    serializer_class = GuidelineSerializer
    queryset = Guideline.objects.none()

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        return self.project.guidelines.all()

    @extend_schema(
        operation_id="guidelines_list", tags=["projects"], responses=GuidelineSerializer(many=True)
    )
    def get(self, request: Request, slug: str) -> Response:
        """List all versions of the guidelines, newest first."""
        return self.listed()

    @extend_schema(
        operation_id="guidelines_publish",
        tags=["projects"],
        request=NewGuidelineSerializer,
        responses={201: GuidelineSerializer},
    )
    def post(self, request: Request, slug: str) -> Response:
        """Publish a version; the current text adds none. For managers."""
        if not access.may(self.user, self.project, Role.MANAGER):
            raise PermissionDenied
        values = read_body(NewGuidelineSerializer, request)
        published = publish_guideline(project=self.project, text=values["text"], author=self.user)
        return Response(GuidelineSerializer(published).data, status=201)


class GuidelinesSeenView(ProjectView):
    """The user's acknowledgement of the guidelines. For members."""

    role = Role.ANNOTATOR
    changes = TokenScope.LABEL

    @extend_schema(
        operation_id="guidelines_acknowledge",
        tags=["projects"],
        request=SeenSerializer,
        responses={204: None},
    )
    def post(self, request: Request, slug: str) -> Response:
        """Acknowledge the guidelines up to a version."""
        values = read_body(SeenSerializer, request)
        acknowledge_guideline(project=self.project, user=self.user, version=values["version"])
        return Response(status=204)


def _roles_of(user: User) -> dict[int, str]:
    return dict(user.memberships.values_list("project", "role"))


def _whole(project: Project, user: User) -> Any:
    return WholeProjectSerializer(project, context={"roles": _roles_of(user)}).data
