"""Projects with their members, categories and guidelines.

A guideline is published by adding a version; versions that are there stay as they are.
"""

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.forms import AdminUserCreationForm, UserChangeForm
from django.db import transaction
from django.http import HttpRequest

from annotation.admin.base import (
    BoundedAdmin,
    ModelForm,
    StackedInline,
    TabularInline,
    WrittenOnceInline,
    read_only,
)
from annotation.models import (
    AcquisitionFigures,
    ApiToken,
    AuditEntry,
    Category,
    Comment,
    CompletionFeatures,
    Criterion,
    FileImport,
    Guideline,
    Invitation,
    KeptAnswer,
    MailChoice,
    Membership,
    Notification,
    Panel,
    PanelParticipant,
    Project,
    ProjectQuestion,
    QuestionVersion,
    Rubric,
    RubricCriterion,
    RubricScore,
    RubricVersion,
    User,
    WebhookAttempt,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookMessage,
)
from annotation.models.projects import QUESTIONS
from annotation.services.assignments.acquisition import score_open_comparisons
from annotation.services.people.accounts import require_one_meaning
from annotation.services.projects.projects import publish_guideline

if TYPE_CHECKING:
    _CreationForm = AdminUserCreationForm[User]
    _ChangeForm = UserChangeForm[User]
    _UserAdmin = DjangoUserAdmin[User]
else:
    _CreationForm, _ChangeForm, _UserAdmin = AdminUserCreationForm, UserChangeForm, DjangoUserAdmin


class CategoryAdminForm(ModelForm):
    """Key and scope are what flags and exports go by: they are chosen once."""

    class Meta:
        model = Category
        fields = [
            *("project", "key", "label", "description", "scope", "granularity"),
            *("colour", "shortcut", "polarity", "severity_steps", "position", "is_archived"),
        ]
        widgets = {
            "description": forms.Textarea(attrs={"rows": 2, "cols": 40}),
            "colour": forms.TextInput(attrs={"type": "color"}),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is not None:
            for name in {"project", "key", "scope"} & set(self.fields):
                self.fields[name].disabled = True


class CategoryInline(TabularInline):
    model = Category
    form = CategoryAdminForm
    extra = 0


class CriterionAdminForm(ModelForm):
    """Key and scale are what ratings go by: they are chosen once."""

    class Meta:
        model = Criterion
        fields = ["project", "key", "label", "description", "scale", "position", "is_archived"]
        widgets = {"description": forms.Textarea(attrs={"rows": 2, "cols": 40})}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is not None:
            for name in {"project", "key", "scale"} & set(self.fields):
                self.fields[name].disabled = True


class CriterionInline(TabularInline):
    model = Criterion
    form = CriterionAdminForm
    extra = 0


class MembershipOfProjectInline(TabularInline):
    model = Membership
    extra = 0
    autocomplete_fields = ["user"]


class GuidelineInline(StackedInline):
    """The versions, newest first; adding one publishes it."""

    model = Guideline
    extra = 0
    can_delete = False
    fields = ["text", "version", "created_by", "created_at"]
    readonly_fields = ["version", "created_by", "created_at"]
    verbose_name = "guideline version"
    ordering = ["-version"]

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).select_related("project", "created_by")


