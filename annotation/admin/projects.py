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
    WrittenOnceAdmin,
    WrittenOnceInline,
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


@admin.register(ProjectQuestion)
class ProjectQuestionAdmin(WrittenOnceAdmin):
    """Questions of projects, to be read: their page writes them with their versions."""

    list_display = ["key", "project", "kind", "subject", "is_required", "position", "is_archived"]
    list_filter = ["kind", "subject", "project"]
    list_select_related = ["project"]
    search_fields = ["key", "versions__text", "project__name"]
    inlines = [QuestionVersionInline]


@admin.register(QuestionVersion)
class QuestionVersionAdmin(WrittenOnceAdmin):
    list_display = ["text", "question", "number", "created_by", "created_at"]
    list_filter = ["question__project", "created_at"]
    list_select_related = ["question", "created_by"]
    search_fields = ["text", "question__key"]


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


@admin.register(Rubric)
class RubricAdmin(WrittenOnceAdmin):
    list_display = ["name", "project", "published", "is_asked", "created_at"]
    list_filter = ["is_asked", "project"]
    list_select_related = ["project", "published__rubric"]
    search_fields = ["name", "project__name"]


@admin.register(RubricVersion)
class RubricVersionAdmin(WrittenOnceAdmin):
    list_display = ["rubric", "number", "created_by", "created_at"]
    list_filter = ["rubric__project", "created_at"]
    list_select_related = ["rubric", "created_by"]
    search_fields = ["rubric__name"]
    inlines = [RubricCriterionInline]


@admin.register(RubricCriterion)
class RubricCriterionAdmin(WrittenOnceAdmin):
    list_display = ["name", "version", "key", "scale", "weight"]
    list_filter = ["scale", "version__rubric__project"]
    list_select_related = ["version__rubric"]
    search_fields = ["name", "text", "key"]


@admin.register(RubricScore)
class RubricScoreAdmin(WrittenOnceAdmin):
    list_display = ["judgment", "completion", "criterion", "value"]
    list_filter = ["criterion__version__rubric__project"]
    list_select_related = ["judgment__annotator", "completion", "criterion"]
    search_fields = ["=judgment__id", "reason"]


# Admin of what the choice of comparisons goes by.


@admin.register(CompletionFeatures)
class CompletionFeaturesAdmin(WrittenOnceAdmin):
    list_display = ["completion", "space"]
    list_filter = ["space", "completion__prompt__project"]
    list_select_related = ["completion"]
    search_fields = ["=completion__id", "space"]


@admin.register(AcquisitionFigures)
class AcquisitionFiguresAdmin(WrittenOnceAdmin):
    list_display = ["project", "judgments", "comparisons", "updated_at"]
    list_filter = ["project", "updated_at"]
    list_select_related = ["project"]
    search_fields = ["project__slug", "project__name"]


# Webhooks, and what was sent to them.


@admin.register(WebhookEndpoint)
class WebhookEndpointAdmin(WrittenOnceAdmin):
    """Addresses that receive events, read only: a project's page changes them."""

    list_display = ["__str__", "project", "url", "is_enabled", "why_disabled", "failures", "created_at"]
    list_filter = ["is_enabled", "why_disabled", "project", "created_at"]
    list_select_related = ["project"]
    search_fields = ["description", "url", "project__name", "project__slug"]
    exclude = ["secret", "previous_secret"]


@admin.register(WebhookMessage)
class WebhookMessageAdmin(WrittenOnceAdmin):
    list_display = ["key", "event", "project", "created_at"]
    list_filter = ["event", "project", "created_at"]
    list_select_related = ["project"]
    search_fields = ["key", "event", "project__name", "project__slug"]


class AttemptInline(WrittenOnceInline):
    """Attempts of a delivery, on its page."""

    model = WebhookAttempt
    show_change_link = False


