"""Projects with their guidelines and settings."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import PermissionDenied

from annotation.api import fields
from annotation.api.base import ApiView, Filters, ProjectView
from annotation.api.operations import PROJECT, Resource, Values, superusers
from annotation.choices import (
    CategoryScope,
    Granularity,
    Polarity,
    QuestionKind,
    QuestionSubject,
    RatingScale,
    Role,
    TokenScope,
)
from annotation.errors import Refusal
from annotation.exchange.project_file import MOST_BYTES, read
from annotation.models import (
    AuditEntry,
    Category,
    Criterion,
    Guideline,
    Project,
    ProjectQuestion,
    Rubric,
    RubricCriterion,
    RubricVersion,
    User,
)
from annotation.models.people import ALL, LONGEST_SKILL, LONGEST_TAG
from annotation.models.projects import QUESTIONS
from annotation.record.questions import Choice, Condition, Question
from annotation.selectors import access
from annotation.selectors.configuration import configuration_of
from annotation.selectors.rubrics import rubrics_of
from annotation.services.projects.project_questions import (
    LONGEST_HELP,
    LONGEST_KEY,
    LONGEST_LABEL,
    LONGEST_TEXT,
    LONGEST_UNIT,
    MOST_CHOICES,
    ask_again,
    ask_only_new,
    ask_split_again,
    ask_split_only_new,
    newest,
    save_question,
)
from annotation.services.projects.projects import (
    acknowledge_guideline,
    archive_project,
    change_settings,
    create_project,
    publish_guideline,
)
from annotation.services.projects.questions import (
    archive_question,
    delete_question,
    order_questions,
    set_category,
    set_criterion,
)
from annotation.services.projects.removal import bin_for, delete_project, restore_project
from annotation.services.projects.rubrics import (
    MOST_CHARACTERS,
    MOST_CRITERIA,
    MOST_WEIGHT,
    RubricCriterionInput,
    ask_rubric,
    publish_rubric,
    save_rubric,
)
from annotation.services.projects.templates import TEMPLATES, create_from_template

_SETTINGS = (
    *("name", "description", *QUESTIONS, "rate_side_by_side", "show_context"),
    *("overlap", "extra_overlap", "extra_overlap_share", "lease_minutes", "daily_limit"),
    *("hourly_wage", "item_pay"),
    *("acquisition", "control_share", "allocation"),
    *("retest_share", "gold_share", "gold_feedback", "qualification_pass_share"),
    "records_pastes",
    *("review_disagreements", "review_random_share"),
    *("review_every", "review_first", "review_below_agreement"),
)


@fields.of(
    Category,
    "key label description scope granularity colour shortcut polarity severity_steps parent needs_note "
    "is_archived",
)
class CategorySerializer(serializers.ModelSerializer[Category]):
    """A category of spans or missing information."""

    parent = fields.text(  # type: ignore[assignment]  # a field, no serializer above
        "Key of the category that it is a part of; null for none.",
        source="parent.key",
        default=None,
        allow_null=True,
    )


@fields.of(Criterion, "key label description scale is_archived")
class CriterionSerializer(serializers.ModelSerializer[Criterion]):
    """A criterion on which every answer is rated."""


class ChoiceSerializer(serializers.Serializer[Any]):
    """A choice, or a point of a scale."""

    key = fields.text("Of a point of a scale its number.", most=LONGEST_KEY)
    label = fields.text(default="", most=LONGEST_LABEL)  # type: ignore[assignment]
    shortcut = fields.text("The key on the keyboard that chooses it.", default="", most=1)


class ConditionSerializer(serializers.Serializer[Any]):
    """An earlier question whose answer shows a question."""

    question = fields.text("Its key.", most=LONGEST_KEY)
    values = fields.several(fields.text(most=LONGEST_KEY), "Keys of its choices, any of them.", least=1)


class QuestionValuesSerializer(serializers.Serializer[Any]):
    """A question as it is to be asked."""

    kind = fields.choice(QuestionKind.choices, "Chosen once, when it is made.")
    subject = fields.choice(
        QuestionSubject.choices, "Chosen once, when it is made.", default=QuestionSubject.COMPARISON
    )
    text = fields.text("What annotators read. Another one is a new version.", most=LONGEST_TEXT)
    help_text = fields.text(default="", most=LONGEST_HELP)  # type: ignore[assignment]
    is_required = fields.flag("No annotation without an answer, where it is shown.", default=False)
    choices = fields.several(
        ChoiceSerializer(), "Of a scale its points, the lowest first.", most=MOST_CHOICES, default=list
    )
    unit = fields.text("Of a number.", default="", most=LONGEST_UNIT)
    least = fields.number("The smallest number; null sets no bound.", allow_null=True, default=None)
    most = fields.number("The largest number; null sets no bound.", allow_null=True, default=None)
    shown_when = ConditionSerializer(allow_null=True, default=None, help_text="Null shows it always.")
    categories = fields.several(
        fields.text(most=LONGEST_KEY),
        "Of a question about spans: keys of the categories whose spans it is asked of; none for all.",
        most=200,
        default=list,
    )


class QuestionSerializer(QuestionValuesSerializer):
    """A question of the project in its newest version."""

    key = fields.text()
    version = fields.integer("Answers keep the version that they answered.")
    is_archived = fields.flag("Not asked any more; annotations that answer it keep their answer.")


@fields.of(Project, "slug name description role", *QUESTIONS, "created_at archived_at")
class ProjectSerializer(serializers.ModelSerializer[Project]):
    """A project as its members see it."""

    role = fields.computed("One's own; empty for a superuser who is no member.")

    def get_role(self, project: Project) -> str:
        roles: Mapping[int, str] = self.context["roles"]
        return roles.get(project.pk, "")


@fields.more("categories criteria questions guideline_version round")
class WholeProjectSerializer(ProjectSerializer):
    """A project with its questions and guideline version."""

    categories = CategorySerializer(many=True)
    criteria = CriterionSerializer(many=True)
    questions = fields.computed("The additional questions in their order, each in its newest version.")
    guideline_version = fields.computed("The newest; null where there is none.")
    round = fields.computed("The newest round for which there is work.")

    @extend_schema_field(QuestionSerializer(many=True))
    def get_questions(self, project: Project) -> Any:
        return QuestionSerializer(configuration_of(project).questions, many=True).data

    def get_guideline_version(self, project: Project) -> int | None:
        guideline = access.current_guideline(project)
        return guideline.version if guideline else None

    def get_round(self, project: Project) -> int:
        return access.current_round(project)


class NewProjectSerializer(serializers.Serializer[Any]):
    """A project to create."""

    template = fields.choice(
        list(TEMPLATES),
        "Settings, categories, criteria and guidelines to start from; without one, the default "
        "settings and the three error categories of fine-grained RLHF.",
        required=False,
    )

    name = fields.text(most=120)
    slug = serializers.SlugField(max_length=80, help_text="Its part of addresses.")
    description = fields.text(default="")
    guideline = fields.text("The first version of its rules, in Markdown.", default="")
    file = fields.text(
        "A project file to begin with, in YAML; then without template, description and guideline.",
        default="",
        most=MOST_BYTES,
        trim_whitespace=False,
    )


class ArchiveSerializer(serializers.Serializer[Any]):
    """The archived state to give a project."""

    archived = fields.flag()


class AllocationRuleSerializer(serializers.Serializer[Any]):
    """A rule of who gets what."""

    tag = fields.text(most=LONGEST_TAG)
    skill = fields.text(most=LONGEST_SKILL)
    share = fields.integer(
        "Percentage of the tag's comparisons that the rule reserves; the rest goes to everybody.",
        least=1,
        most=ALL,
        default=ALL,
    )


class SettingsSerializer(serializers.ModelSerializer[Project]):
    """The questions of a project and the rules by which work is assigned."""

    allocation = AllocationRuleSerializer(
        many=True,
        required=False,
        help_text="Comparisons of prompts with the tag go only to members who have the skill.",
    )

    hourly_wage = fields.number(
        "Cost of an hour of annotation, to the hundredth; null for none.",
        required=False,
        allow_null=True,
        least=0,
        most=999_999,
    )

    item_pay = fields.number(
        "Pay of an annotation, to the hundredth; null for none.",
        required=False,
        allow_null=True,
        least=0,
        most=999_999,
    )

    class Meta:
        model = Project
        fields = _SETTINGS
        extra_kwargs = {name: {"required": False} for name in _SETTINGS}

    def validate_hourly_wage(self, wage: float | None) -> Decimal | None:
        """Return the wage as the database keeps it."""
        return None if wage is None else Decimal(wage).quantize(Decimal("0.01"))

    def validate_item_pay(self, pay: float | None) -> Decimal | None:
        """Return the pay as the database keeps it."""
        return None if pay is None else Decimal(pay).quantize(Decimal("0.01"))


@fields.of(Guideline, "version text created_at")
class GuidelineSerializer(serializers.ModelSerializer[Guideline]):
    """A version of the guidelines."""


class NewGuidelineSerializer(serializers.Serializer[Any]):
    """Guidelines to publish."""

    text = fields.text("Markdown.", most=200_000, trim_whitespace=False)


@fields.of(Project, "id slug name deleted_at")
class DeletedProjectSerializer(serializers.ModelSerializer[Project]):
    """A project in the bin."""


class SeenSerializer(serializers.Serializer[Any]):
    """The version of the guidelines that was read."""

    version = fields.integer(least=1, most=fields.LARGEST_INTEGER)


projects = Resource(
    ApiView,
    "projects/",
    tag="projects",
    rows=lambda view: access.projects_for(view.user),
    context=lambda view: {"roles": _roles_of(view.user)},
)
project = Resource(
    ProjectView,
    PROJECT,
    tag="projects",
    find=lambda view: view.project,
    context=lambda view: {"roles": _roles_of(view.user)},
)
deleted_projects = Resource(
    ApiView,
    "bin/",
    tag="projects",
    rows=lambda view: bin_for(view.user),
    context=lambda view: {"roles": _roles_of(view.user)},
)
deleted_project = deleted_projects.item("<int:pk>/")
guidelines = Resource(
    ProjectView, f"{PROJECT}guidelines/", tag="projects", rows=lambda view: view.project.guidelines.all()
)

projects.add_list(
    "projects_list",
    ProjectSerializer,
    "List the projects of which the user is a member; superusers see all.",
)
guidelines.add_list(
    "guidelines_list",
    GuidelineSerializer,
    "List all versions of the guidelines, newest first.",
    role=Role.ANNOTATOR,
)


def _require_creator(view: ApiView) -> None:
    if not access.may_create_projects(view.user):
        raise PermissionDenied


@projects.post(
    takes=NewProjectSerializer, returns=WholeProjectSerializer, status=201, requires=_require_creator
)
def projects_create(view: ApiView, values: Values) -> Project:
    """Create a project and become its manager. For staff, and who has the permission to add projects."""
    if file := values.pop("file"):
        if values.get("template") or values["description"] or values["guideline"]:
            raise Refusal(
                "file_beside_template",
                _("A project file says all of it. Leave out template, description and guideline."),
                field="file",
            )
        return read(file).create(slug=values["slug"], name=values["name"], by=view.user)
    create = create_from_template if "template" in values else create_project
    return create(**values, created_by=view.user)


@project.get(returns=WholeProjectSerializer, role=Role.ANNOTATOR)
def projects_read(view: ProjectView, project: Project) -> Project:
    """Read a project with its categories, criteria and questions."""
    return project


@project.put("archive/", takes=ArchiveSerializer, returns=WholeProjectSerializer)
def projects_archive(view: ProjectView, project: Project, values: Values) -> Project:
    """Archive a project, or restore it. An archived project hands out no work."""
    return archive_project(project=project, archived=values["archived"], changed_by=view.user)


@project.delete()
def projects_delete(view: ProjectView, project: Project) -> None:
    """Put a project into the bin. It can be brought back for 30 days. For managers."""
    delete_project(project=project, deleted_by=view.user)


@deleted_projects.get_list(DeletedProjectSerializer)
def bin_list(view: ApiView) -> QuerySet[Project]:
    """List the deleted projects that you may bring back."""
    return bin_for(view.user)


@deleted_project.post("restore/", returns=WholeProjectSerializer)
def bin_restore(view: ApiView, project: Project) -> Project:
    """Bring a project back from the bin. For its managers."""
    return restore_project(project=project, restored_by=view.user)


@project.get("settings/", returns=SettingsSerializer)
def projects_settings_read(view: ProjectView, project: Project) -> Project:
    """Read the settings hidden from annotators: shares of gold items, overlap, strategy and so on."""
    return project


@project.patch("settings/", takes=SettingsSerializer, returns=SettingsSerializer, locks=True)
def projects_settings_change(view: ProjectView, project: Project, values: Values) -> Project:
    """Change the fields that are sent. Honours `If-Match`."""
    return change_settings(project=project, settings=values, changed_by=view.user)


@guidelines.post(takes=NewGuidelineSerializer, returns=GuidelineSerializer, status=201)
def guidelines_publish(view: ProjectView, values: Values) -> Guideline:
    """Publish a version; the current text adds none. For managers."""
    return publish_guideline(project=view.project, text=values["text"], author=view.user)


@guidelines.post("seen/", takes=SeenSerializer, role=Role.ANNOTATOR, scope=TokenScope.LABEL)
def guidelines_acknowledge(view: ProjectView, values: Values) -> None:
    """Acknowledge the guidelines up to a version."""
    acknowledge_guideline(project=view.project, user=view.user, version=values["version"])


def _roles_of(user: User) -> dict[int, str]:
    return dict(user.memberships.values_list("project", "role"))


# The categories and criteria of a project, which `projects_read` lists.


class QuestionValues(serializers.Serializer[Any]):
    """The fields shared by categories and criteria."""

    label = fields.text("What annotators read.", most=80)  # type: ignore[assignment]
    description = fields.text(default="", most=2000)
    is_archived = fields.flag("Not asked any more; annotations that use it keep it.", required=False)


class CategoryValuesSerializer(QuestionValues):
    """The new values of a category."""

    scope = fields.choice(CategoryScope.choices, "Chosen once, when it is made.", required=False)
    granularity = fields.choice(Granularity.choices, required=False)
    colour = serializers.RegexField(r"^#[0-9a-fA-F]{6}$", required=False)
    shortcut = fields.text(most=1, required=False, allow_blank=True)
    polarity = fields.choice(Polarity.choices, required=False)
    severity_steps = fields.integer(least=0, most=9, required=False)
    parent = fields.text(  # type: ignore[assignment]
        "Key of a category of spans that this one is a part of; null for none.",
        most=60,
        required=False,
        allow_null=True,
    )
    needs_note = fields.flag("No span of it without a note.", required=False)


class CategoryStateSerializer(serializers.Serializer[Any]):
    """Who is asked for sub-categories."""

    ask_again = fields.flag(
        "True puts spans of the category itself again to who marked them, for a sub-category; false takes "
        "back what is not answered yet."
    )


class CriterionValuesSerializer(QuestionValues):
    """The new values of a criterion."""

    scale = fields.choice(RatingScale.choices, "Chosen once, when it is made.", required=False)


class OrderSerializer(serializers.Serializer[Any]):
    """The order of the categories or criteria."""

    keys = fields.several(fields.text(most=60), "Each key once.", most=1000)


categories = Resource(ProjectView, f"{PROJECT}categories/", tag="projects")
category = categories.item("<slug:key>/", rows=lambda view: view.project.categories.all())
criteria = Resource(ProjectView, f"{PROJECT}criteria/", tag="projects")
criterion = criteria.item("<slug:key>/", rows=lambda view: view.project.criteria.all())


@categories.put(takes=OrderSerializer, returns=[CategorySerializer])
def categories_order(view: ProjectView, values: Values) -> Any:
    """Put the categories in an order, as the labelling screen shows them."""
    return order_questions(kind=Category, project=view.project, keys=values["keys"], changed_by=view.user)


@categories.put("<slug:key>/", takes=CategoryValuesSerializer, returns=CategorySerializer)
def categories_set(view: ProjectView, values: Values, key: str) -> Category:
    """Create or change a category; fields left out keep their value or get the default."""
    return set_category(project=view.project, key=key, values=values, changed_by=view.user)


@category.patch(takes=CategoryStateSerializer, returns=CategorySerializer)
def categories_state(view: ProjectView, category: Category, values: Values) -> Category:
    """Put the spans of a category that was split again to who marked them, or only to new judgments."""
    change = ask_split_again if values["ask_again"] else ask_split_only_new
    change(category=category, asked_by=view.user)
    return category


@category.delete()
def categories_delete(view: ProjectView, category: Category) -> None:
    """Delete a category that no judgment uses."""
    delete_question(question=category, deleted_by=view.user)


@criteria.put(takes=OrderSerializer, returns=[CriterionSerializer])
def criteria_order(view: ProjectView, values: Values) -> Any:
    """Put the criteria in an order, as the labelling screen shows them."""
    return order_questions(kind=Criterion, project=view.project, keys=values["keys"], changed_by=view.user)


@criteria.put("<slug:key>/", takes=CriterionValuesSerializer, returns=CriterionSerializer)
def criteria_set(view: ProjectView, values: Values, key: str) -> Criterion:
    """Create or change a criterion; fields left out keep their value or get the default."""
    return set_criterion(project=view.project, key=key, values=values, changed_by=view.user)


@criterion.delete()
def criteria_delete(view: ProjectView, criterion: Criterion) -> None:
    """Delete a criterion without ratings."""
    delete_question(question=criterion, deleted_by=view.user)


# Additional questions of a project.


class QuestionStateSerializer(serializers.Serializer[Any]):
    """The state of a question. What is not sent stays."""

    is_archived = fields.flag("Not asked any more.", required=False)
    ask_again = fields.flag(
        "True puts it again to who judged without answering its newest version; false takes back what is "
        "not answered yet, so that only new judgments answer it.",
        required=False,
    )


questions = Resource(ProjectView, f"{PROJECT}questions/", tag="projects")
question = questions.item("<slug:key>/", rows=lambda view: view.project.questions.all())


@questions.put(takes=OrderSerializer, returns=[QuestionSerializer])
def questions_order(view: ProjectView, values: Values) -> Any:
    """Put the additional questions in an order, as the labelling screen asks them."""
    rows = order_questions(
        kind=ProjectQuestion, project=view.project, keys=values["keys"], changed_by=view.user
    )
    return [newest(row) for row in rows]


@questions.put("<slug:key>/", takes=QuestionValuesSerializer, returns=QuestionSerializer)
def questions_set(view: ProjectView, values: Values, key: str) -> Question:
    """Create or change an additional question; fields left out get the default."""
    condition = values["shown_when"]
    row = save_question(
        project=view.project,
        question=Question(
            **{
                **values,
                "key": key,
                "choices": tuple(Choice(**choice) for choice in values["choices"]),
                "categories": tuple(values["categories"]),
                "shown_when": condition
                and Condition(question=condition["question"], values=tuple(condition["values"])),
            }
        ),
        saved_by=view.user,
    )
    return newest(row)


@question.patch(takes=QuestionStateSerializer, returns=QuestionSerializer)
@transaction.atomic
def questions_state(view: ProjectView, question: ProjectQuestion, values: Values) -> Question:
    """Archive or restore an additional question, or put it again to who judged without it."""
    if "is_archived" in values:
        archive_question(question=question, archived=values["is_archived"], changed_by=view.user)
    if "ask_again" in values:
        change = ask_again if values["ask_again"] else ask_only_new
        change(question=question, asked_by=view.user)
    return newest(question)


@question.delete()
def questions_delete(view: ProjectView, question: ProjectQuestion) -> None:
    """Delete an additional question without answers."""
    delete_question(question=question, deleted_by=view.user)


# Rubrics of a project: their versions, and which of them is in use.


@fields.of(RubricCriterion, "key name text levels scale weight")
class RubricCriterionSerializer(serializers.ModelSerializer[RubricCriterion]):
    """A weighted criterion of a rubric version."""


@fields.of(RubricVersion, "id number created_at criteria")
class RubricVersionSerializer(serializers.ModelSerializer[RubricVersion]):
    """A version of a rubric. It never changes."""

    criteria = RubricCriterionSerializer(many=True)


@fields.of(Rubric, "id name published is_asked created_at")
class RubricSerializer(serializers.ModelSerializer[Rubric]):
    """A rubric and its state."""

    published = fields.integer(
        "Number of the version in use.", source="published.number", allow_null=True, default=None
    )


@fields.more("versions")
class WholeRubricSerializer(RubricSerializer):
    """A rubric with all its versions, newest first."""

    versions = RubricVersionSerializer(many=True)


class NewRubricCriterionSerializer(serializers.Serializer[Any]):
    """A criterion to save."""

    name = fields.text(most=80)
    text = fields.text(default="", most=MOST_CHARACTERS)
    levels = fields.text(default="", most=MOST_CHARACTERS)
    scale = fields.choice(RatingScale.choices, "thumbs: no or yes.", default=RatingScale.FIVE)
    weight = fields.number(default=1.0, most=MOST_WEIGHT)


class NewRubricSerializer(serializers.Serializer[Any]):
    """The content of a version."""

    name = fields.text(most=80)
    criteria = fields.several(NewRubricCriterionSerializer(), least=1, most=MOST_CRITERIA)


class RubricUseSerializer(serializers.Serializer[Any]):
    """The use of a rubric. What is not sent stays."""

    published = fields.integer(
        "Number of the version to publish.", required=False, least=1, most=fields.LARGEST_INTEGER
    )
    is_asked = fields.flag("Whether annotators rate by it.", required=False)


rubrics = Resource(
    ProjectView, f"{PROJECT}rubrics/", tag="projects", rows=lambda view: rubrics_of(view.project)
)
rubric = rubrics.item(
    "<int:pk>/", rows=lambda view: rubrics_of(view.project).prefetch_related("versions__criteria")
)

rubrics.add_list("rubrics_list", RubricSerializer, "List the rubrics of a project.")
rubric.add_read("rubrics_read", WholeRubricSerializer, "Read a rubric with all its versions.")


@rubrics.post(takes=NewRubricSerializer, returns=WholeRubricSerializer, status=201)
def rubrics_create(view: ProjectView, values: Values) -> Rubric:
    """Create a rubric. Nothing uses it before a version is published."""
    return _save(view, values, None)


@rubric.put(takes=NewRubricSerializer, returns=WholeRubricSerializer)
def rubrics_save(view: ProjectView, rubric: Rubric, values: Values) -> Rubric:
    """Save a new version of a rubric. Without a difference, nothing is saved."""
    _save(view, values, rubric)
    return rubrics_of(view.project).get(pk=rubric.pk)


@rubric.patch(takes=RubricUseSerializer, returns=WholeRubricSerializer)
@transaction.atomic
def rubrics_use(view: ProjectView, rubric: Rubric, values: Values) -> Rubric:
    """Publish a version, and choose whether annotators rate by it."""
    if "published" in values:
        version = rubric.versions.filter(number=values["published"]).first()
        if version is None:
            raise Refusal("unknown_rubric_version", _("The rubric has no such version."), field="published")
        publish_rubric(version=version, published_by=view.user)
    if "is_asked" in values:
        ask_rubric(rubric=rubric, is_asked=values["is_asked"], by=view.user)
    return rubrics_of(view.project).get(pk=rubric.pk)


def _save(view: ProjectView, values: Values, rubric: Rubric | None) -> Rubric:
    criteria = [RubricCriterionInput(**row) for row in values["criteria"]]
    version = save_rubric(
        project=view.project, name=values["name"], criteria=criteria, saved_by=view.user, rubric=rubric
    )
    return version.rubric


# The audit log: of one project for its managers, of everything for superusers.


@fields.of(AuditEntry, "id created_at actor action subject details")
class AuditSerializer(serializers.ModelSerializer[AuditEntry]):
    """An entry of the audit log."""

    actor = fields.text("Empty where Rondo did it by itself.", source="actor.username", default="")
    details = serializers.DictField()


@fields.more("project")
class AnyAuditSerializer(AuditSerializer):
    """An entry of the audit log with its project."""

    project = serializers.SlugField(source="project.slug", default=None, allow_null=True)


class AuditFilters(Filters):
    """Filters of the audit log."""

    action = fields.text("What was done, as `round.start`.", required=False)
    actor = fields.text("A username.", source="actor__username", required=False)
    subject = fields.text("Part of what it was done to.", source="subject__icontains", required=False)
    since = fields.time("At this time or later.", source="created_at__gte", required=False)
    until = fields.time("Before this time.", source="created_at__lt", required=False)


class AnyAuditFilters(AuditFilters):
    """Filters of the whole audit log."""

    project = serializers.SlugField(source="project__slug", required=False)


log = Resource(
    ProjectView,
    f"{PROJECT}audit/",
    tag="projects",
    rows=lambda view: AuditEntry.objects.filter(project=view.project).select_related("actor"),
)
whole_log = Resource(
    ApiView,
    "audit/",
    tag="operations",
    rows=lambda _view: AuditEntry.objects.select_related("project", "actor"),
)
log.add_list(
    "audit_list", AuditSerializer, "List the project's audit log, newest first.", filters=AuditFilters
)
whole_log.add_list(
    "audit_list_all",
    AnyAuditSerializer,
    "List the audit log of all projects and of Rondo itself, newest first. For superusers.",
    filters=AnyAuditFilters,
    requires=superusers,
)