@admin.register(Project)
class ProjectAdmin(BoundedAdmin):
    list_display = ["name", "slug", "overlap", "lease_minutes", "created_at"]
    list_filter = ["overlap", "created_at"]
    search_fields = ["name", "slug", "description"]
    prepopulated_fields = {"slug": ["name"]}
    readonly_fields = ["created_at"]
    inlines = [CategoryInline, CriterionInline, MembershipOfProjectInline, GuidelineInline]
    fieldsets = [
        (None, {"fields": ["name", "slug", "description", "created_at"]}),
        (
            "What annotators are asked",
            {"fields": [*QUESTIONS, "rate_side_by_side", "show_context"]},
        ),
        (
            "Work",
            {
                "fields": [
                    *("overlap", "extra_overlap", "extra_overlap_share", "lease_minutes", "daily_limit"),
                    *("acquisition", "control_share"),
                ]
            },
        ),
        (
            "Trust",
            {
                "fields": [
                    *("retest_share", "gold_share", "gold_feedback", "qualification_pass_share"),
                    "records_pastes",
                    *("review_disagreements", "review_random_share"),
                ]
            },
        ),
    ]

    def save_model(self, request: HttpRequest, obj: Project, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        if change and "acquisition" in form.changed_data:
            transaction.on_commit(lambda: score_open_comparisons(project=obj))

    def save_formset(self, request: HttpRequest, form: Any, formset: Any, change: bool) -> None:
        if formset.model is not Guideline:
            super().save_formset(request, form, formset, change)
            return
        # Without a commit the formset only tells what is new; the service numbers and writes it.
        for guideline in formset.save(commit=False):
            published = publish_guideline(
                project=form.instance,
                text=guideline.text,
                author=request.user,  # type: ignore[arg-type]  # the admin lets nobody in who is not signed in
            )
            guideline.pk, guideline.version = published.pk, published.version


@admin.register(Category)
class CategoryAdmin(BoundedAdmin):
    form = CategoryAdminForm
    list_display = ["label", "project", "key", "scope", "granularity", "shortcut", "position"]
    list_filter = ["scope", "granularity", "project"]
    list_select_related = ["project"]
    search_fields = ["label", "key", "description", "project__name"]
    autocomplete_fields = ["project"]


@admin.register(Criterion)
class CriterionAdmin(BoundedAdmin):
    form = CriterionAdminForm
    list_display = ["label", "project", "key", "scale", "position"]
    list_filter = ["scale", "project"]
    list_select_related = ["project"]
    search_fields = ["label", "key", "description", "project__name"]
    autocomplete_fields = ["project"]


class QuestionVersionInline(WrittenOnceInline):
    model = QuestionVersion
    fields = ["number", "text", "choices", "unit", "least", "most"]


# Questions of projects, to be read: their page writes them with their versions.
read_only(
    ProjectQuestion,
    "key project kind subject is_required position is_archived",
    "kind subject project",
    "key versions__text project__name",
    inlines=[QuestionVersionInline],
)
read_only(
    QuestionVersion,
    "text question number created_by created_at",
    "question__project created_at",
    "text question__key",
)


@admin.register(Guideline)
class GuidelineAdmin(BoundedAdmin):
    list_display = ["project", "version", "created_by", "created_at"]
    list_filter = ["project", "created_at"]
    list_select_related = ["project", "created_by"]
    search_fields = ["text", "project__name", "project__slug"]
    autocomplete_fields = ["project"]
    fields = ["project", "text", "version", "created_by", "created_at"]
    readonly_fields = ["version", "created_by", "created_at"]
    actions = None

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Guideline, form: Any, change: bool) -> None:
        published = publish_guideline(
            project=obj.project,
            text=obj.text,
            author=request.user,  # type: ignore[arg-type]  # the admin lets nobody in who is not signed in
        )
        obj.pk, obj.version = published.pk, published.version


# Rubrics and the scores by them, in the admin: to be found and read.


class RubricCriterionInline(WrittenOnceInline):
    model = RubricCriterion
    fields = ["position", "key", "name", "scale", "weight", "text", "levels"]


read_only(
    Rubric,
    "name project published is_asked created_at",
    "is_asked project",
    "name project__name",
    related="published__rubric",
)
read_only(
    RubricVersion,
    "rubric number created_by created_at",
    "rubric__project created_at",
    "rubric__name",
    inlines=[RubricCriterionInline],
)
read_only(
    RubricCriterion,
    "name version key scale weight",
    "scale version__rubric__project",
    "name text key",
    related="version__rubric",
)
read_only(
    RubricScore,
    "judgment completion criterion value",
    "criterion__version__rubric__project",
    "=judgment__id reason",
    related="judgment__annotator",
)


# Admin of what the choice of comparisons goes by.


read_only(
    CompletionFeatures, "completion space", "space completion__prompt__project", "=completion__id space"
)
read_only(
    AcquisitionFigures,
    "project judgments comparisons updated_at",
    "project updated_at",
    "project__slug project__name",
)


# Webhooks, and what was sent to them.


# Addresses that receive events, read only: a project's page changes them.
read_only(
    WebhookEndpoint,
    "__str__ project url is_enabled why_disabled failures created_at",
    "is_enabled why_disabled project created_at",
    "description url project__name project__slug",
    exclude="secret previous_secret",
)
read_only(
    WebhookMessage,
    "key event project created_at",
    "event project created_at",
    "key event project__name project__slug",
)


class AttemptInline(WrittenOnceInline):
    """Attempts of a delivery, on its page."""

    model = WebhookAttempt
    show_change_link = False