@admin.register(WebhookDelivery)
class WebhookDeliveryAdmin(WrittenOnceAdmin):
    """Messages on their way; one that was given up is sent again on its page in the project."""

    list_display = ["message", "endpoint", "state", "tries_left", "next_attempt_at", "created_at"]
    list_filter = ["state", "created_at"]
    list_select_related = ["message", "endpoint__project"]
    search_fields = ["message__key", "message__event", "endpoint__url"]
    inlines = [AttemptInline]


@admin.register(WebhookAttempt)
class WebhookAttemptAdmin(WrittenOnceAdmin):
    """Every time that something was sent, and what came back."""

    list_display = ["delivery", "started_at", "milliseconds", "status", "error"]
    list_filter = ["status", "started_at"]
    list_select_related = ["delivery__message", "delivery__endpoint__project"]
    search_fields = ["delivery__message__key", "error"]


# Files that were brought in.


@admin.register(FileImport)
class FileImportAdmin(WrittenOnceAdmin):
    """Imported files, read only: imports are started on a project's page."""

    list_display = [
        "name",
        "project",
        "format",
        "state",
        "rows_done",
        "errors_total",
        "created_by",
        "created_at",
    ]
    list_filter = ["state", "format", "project", "created_at"]
    list_select_related = ["project", "created_by"]
    search_fields = ["name", "digest", "project__name", "project__slug", "created_by__username"]


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


@admin.register(Invitation)
class InvitationAdmin(WrittenOnceAdmin):
    list_display = ["project", "role", "note", "uses", "most_uses", "expires_at", "revoked_at", "created_by"]
    list_filter = ["role", "project", "revoked_at"]
    list_select_related = ["project", "created_by"]
    search_fields = ["note", "project__name", "project__slug", "created_by__username"]
    exclude = ["digest"]


@admin.register(ApiToken)
class ApiTokenAdmin(WrittenOnceAdmin):
    list_display = ["name", "user", "beginning", "scopes", "expires_at", "revoked_at", "last_used_at"]
    list_filter = ["expires_at", "revoked_at", "created_at"]
    list_select_related = ["user"]
    search_fields = ["name", "beginning", "user__username"]
    exclude = ["digest"]


@admin.register(AuditEntry)
class AuditEntryAdmin(WrittenOnceAdmin):
    list_display = ["created_at", "actor", "action", "subject", "project"]
    list_filter = ["action", "project", "created_at"]
    list_select_related = ["actor", "project"]
    search_fields = ["action", "subject", "actor__username", "project__name", "project__slug"]


@admin.register(KeptAnswer)
class KeptAnswerAdmin(WrittenOnceAdmin):
    list_display = ["created_at", "user", "key", "status"]
    list_filter = ["status", "created_at"]
    list_select_related = ["user"]
    search_fields = ["key", "user__username"]
    # What was answered is for who asked.
    exclude = ["body", "fingerprint"]


# Comments, notifications and choices of e-mails.


@admin.register(Comment)
class CommentAdmin(WrittenOnceAdmin):
    """Comments on comparisons."""

    list_display = ["author", "assignment", "created_at", "edited_at", "resolved_at"]
    list_filter = ["assignment__comparison__project", "resolved_at", "created_at"]
    list_select_related = ["author", "assignment__comparison", "assignment__annotator"]
    search_fields = ["text", "author__username"]


@admin.register(Notification)
class NotificationAdmin(WrittenOnceAdmin):
    """Notifications in people's inboxes."""

    list_display = ["user", "kind", "subject", "project", "created_at", "read_at", "mail"]
    list_filter = ["kind", "mail", "project", "created_at"]
    list_select_related = ["user", "project"]
    search_fields = ["subject", "user__username", "project__name", "project__slug"]


@admin.register(MailChoice)
class MailChoiceAdmin(WrittenOnceAdmin):
    """The e-mails that people want."""

    list_display = ["user", "mentions", "failures", "digest", "digested_at"]
    list_filter = ["mentions", "failures", "digest"]
    list_select_related = ["user"]
    search_fields = ["user__username", "user__email"]