# Messages on their way; one that was given up is sent again on its page in the project.
read_only(
    WebhookDelivery,
    "message endpoint state tries_left next_attempt_at created_at",
    "state created_at",
    "message__key message__event endpoint__url",
    related="endpoint__project",
    inlines=[AttemptInline],
)
# Every time that something was sent, and what came back.
read_only(
    WebhookAttempt,
    "delivery started_at milliseconds status error",
    "status started_at",
    "delivery__message__key error",
    related="delivery__message delivery__endpoint__project",
)


# Files that were brought in.


# Imported files, read only: imports are started on a project's page.
read_only(
    FileImport,
    "name project format state rows_done errors_total created_by created_at",
    "state format project created_at",
    "name digest project__name project__slug created_by__username",
)


# Users, memberships, their tokens and what they did.


class _UserCreationForm(_CreationForm):
    class Meta(AdminUserCreationForm.Meta):
        model = User

    def clean_username(self) -> str:
        """Refuse a name that is in use, or that could be taken for another."""
        username = str(super().clean_username())
        require_one_meaning(username)
        return username


class _UserChangeForm(_ChangeForm):
    class Meta(UserChangeForm.Meta):
        model = User

    def clean_username(self) -> str:
        """Refuse another name that could be taken for somebody else's."""
        username = str(self.cleaned_data["username"])
        if "username" in self.changed_data:
            require_one_meaning(username)
        return username


class MembershipOfUserInline(TabularInline):
    model = Membership
    extra = 0
    autocomplete_fields = ["project"]


@admin.register(User)
class UserAdmin(_UserAdmin):
    form = _UserChangeForm
    add_form = _UserCreationForm
    list_display = ["username", "first_name", "last_name", "email", "is_active", "is_staff", "last_login"]
    list_filter = ["is_active", "is_staff", "is_superuser", "memberships__role"]
    search_fields = ["username", "first_name", "last_name", "email", "pseudonym"]
    list_per_page = 50
    readonly_fields = ["pseudonym", "last_login", "date_joined"]
    fieldsets = (
        *(DjangoUserAdmin.fieldsets or ()),
        ("Interface", {"fields": ["language", "keys"]}),
        ("In exports", {"fields": ["pseudonym"]}),
    )

    def get_inlines(self, request: Any, obj: User | None) -> list[Any]:
        # A person who is being added has no row yet for memberships to belong to.
        return [MembershipOfUserInline] if obj else []


@admin.register(Membership)
class MembershipAdmin(BoundedAdmin):
    list_display = [
        "user",
        "project",
        "role",
        "group",
        "daily_limit",
        "total_limit",
        "qualified_at",
        "joined_at",
    ]
    list_filter = ["role", "project"]
    list_select_related = ["user", "project"]
    search_fields = [
        "user__username",
        "user__first_name",
        "user__last_name",
        "project__name",
        "project__slug",
    ]
    autocomplete_fields = ["user", "project"]
    readonly_fields = ["guideline_seen", "joined_at"]


read_only(
    Invitation,
    "project role note uses most_uses expires_at revoked_at created_by",
    "role project revoked_at",
    "note project__name project__slug created_by__username",
    exclude="digest",
)
read_only(
    Panel,
    "name project items most_participants closes_at revoked_at created_by",
    "project revoked_at",
    "name project__name project__slug",
    exclude="digest",
)
read_only(
    PanelParticipant,
    "participant panel user state began_at finished_at",
    "state panel__project",
    "participant study session panel__name",
)
read_only(
    ApiToken,
    "name user beginning scopes expires_at revoked_at last_used_at",
    "expires_at revoked_at created_at",
    "name beginning user__username",
    exclude="digest",
)
read_only(
    AuditEntry,
    "created_at actor action subject project",
    "action project created_at",
    "action subject actor__username project__name project__slug",
)
read_only(
    KeptAnswer,
    "created_at user key status",
    "status created_at",
    "key user__username",
    exclude="body fingerprint",
)


# Comments, notifications and choices of e-mails.


# Comments on comparisons.
read_only(
    Comment,
    "author assignment created_at edited_at resolved_at",
    "assignment__comparison__project resolved_at created_at",
    "text author__username",
    related="assignment__comparison assignment__annotator",
)
# Notifications in people's inboxes.
read_only(
    Notification,
    "user kind subject project created_at read_at mail",
    "kind mail project created_at",
    "subject user__username project__name project__slug",
)
# The e-mails that people want.
read_only(
    MailChoice,
    "user mentions failures digest digested_at",
    "mentions failures digest",
    "user__username user__email",
)
